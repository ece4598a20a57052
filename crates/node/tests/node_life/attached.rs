//! A real node with attached clients: the same data on every front end, administration, a kill and a restart.
#![expect(clippy::unwrap_used, reason = "an unexpected result fails the test")]

use crate::running::{RunningNode, headwater};
use headwater::Device;
use headwater_host::clock::{Clock, Nanos};
use headwater_io::attach::protocol::AttachRequest;
use headwater_nvme::spec::status::Status;
use headwater_testkit::unsealed_memory::{UnsealedClient, unsealed_files};
use rustix::fs::ftruncate;
use std::path::Path;

fn open(node: &RunningNode) -> Device {
    Device::open(&format!("attach:{}/attach.sock", node.data())).unwrap()
}

fn output(args: &[&str]) -> (Option<i32>, String) {
    let output = headwater(args);
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// Kills the node of an open device, starts another with `args`, and asserts that the device continues without an
/// error.
fn check_device_survives_kill(mut device: Device, node: RunningNode, folder: &Path, args: Vec<String>) {
    for key in 0..200_u32 {
        device.put(&key.to_le_bytes(), b"before").unwrap();
    }
    node.kill();
    let again = std::thread::spawn({
        let folder = folder.to_owned();
        move || RunningNode::start(&folder, &args.iter().map(String::as_str).collect::<Vec<_>>())
    });
    for key in 0..200_u32 {
        assert_eq!(device.get(&key.to_le_bytes()).unwrap().unwrap(), b"before", "key {key}");
    }
    device.put(b"after", b"the kill").unwrap();
    let node = again.join().unwrap();
    assert_eq!(node.kv(&["get", "after"]).stdout, b"the kill");
    node.stop();
}

#[test]
fn attached_client_and_redis_client_share_values() {
    let dir = tempfile::tempdir().unwrap();
    let node = RunningNode::start(dir.path(), &[]);
    let mut device = open(&node);
    device.put(b"greeting", b"by rings").unwrap();
    assert_eq!(node.kv(&["get", "greeting"]).stdout, b"by rings");
    assert_eq!(node.kv(&["put", "answer", "by RESP"]).status.code(), Some(0));
    assert_eq!(device.get(b"answer").unwrap().unwrap(), b"by RESP");
    node.stop();
}

/// Checks that the process of a node survives the loss of a client's pages, for which it handles SIGBUS.
#[test]
fn truncated_client_memory_leaves_the_node_running() {
    for (name, file) in unsealed_files(4 << 20) {
        let dir = tempfile::tempdir().unwrap();
        let node = RunningNode::start(dir.path(), &[]);
        let mut good = open(&node);
        let socket = dir.path().join("data/attach.sock");
        let mut bad = UnsealedClient::connect(&socket, &file, 4 << 20);
        bad.queue.submit(bad.put(b"bad", 0, 4 << 20), 0).unwrap();
        assert_eq!(bad.queue.wait(None).unwrap().unwrap().status, Status::SUCCESS, "{name}");
        ftruncate(&file, 2 << 20).unwrap();
        bad.queue.submit(bad.put(b"bad", 0, 4 << 20), 1).unwrap();
        assert_eq!(bad.queue.wait(Some(Nanos::from_millis(500))).unwrap(), None, "{name}");
        let reason = bad.connection.call(&AttachRequest::Namespaces, &[]).unwrap_err().to_string();
        assert!(reason.contains("its file was truncated"), "{name}: {reason}");
        good.put(b"good", b"value").unwrap();
        assert_eq!(node.kv(&["get", "good"]).stdout, b"value", "{name}");
        node.stop();
    }
}

#[test]
fn attached_client_survives_killed_node() {
    let dir = tempfile::tempdir().unwrap();
    let node = RunningNode::start(dir.path(), &[]);
    let device = open(&node);
    check_device_survives_kill(device, node, dir.path(), Vec::new());
}

#[test]
fn nvme_tcp_host_survives_killed_node() {
    let dir = tempfile::tempdir().unwrap();
    let node = RunningNode::start(dir.path(), &["--nvme-tcp", "127.0.0.1:0"]);
    let text = std::fs::read_to_string(node.ready_path()).unwrap();
    let ready: serde_json::Value = serde_json::from_str(&text).unwrap();
    let address = ready["nvme-tcp"].as_str().unwrap().to_owned();
    let names = headwater_io::NvmeTcp::discover(address.parse().unwrap()).unwrap();
    let device = Device::open(&format!("nvme-tcp://{address}/{}", names[0])).unwrap();
    check_device_survives_kill(device, node, dir.path(), vec!["--nvme-tcp".to_owned(), address]);
}

#[test]
fn grants_are_given_listed_limited_and_revoked() {
    let dir = tempfile::tempdir().unwrap();
    let node = RunningNode::start(dir.path(), &[]);
    let socket = format!("{}/attach.sock", node.data());
    let attach = |args: &[&str]| output(&[&["attach", "--socket", &socket], args].concat());
    let (code, text) = attach(&["grant", "--uid", "4000001", "--namespace", "2", "--read-only"]);
    assert_eq!((code, text.trim_end()), (Some(0), "done; 0 connected clients changed"));
    assert_eq!(attach(&["quota", "--uid", "4000001", "--memory", "64MiB"]).0, Some(0));
    let (_, text) = attach(&["list"]);
    assert!(text.contains("uid 4000001: read, namespaces 2, 16 queues, 64 MiB"), "{text}");
    let (_, json) = attach(&["list", "--json"]);
    assert!(serde_json::from_str::<serde_json::Value>(&json).unwrap()["clients"].is_array());
    assert_eq!(attach(&["revoke", "--uid", "4000001"]).0, Some(0));
    let (code, text) = attach(&["revoke", "--uid", "4000001"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("nothing is granted to uid 4000001"), "{text}");
    node.stop();
    let (code, text) = attach(&["list"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("no daemon answers"), "{text}");
}

#[test]
fn grants_and_revocations_survive_killed_node() {
    let dir = tempfile::tempdir().unwrap();
    let mut node = RunningNode::start(dir.path(), &[]);
    let socket = format!("{}/attach.sock", node.data());
    let attach = |args: &[&str]| output(&[&["attach", "--socket", &socket], args].concat());
    assert_eq!(attach(&["grant", "--uid", "4000001", "--namespace", "2", "--read-only"]).0, Some(0));
    assert_eq!(attach(&["quota", "--uid", "4000001", "--memory", "64MiB"]).0, Some(0));
    assert_eq!(attach(&["grant", "--gid", "4000002"]).0, Some(0));
    assert_eq!(attach(&["revoke", "--gid", "4000002"]).0, Some(0));
    for _ in 0..2 {
        node.kill();
        node = RunningNode::start(dir.path(), &[]);
        let (_, text) = attach(&["list"]);
        assert!(text.contains("uid 4000001: read, namespaces 2, 16 queues, 64 MiB"), "{text}");
        assert!(!text.contains("gid 4000002"), "{text}");
    }
    assert_eq!(attach(&["revoke", "--uid", "4000001"]).0, Some(0));
    node.stop();
    let node = RunningNode::start(dir.path(), &[]);
    let (_, text) = attach(&["list"]);
    assert!(!text.contains("4000001"), "{text}");
    node.stop();
}

#[test]
fn namespaces_are_created_changed_and_deleted_live_and_offline() {
    let dir = tempfile::tempdir().unwrap();
    let node = RunningNode::start(dir.path(), &[]);
    let data = node.data();
    let socket = format!("{data}/attach.sock");
    let live = |args: &[&str]| output(&[&["namespace", "--socket", &socket], args].concat());
    let (code, text) = live(&["create", "--blocks", "4096", "--size", "8MiB"]);
    assert_eq!((code, text.trim_end()), (Some(0), "namespace 2: done"));
    assert_eq!(live(&["resize", "2", "16MiB"]).0, Some(0));
    assert_eq!(live(&["limits", "2", "--iops", "1000", "--burst", "8"]).0, Some(0));
    assert_eq!(live(&["durability", "2", "interval=50"]).0, Some(0));
    let (_, text) = live(&["list"]);
    let wanted =
        "2: 4096 blocks of 4096 bytes, 16 MiB, durable interval=50, at most 1000 commands a second, burst 8";
    assert!(text.lines().any(|line| line == wanted), "{text}");
    assert_eq!(live(&["resize", "2", "5000"]).0, Some(2), "not a whole number of blocks");
    let mut device = open(&node);
    device.select_namespace(2).unwrap();
    device.write(4_000, &[7; 4_096], headwater::WriteDurability::Immediate).unwrap();
    drop(device);
    node.stop();
    let offline = |args: &[&str]| output(&[&["namespace", "--data", &data], args].concat());
    assert!(offline(&["list"]).1.lines().any(|line| line == wanted));
    assert_eq!(offline(&["delete", "2"]).0, Some(0));
    let (_, text) = offline(&["list"]);
    assert!(!text.contains("blocks of"), "{text}");
}

#[test]
fn nine_tenths_of_the_bytes_of_long_values_move_in_large_jobs() {
    let dir = tempfile::tempdir().unwrap();
    let node = RunningNode::start(dir.path(), &[]);
    let mut device = open(&node);
    let value: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    for key in 0..8_u8 {
        device.put(&[key], &value).unwrap();
        assert!(device.get(&[key]).unwrap().unwrap() == value, "value {key}");
    }
    let payload = 2 * 8 * value.len() as u64;
    // The counters are published a moment later.
    let large = (0..2_000).find_map(|_| {
        let metrics = node.http("/metrics");
        let line =
            metrics.lines().find_map(|line| line.strip_prefix("headwater_moved_in_large_jobs_bytes_total "));
        let large: u64 = line.expect("the node counts them").parse().unwrap();
        Clock::sleep(Nanos::from_millis(10));
        (large * 10 >= payload * 9).then_some(large)
    });
    let large = large.expect("nine tenths of the bytes moved in jobs of 16 KiB and more");
    assert!(large <= payload, "{large} of {payload} bytes moved");
    node.stop();
}
