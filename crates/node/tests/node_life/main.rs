//! The life cycle of a node: start, commands, stop, kill, restart.

mod attached;
mod backup;
mod damaged_superblock;
mod errors;
mod failed_flush;
mod histories;
mod kept_settings;
mod running;
mod supervised;
mod transactions;
mod unread_replies;
mod upgrade;

use running::{RunningNode, headwater};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

#[test]
fn ready_file_names_addresses_that_answer() {
    let dir = tempfile::tempdir().unwrap();
    let node = RunningNode::start(dir.path(), &[]);
    assert_eq!(node.kv(&["put", "greeting", "hello"]).status.code(), Some(0));
    assert_eq!(node.kv(&["get", "greeting"]).stdout, b"hello");
    assert!(node.http("/healthz").ends_with("ok\n"));
    assert!(node.http("/metrics").contains("headwater_keys{namespace=\"1\"}"));
    node.stop();
}

#[test]
fn metrics_beyond_this_machine_are_served_to_clients_with_the_token() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "0123456789abcdef\n").unwrap();
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    let args = ["--metrics", "0.0.0.0:0", "--metrics-token", token.to_str().unwrap()];
    let node = RunningNode::start(dir.path(), &args);
    for path in ["/metrics", "/healthz", "/trace"] {
        assert!(node.http(path).starts_with("HTTP/1.1 401"), "{path}");
    }
    let bearer = "Authorization: Bearer 0123456789abcdef\r\n";
    assert!(node.http_with("/healthz", bearer).ends_with("ok\n"));
    assert!(node.http_with("/metrics", bearer).contains("headwater_keys{namespace=\"1\"}"));
    node.stop();
}

#[test]
fn commands_send_the_password_of_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let password = dir.path().join("password");
    std::fs::write(&password, "open sesame\nand nothing more\n").unwrap();
    std::fs::set_permissions(&password, std::fs::Permissions::from_mode(0o600)).unwrap();
    let file = password.to_str().unwrap();
    let node = RunningNode::start(dir.path(), &["--resp-password", file]);
    let without = node.kv(&["put", "greeting", "hello"]);
    let complaint = String::from_utf8_lossy(&without.stderr);
    assert_eq!(without.status.code(), Some(1));
    assert!(complaint.contains("NOAUTH") && complaint.contains("--resp-password"), "{complaint}");
    assert_eq!(node.kv(&["--resp-password", file, "put", "greeting", "hello"]).status.code(), Some(0));
    assert_eq!(node.kv(&["get", "greeting", "--resp-password", file]).stdout, b"hello");
    let load = node.bench(&["--resp-password", file, "--keys", "10", "--requests", "100", "--json"]);
    assert_eq!(load.status.code(), Some(0), "{}", String::from_utf8_lossy(&load.stderr));
    std::fs::write(&password, "another\n").unwrap();
    assert_eq!(node.kv(&["get", "greeting", "--resp-password", file]).status.code(), Some(1));
    node.stop();
}

#[test]
fn data_survives_sigterm_and_restart() {
    let dir = tempfile::tempdir().unwrap();
    let node = RunningNode::start(dir.path(), &["--durability", "on-flush"]);
    assert_eq!(node.kv(&["put", "kept", "in every mode"]).status.code(), Some(0));
    let ready = node.ready_path();
    node.stop();
    assert!(!ready.exists(), "a stopped node left its ready file behind");
    let node = RunningNode::start(dir.path(), &[]);
    assert_eq!(node.kv(&["get", "kept"]).stdout, b"in every mode");
    node.stop();
}

#[test]
fn parts_of_a_value_are_read_from_a_live_node_and_from_a_stopped_one() {
    let dir = tempfile::tempdir().unwrap();
    let node = RunningNode::start(dir.path(), &[]);
    let data = node.data();
    assert_eq!(node.kv(&["put", "greeting", "hello, world"]).status.code(), Some(0));
    let parts = [
        (&["--offset", "7"][..], &b"world"[..]),
        (&["--length", "5"], b"hello"),
        (&["--offset", "7", "--length", "3"], b"wor"),
        (&["--offset", "12"], b""),
        (&["--length", "0"], b""),
    ];
    for (options, part) in parts {
        let found = node.kv(&[&["get", "greeting"][..], options].concat());
        assert_eq!((found.status.code(), &found.stdout[..]), (Some(0), part), "{options:?}");
    }
    assert_eq!(node.kv(&["get", "other", "--offset", "1"]).status.code(), Some(1));
    node.stop();
    for (options, part) in parts {
        let found = headwater(&[&["kv", "--data", data.as_str(), "get", "greeting"][..], options].concat());
        assert_eq!((found.status.code(), &found.stdout[..]), (Some(0), part), "{options:?}");
    }
}

#[test]
fn second_process_on_a_data_directory_is_refused_with_the_holders_pid() {
    let dir = tempfile::tempdir().unwrap();
    let node = RunningNode::start(dir.path(), &[]);
    let data = node.data();
    for args in [
        &["serve", "--data", &data, "--resp", "127.0.0.1:0", "--metrics", "127.0.0.1:0"][..],
        &["kv", "--data", &data, "get", "a"],
        &["device", "check", &data],
    ] {
        let output = headwater(args);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}: {complaint}");
        assert!(complaint.contains(&format!("in use by process {}", node.pid())), "{args:?}: {complaint}");
    }
    assert_eq!(node.kv(&["put", "still", "served"]).status.code(), Some(0));
    node.stop();
}

#[test]
fn sigkill_keeps_every_acknowledged_file() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("files");
    for index in 0..2_000usize {
        let folder = source.join(format!("folder-{}", index % 7));
        std::fs::create_dir_all(&folder).unwrap();
        let bytes: Vec<u8> =
            (0..(index * 37) % 20_000).map(|at| u8::try_from((at * 31 + index) % 251).unwrap()).collect();
        std::fs::write(folder.join(format!("file-{index}")), bytes).unwrap();
    }
    let manifest = dir.path().join("manifest.jsonl");
    let manifest = manifest.to_str().unwrap();
    let node = RunningNode::start(dir.path(), &[]);
    let mut load = node
        .kv_command(&["load", source.to_str().unwrap(), "--manifest", manifest])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The node is killed after the first acknowledgement, which is in the middle of the load unless the machine is very
    // fast.
    while std::fs::metadata(manifest).map_or(true, |found| found.len() == 0)
        && load.try_wait().unwrap().is_none()
    {
        std::thread::yield_now();
    }
    node.kill();
    load.wait().unwrap();
    let node = RunningNode::start(dir.path(), &[]);
    let verified = node.kv(&["dump", "--verify", manifest, "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&verified.stdout).unwrap();
    assert_eq!(verified.status.code(), Some(0), "{report}");
    assert!(report["verified"].as_u64().unwrap() > 0, "{report}");

    // The load is repeated to its end, then the node is killed.
    let loaded = node.kv(&["load", source.to_str().unwrap(), "--manifest", manifest]);
    assert_eq!(loaded.status.code(), Some(0));
    node.kill();
    let node = RunningNode::start(dir.path(), &[]);
    let restored = dir.path().join("restored");
    let dumped = node.kv(&["dump", restored.to_str().unwrap(), "--verify", manifest, "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&dumped.stdout).unwrap();
    assert_eq!(dumped.status.code(), Some(0), "{report}");
    assert_eq!(report["verified"].as_u64(), Some(2_000), "{report}");
    let original = std::fs::read(source.join("folder-3/file-1998")).unwrap();
    assert_eq!(std::fs::read(restored.join("folder-3/file-1998")).unwrap(), original);
    node.stop();
}

#[test]
fn kv_commands_work_on_the_directory_of_a_stopped_node() {
    let dir = tempfile::tempdir().unwrap();
    let node = RunningNode::start(dir.path(), &[]);
    assert_eq!(node.kv(&["put", "from-the-node", "1"]).status.code(), Some(0));
    let data = node.data();
    node.stop();
    let kv = |args: &[&str]| headwater(&[&["kv", "--data", &data], args].concat());
    assert_eq!(kv(&["get", "from-the-node"]).stdout, b"1");
    assert_eq!(kv(&["put", "from-the-directory", "2"]).status.code(), Some(0));
    assert_eq!(kv(&["scan", "--match", "from-the-d*"]).stdout, b"from-the-directory\n");
    assert_eq!(kv(&["exists", "from-the-node", "nothing"]).status.code(), Some(1));
    assert_eq!(
        kv(&["-n", "2", "get", "from-the-node"]).status.code(),
        Some(1),
        "namespaces are not separate"
    );
    let node = RunningNode::start(dir.path(), &[]);
    assert_eq!(node.kv(&["get", "from-the-directory"]).stdout, b"2");
    node.stop();
}

#[test]
fn records_of_any_bytes_survive_load_and_dump() {
    let dir = tempfile::tempdir().unwrap();
    let records = dir.path().join("records.jsonl");
    std::fs::write(
        &records,
        "{\"key\":\"text\",\"value\":\"line\\nline\"}\n\
         {\"key_base64\":\"/wA=\",\"value_base64\":\"gIA=\"}\n\
         {\"key\":\"later\",\"value\":\"\",\"expiry_ms\":4102444800000}\n",
    )
    .unwrap();
    let node = RunningNode::start(dir.path(), &[]);
    assert_eq!(node.kv(&["load", records.to_str().unwrap()]).status.code(), Some(0));
    let dumped = node.kv(&["dump", "-"]);
    assert_eq!(dumped.status.code(), Some(0));
    let text = String::from_utf8(dumped.stdout).unwrap();
    let sorted = |text: &str| {
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&text), sorted(&std::fs::read_to_string(&records).unwrap()));
    node.stop();
}

#[test]
fn capacity_of_an_existing_directory_is_never_changed() {
    let dir = tempfile::tempdir().unwrap();
    let node = RunningNode::start(dir.path(), &[]);
    let data = node.data();
    node.stop();
    let args =
        ["serve", "--data", &data, "--resp", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--capacity", "2GiB"];
    let output = headwater(&args);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    assert!(complaint.contains("capacity"), "{complaint}");
}

#[test]
fn bench_verifies_every_value_it_reads() {
    let dir = tempfile::tempdir().unwrap();
    let node = RunningNode::start(dir.path(), &["--durability", "interval=10"]);
    let args = [
        "--requests",
        "3000",
        "--keys",
        "500",
        "--sizes",
        "16,100,4K",
        "--read-share",
        "0.5",
        "--depth",
        "8",
    ];
    let output =
        node.bench(&[&args[..], &["--connections", "3", "--threads", "2", "--verify", "--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["commands"].as_u64(), Some(3_000));
    assert_eq!(report["misses"].as_u64(), Some(0), "every key was filled first");
    assert_eq!(report["wrong"].as_u64(), Some(0));
    node.stop();
}
