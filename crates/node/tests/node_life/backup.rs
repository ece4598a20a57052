//! Backups of a running node: each restores to one moment, whatever was written or killed during it.
#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

use crate::running::{RunningNode, command, headwater};
use headwater_host::clock::{Clock, Nanos};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Keys that the writer sets in turn.
const KEYS: u64 = 50;

/// Writes numbers in order, each to the next key, one after the other. Returns the last number that was answered.
fn write_in_order(mut stream: TcpStream, acknowledged: &AtomicU64, stop: &AtomicBool) {
    stream.set_nodelay(true).unwrap();
    let mut replies = BufReader::new(stream.try_clone().unwrap());
    let padding = "x".repeat(2_000);
    let mut number = acknowledged.load(Ordering::Relaxed);
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let (key, value) = (format!("key-{}", number % KEYS), format!("{number}:{padding}"));
        let command =
            format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n{value}\r\n", key.len(), value.len());
        stream.write_all(command.as_bytes()).unwrap();
        let mut reply = String::new();
        replies.read_line(&mut reply).unwrap();
        assert_eq!(reply, "+OK\r\n");
        acknowledged.store(number, Ordering::Relaxed);
    }
}

/// Starts a node on a restored directory and asserts that it holds the writes up to one of them and none behind it.
/// Returns that one.
fn assert_prefix(folder: &Path) -> u64 {
    let node = RunningNode::start(folder, &[]);
    let numbers: Vec<u64> = (0..KEYS)
        .map(|key| {
            let value = node.kv(&["get", &format!("key-{key}")]).stdout;
            let text = String::from_utf8(value).unwrap();
            text.split_once(':').map_or(0, |(number, _)| number.parse().unwrap())
        })
        .collect();
    node.stop();
    let last = *numbers.iter().max().unwrap();
    for (key, number) in (0..KEYS).zip(&numbers) {
        let expected = last - (last + KEYS - key) % KEYS;
        assert_eq!(*number, expected, "key {key}, the last write is {last}");
    }
    let checked = headwater(&["device", "check", folder.join("data").to_str().unwrap()]);
    assert_eq!(checked.status.code(), Some(0), "{}", String::from_utf8_lossy(&checked.stdout));
    last
}

fn restore(backups: &str, folder: &Path, more: &[&str]) {
    std::fs::create_dir_all(folder).unwrap();
    let data = folder.join("data");
    let args = [&["restore", backups, "--data", data.to_str().unwrap()], more].concat();
    let restored = headwater(&args);
    assert_eq!(restored.status.code(), Some(0), "{}", String::from_utf8_lossy(&restored.stderr));
}

fn backup(backups: &str, data: &str) -> serde_json::Value {
    let taken = headwater(&["backup", backups, "--data", data, "--json"]);
    assert_eq!(taken.status.code(), Some(0), "{}", String::from_utf8_lossy(&taken.stderr));
    serde_json::from_slice(&taken.stdout).unwrap()
}

#[test]
fn backups_of_a_node_under_load_each_restore_to_one_moment() {
    let dir = tempfile::tempdir().unwrap();
    let backups = dir.path().join("backups");
    let backups = backups.to_str().unwrap();
    let node = RunningNode::start(dir.path(), &["--capacity", "64MiB", "--durability", "on-flush"]);
    let (acknowledged, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut bounds = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| write_in_order(node.connect(), &acknowledged, &stop));
        for _ in 0..3 {
            // More than the medium holds is written in all.
            let goal = acknowledged.load(Ordering::Relaxed) + 12_000;
            while acknowledged.load(Ordering::Relaxed) < goal {
                Clock::sleep(Nanos::from_millis(1));
            }
            let before = acknowledged.load(Ordering::Relaxed);
            backup(backups, &node.data());
            bounds.push((before, acknowledged.load(Ordering::Relaxed) + 1));
        }
        stop.store(true, Ordering::Relaxed);
    });
    for (number, (before, after)) in (1..).zip(bounds) {
        let folder = dir.path().join(format!("restored-{number}"));
        restore(backups, &folder, &["--number", &number.to_string()]);
        let last = assert_prefix(&folder);
        assert!((before..=after).contains(&last), "backup {number}: {last} is not in {before}..={after}");
    }
    node.stop();
}

#[test]
fn second_backup_copies_only_what_was_written_since() {
    let dir = tempfile::tempdir().unwrap();
    let backups = dir.path().join("backups");
    let backups = backups.to_str().unwrap();
    let node = RunningNode::start(dir.path(), &[]);
    let load = node.bench(&["--read-share", "0", "--requests", "20000", "--sizes", "2048", "--depth", "32"]);
    assert_eq!(load.status.code(), Some(0), "{}", String::from_utf8_lossy(&load.stderr));
    let first = backup(backups, &node.data());
    assert_eq!(node.kv(&["put", "one", "more"]).status.code(), Some(0));
    let second = backup(backups, &node.data());
    let (all, more) = (first["copied_bytes"].as_u64().unwrap(), second["copied_bytes"].as_u64().unwrap());
    assert!(all > 20_000_000 && more < all / 20, "{all} bytes, then {more}");
    let listed = headwater(&["backup", backups, "--list", "--json"]);
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 2);
    // The older one goes, and what the newer one needs of it stays.
    let third = headwater(&["backup", backups, "--data", &node.data(), "--keep", "1"]);
    assert_eq!(third.status.code(), Some(0));
    let folder = dir.path().join("restored");
    restore(backups, &folder, &[]);
    let restored = RunningNode::start(&folder, &[]);
    assert_eq!(restored.kv(&["get", "one"]).stdout, b"more");
    restored.stop();
    node.stop();
}

#[test]
fn killed_backups_and_restores_change_no_backup_and_leave_no_half_file() {
    let dir = tempfile::tempdir().unwrap();
    let backups = dir.path().join("backups");
    let backups = backups.to_str().unwrap();
    let node = RunningNode::start(dir.path(), &["--durability", "on-flush"]);
    let (acknowledged, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| write_in_order(node.connect(), &acknowledged, &stop));
        while acknowledged.load(Ordering::Relaxed) < 3_000 {
            Clock::sleep(Nanos::from_millis(1));
        }
        backup(backups, &node.data());
        for round in 0..24_u64 {
            // From before the first byte to behind the last one.
            let wait = Nanos(round * round * 100_000);
            let data = dir.path().join(format!("killed-{round}/data"));
            let args = match round % 2 {
                0 => vec!["backup".to_owned(), backups.to_owned(), "--data".to_owned(), node.data()],
                _ => {
                    let data = data.to_str().unwrap().to_owned();
                    vec!["restore".to_owned(), backups.to_owned(), "--data".to_owned(), data]
                }
            };
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let mut child = command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            Clock::sleep(wait);
            child.kill().unwrap();
            child.wait().unwrap();
            if round % 2 == 1 {
                if data.join("flash").exists() {
                    assert_prefix(data.parent().unwrap());
                } else {
                    restore(backups, data.parent().unwrap(), &[]);
                }
                std::fs::remove_dir_all(data.parent().unwrap()).unwrap();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let before = acknowledged.load(Ordering::Relaxed);
    backup(backups, &node.data());
    let folder = dir.path().join("restored");
    restore(backups, &folder, &[]);
    assert_eq!(assert_prefix(&folder), before);
    restore(backups, &dir.path().join("first"), &["--number", "1"]);
    assert!(assert_prefix(&dir.path().join("first")) >= 3_000);
    node.stop();
}

/// Sends a request for a snapshot without known blocks, as bytes.
fn request_snapshot(node: &RunningNode) -> UnixStream {
    let mut stream = UnixStream::connect(Path::new(&node.data()).join("backup.sock")).unwrap();
    // A node that refuses a client may have closed the connection already.
    let _sent = stream.write_all(b"HWBACKUP\x01\0\0\0\0\0\0\0");
    stream
}

fn status_from(stream: &mut UnixStream) -> u32 {
    let mut status = [0; 4];
    stream.read_exact(&mut status).unwrap();
    u32::from_le_bytes(status)
}

#[test]
fn second_client_is_refused_and_a_stop_ends_the_snapshot_of_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let node = RunningNode::start(dir.path(), &[]);
    let mut first = request_snapshot(&node);
    assert_eq!(status_from(&mut first), 1, "a snapshot");
    let mut second = request_snapshot(&node);
    assert_eq!(status_from(&mut second), 6, "another backup runs");
    let refused =
        headwater(&["backup", dir.path().join("backups").to_str().unwrap(), "--data", &node.data()]);
    let complaint = String::from_utf8_lossy(&refused.stderr);
    assert!(complaint.contains("another backup runs"), "{complaint}");
    let (code, log) = node.end();
    assert_eq!(code, Some(0), "{log}");
    let mut rest = Vec::new();
    first.read_to_end(&mut rest).unwrap();
    assert_eq!(rest[rest.len() - 4..], 5_u32.to_le_bytes(), "the node stops");
}

#[test]
fn malformed_request_is_refused_and_an_idle_client_is_told_of_a_stop() {
    let dir = tempfile::tempdir().unwrap();
    let node = RunningNode::start(dir.path(), &[]);
    let socket = Path::new(&node.data()).join("backup.sock");
    for request in
        [&b"HWBACKUP\x02\0\0\0\0\0\0\0"[..], b"GET / HTTP/1.1\r\n", b"HWBACKUP\x01\0\0\0\xFF\xFF\xFF\xFF"]
    {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(request).unwrap();
        assert_eq!(status_from(&mut stream), 8, "{request:?}");
        // Until then the next client is a second one.
        assert_eq!(stream.read(&mut [0; 4]).unwrap_or(0), 0, "more than a status");
    }
    let mut idle = UnixStream::connect(&socket).unwrap();
    // The node has accepted it once a later client is refused.
    assert_eq!(status_from(&mut request_snapshot(&node)), 6);
    let (code, log) = node.end();
    assert_eq!(code, Some(0), "{log}");
    let mut told = Vec::new();
    idle.read_to_end(&mut told).unwrap();
    assert_eq!(told, 5_u32.to_le_bytes(), "the node stops");
}

#[test]
fn damage_and_wrong_places_are_refused_with_their_reason() {
    let dir = tempfile::tempdir().unwrap();
    let backups = dir.path().join("backups");
    let backups = backups.to_str().unwrap();
    let data = dir.path().join("data");
    let fails = |args: &[&str], reason: &str| {
        let output = headwater(args);
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {complaint}");
        assert!(complaint.contains(reason), "{args:?}: {complaint}");
    };
    let at = data.to_str().unwrap();
    fails(&["backup", backups, "--data", at], "cannot open the flash file");
    let node = RunningNode::start(dir.path(), &[]);
    assert_eq!(node.kv(&["put", "a", "b"]).status.code(), Some(0));
    backup(backups, at);
    fails(&["restore", backups, "--data", at], "in use by process");
    let elsewhere = dir.path().join("elsewhere");
    let elsewhere = elsewhere.to_str().unwrap();
    fails(&["restore", backups, "--data", elsewhere, "--number", "7"], "no backup 7");
    node.stop();
    fails(&["backup", backups, "--data", at], "no node serves from this directory");
    fails(&["restore", backups, "--data", at], "a restore overwrites none");
    let archive = Path::new(backups).join("archive-000001");
    let mut bytes = std::fs::read(&archive).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&archive, bytes).unwrap();
    fails(&["restore", backups, "--data", elsewhere], "fail their checksum");
    assert!(!Path::new(elsewhere).join("flash").exists());
    let manifest = Path::new(backups).join("manifest-000001");
    std::fs::write(&manifest, b"nothing").unwrap();
    fails(&["restore", backups, "--data", elsewhere], "manifest");
}
