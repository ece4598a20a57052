//! Errors in service: what a node says, refuses and still answers when its disk or its limits fail.
#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

use crate::running::{RunningNode, headwater};
use headwater_host::clock::{Clock, Nanos};
use rustix::process::Resource;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;

fn ping(client: &mut TcpStream) {
    client.write_all(b"PING\r\n").unwrap();
    assert_pong(client);
}

fn assert_pong(client: &mut TcpStream) {
    let mut reply = [0; 7];
    client.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"+PONG\r\n");
}

#[test]
fn after_a_failed_write_the_node_says_so_refuses_writes_and_answers_reads() {
    let dir = tempfile::tempdir().unwrap();
    let node = RunningNode::start(dir.path(), &[]);
    assert_eq!(node.kv(&["put", "kept", "before"]).status.code(), Some(0));
    assert!(node.http("/metrics").contains("headwater_writes_failed 0"));
    // Every write of a page fails with EFBIG from here on.
    node.set_limit(Resource::Fsize, Some(4_096));
    for key in ["lost", "refused"] {
        let failed = node.kv(&["put", key, "after"]);
        let complaint = String::from_utf8_lossy(&failed.stderr);
        assert_eq!(failed.status.code(), Some(1), "{complaint}");
        assert!(complaint.contains("MISCONF a write or a flush of the flash failed"), "{complaint}");
        node.set_limit(Resource::Fsize, None);
    }
    let health = node.http_until("/healthz", "HTTP/1.1 503");
    assert!(
        // The first write that fails is of a page, or the commit record of a device that was idle.
        ["writes fail: the write of block ", "writes fail: a commit record "]
            .iter()
            .any(|what| health.contains(what))
            && health.contains("(os error 27)"),
        "{health}"
    );
    assert!(node.http("/metrics").contains("headwater_writes_failed 1"));
    assert_eq!(node.kv(&["get", "kept"]).stdout, b"before");
    assert_eq!(node.kv(&["get", "lost"]).status.code(), Some(1), "an unacknowledged write was shown");
    let flash = format!("{}/flash at byte ", node.data());
    let (code, log) = node.end();
    assert_eq!(code, Some(1), "a node that could not write its checkpoint ended as if it had: {log}");
    let line = log.lines().find(|line| line.contains(&flash));
    let line = line.unwrap_or_else(|| panic!("no line of the log names the file and the offset:\n{log}"));
    assert!(line.contains("(os error 27); the node refuses every write from now on"), "{line}");

    let node = RunningNode::start(dir.path(), &[]);
    assert_eq!(node.kv(&["get", "kept"]).stdout, b"before");
    assert_eq!(node.kv(&["put", "kept", "again"]).status.code(), Some(0));
    assert!(node.http("/healthz").starts_with("HTTP/1.1 200"));
    node.stop();
}

#[test]
fn failed_read_is_answered_with_an_error_and_counted_and_shown() {
    const KEYS: usize = 4;
    let dir = tempfile::tempdir().unwrap();
    let node = RunningNode::start(dir.path(), &[]);
    let key = |number: usize| format!("key {number}");
    for number in 0..KEYS {
        let value = format!("{number}").repeat(60_000);
        assert_eq!(node.kv(&["put", &key(number), &value]).status.code(), Some(0));
    }
    node.stop();
    let node = RunningNode::start(dir.path(), &[]);
    // The disk no longer returns the pages: the file ends before them, and nothing may lengthen it.
    node.set_limit(Resource::Fsize, Some(4_096));
    let flash = OpenOptions::new().write(true).open(format!("{}/flash", node.data())).unwrap();
    flash.set_len(4_096).unwrap();
    for number in 0..KEYS {
        let failed = node.kv(&["get", &key(number)]);
        let complaint = String::from_utf8_lossy(&failed.stderr);
        assert_eq!((failed.status.code(), failed.stdout.len()), (Some(1), 0), "{complaint}");
        assert!(complaint.contains("unrecovered error"), "{complaint}");
    }
    assert_eq!(node.kv(&["get", "absent"]).status.code(), Some(1));
    let health = node.http_until("/healthz", "failed reads");
    // Failed reads alone leave a node healthy. An idle record or a checkpoint may have met the limit too.
    assert!(health.starts_with("HTTP/1.1 200") || health.contains("writes fail: "), "{health}");
    let metrics = node.http("/metrics");
    let count = metrics.lines().find_map(|line| line.strip_prefix("headwater_read_errors_total "));
    assert!(count.unwrap().parse::<usize>().unwrap() >= KEYS, "{count:?}");
    let (_, log) = node.end();
    assert!(log.contains("reads of the flash failed, the last one of block "), "{log}");
}

#[test]
fn lost_page_is_logged_and_counted_and_shown_and_the_node_serves_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let node = RunningNode::start(dir.path(), &[]);
    for number in 0..6 {
        let value = format!("<text {number}>").repeat(400);
        assert_eq!(node.kv(&["put", &format!("key {number}"), &value]).status.code(), Some(0));
    }
    let path = format!("{}/flash", node.data());
    node.kill();
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(8).position(|window| window == b"<text 2>").unwrap();
    bytes[at] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let check = headwater(&["device", "check", dir.path().join("data").to_str().unwrap()]);
    assert_eq!(check.status.code(), Some(1), "{}", String::from_utf8_lossy(&check.stdout));

    let node = RunningNode::start(dir.path(), &[]);
    let health = node.http_until("/healthz", "1 namespaces in doubt, 1 lost pages");
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    let metrics = node.http("/metrics");
    for line in ["headwater_namespaces_in_doubt 1", "headwater_lost_pages 1", "headwater_damaged_copies 0"] {
        assert!(metrics.lines().any(|found| found == line), "{line} is missing in\n{metrics}");
    }
    let failed = node.kv(&["get", "key 2"]);
    assert_eq!((failed.status.code(), failed.stdout.len()), (Some(1), 0));
    assert!(String::from_utf8_lossy(&failed.stderr).contains("unrecovered error"), "{failed:?}");
    assert_eq!(node.kv(&["get", "key 5"]).status.code(), Some(0));
    assert_eq!(node.kv(&["put", "key 2", "again"]).status.code(), Some(0));
    assert_eq!(node.kv(&["get", "key 2"]).stdout, b"again");
    let (code, log) = node.end();
    assert_eq!(code, Some(0), "{log}");
    for part in ["pages of the log that were durable are lost", "a namespace is in doubt", "--accept-loss="] {
        assert!(log.contains(part), "{part} is missing in\n{log}");
    }
}

/// Checks for a former defect: a node without a free descriptor called `accept` without end, and took a whole core.
#[test]
fn without_free_descriptors_the_node_sleeps_serves_its_clients_and_accepts_later() {
    let dir = tempfile::tempdir().unwrap();
    let node = RunningNode::start(dir.path(), &[]);
    let mut connected = node.connect();
    ping(&mut connected);
    // Every number below this one is taken, so no descriptor is left.
    node.set_limit(Resource::Nofile, Some(3));
    let mut waiting = node.connect();
    waiting.write_all(b"PING\r\n").unwrap();
    ping(&mut connected);
    let slept = node.sleeps();
    Clock::sleep(Nanos::from_millis(1_500));
    let slept = node.sleeps() - slept;
    assert!(slept >= 3, "the core of a node without free descriptors slept {slept} times");
    ping(&mut connected);
    waiting.set_nonblocking(true).unwrap();
    let early = waiting.read(&mut [0; 7]).map_err(|error| error.kind());
    assert_eq!(early, Err(ErrorKind::WouldBlock), "a client was accepted without a descriptor");
    node.set_limit(Resource::Nofile, None);
    waiting.set_nonblocking(false).unwrap();
    assert_pong(&mut waiting);
    let metrics = node.http("/metrics");
    let pauses = metrics.lines().find_map(|line| line.strip_prefix("headwater_accept_pauses_total "));
    assert!(pauses.unwrap().parse::<u64>().unwrap() >= 3, "{pauses:?}");
    let (code, log) = node.end();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("raise the limit of open files"), "{log}");
}

#[test]
fn capacity_beyond_the_free_space_is_refused_with_both_numbers_and_leaves_no_flash_file() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let data = data.to_str().unwrap();
    let addresses = ["--resp", "127.0.0.1:0", "--metrics", "127.0.0.1:0"];
    // Nearly the largest capacity: no machine that runs tests has so much space for temporary files.
    let args = [&["serve", "--data", data, "--capacity", "17TiB"][..], &addresses].concat();
    let output = headwater(&args);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    assert!(complaint.contains(" bytes, ") && complaint.contains(" are free: free some"), "{complaint}");
    let left = std::fs::read_dir(data).unwrap().map(|entry| entry.unwrap().file_name());
    let flash: Vec<_> = left.filter(|name| name.to_string_lossy().starts_with("flash")).collect();
    assert!(flash.is_empty(), "{flash:?}");
}
