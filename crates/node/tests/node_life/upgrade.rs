//! `headwater device upgrade`: killed at any time and repeated, refused while a node serves, announced by `serve`.
#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]
#![expect(clippy::print_stdout, reason = "the log states the seed and the kills")]

use super::running::{RunningNode, command, headwater};
use headwater_host::clock::{Clock, Nanos};
use headwater_ssd::log::record::FLAG_TOMBSTONE;
use headwater_testkit::version1_file::{Version1File, Version1Record};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Stdio;

const BLOCKS: u32 = 256;
const KEYS: u32 = 700;
const KILLS: u32 = 10;

/// Writes a flash file of version 1 and returns what it holds.
fn version_1_directory(data: &Path) -> BTreeMap<String, String> {
    let mut file = Version1File::new(BLOCKS, *b"killed upgrading");
    let mut keys = BTreeMap::new();
    for sequence in 1..=3 * u64::from(KEYS) {
        let key = format!("key-{}", sequence * 7 % u64::from(KEYS));
        let is_removal = sequence % 11 == 0;
        let value = if is_removal { String::new() } else { format!("{sequence} of {key}, ").repeat(1_200) };
        let flags = if is_removal { FLAG_TOMBSTONE } else { 0 };
        let bytes = (key.clone().into_bytes(), value.clone().into_bytes());
        file.append(&Version1Record { namespace: 1, flags, sequence, key: bytes.0, value: bytes.1 });
        if is_removal {
            keys.remove(&key);
        } else {
            keys.insert(key, value);
        }
    }
    assert!(file.blocks_used() > 100 && file.blocks_used() < BLOCKS - 20, "{}", file.blocks_used());
    std::fs::create_dir_all(data).unwrap();
    let flash = File::create(data.join("flash")).unwrap();
    flash.set_len(file.file_bytes() as u64).unwrap();
    for (offset, bytes) in file.finish() {
        flash.write_all_at(&bytes, offset as u64).unwrap();
    }
    keys
}

/// Returns every key and value that a `kv` command with these arguments dumps.
fn dumped(output: &[u8]) -> BTreeMap<String, String> {
    let lines = std::str::from_utf8(output).unwrap().lines();
    let text = |record: &serde_json::Value, field: &str| record[field].as_str().unwrap().to_owned();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .map(|record: serde_json::Value| (text(&record, "key"), text(&record, "value")))
        .collect()
}

#[test]
fn upgrade_that_is_killed_ten_times_keeps_every_key() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let expected = version_1_directory(&data);
    let path = data.to_str().unwrap();
    let upgrade = ["device", "upgrade", path];
    let dump = ["kv", "--data", path, "dump", "-"];
    assert!(dumped(&headwater(&dump).stdout) == expected, "the file of version 1 has other keys");

    let clock = Clock::start();
    let whole = headwater(&upgrade);
    let took = clock.now();
    assert_eq!(whole.status.code(), Some(0), "{}", String::from_utf8_lossy(&whole.stderr));
    version_1_directory(&data);

    let seed = fastrand::u64(..);
    let mut rng = fastrand::Rng::with_seed(seed);
    let (mut kills, mut finished) = (0, 0);
    while kills < KILLS {
        let mut child =
            command(&upgrade).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary starts");
        Clock::sleep(Nanos(rng.u64(0..took.0)));
        let ended = child.try_wait().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        kills += u32::from(ended.is_none());
        if ended.is_some() {
            // It was at its end: the next one begins with a file of version 1 again.
            finished += 1;
            version_1_directory(&data);
        }
        if kills % 3 == 0 {
            assert!(dumped(&headwater(&dump).stdout) == expected, "seed {seed}: after {kills} kills");
        }
    }
    let last = headwater(&upgrade);
    let complaint = String::from_utf8_lossy(&last.stderr);
    // The last kill may have struck behind the last write.
    assert!(last.status.success() || complaint.contains("version 2 already"), "seed {seed}: {complaint}");
    println!("seed {seed}: {kills} kills, {finished} upgrades in between that ended");
    let node = RunningNode::start(dir.path(), &[]);
    assert!(dumped(&node.kv(&["dump", "-"]).stdout) == expected, "seed {seed}");
    assert_eq!(node.kv(&["put", "written", "in version 2"]).status.code(), Some(0));
    node.stop();
    let checked = headwater(&["device", "check", path]);
    assert_eq!(checked.status.code(), Some(0), "seed {seed}: {}", String::from_utf8_lossy(&checked.stdout));
}

#[test]
fn node_on_a_file_of_version_1_reads_and_names_the_upgrade() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let expected = version_1_directory(&data);
    let node = RunningNode::start(dir.path(), &[]);
    let (key, value) = expected.first_key_value().unwrap();
    assert_eq!(node.kv(&["get", key]).stdout, value.as_bytes());
    let refused = node.kv(&["put", key, "new"]);
    let complaint = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{complaint}");
    assert!(complaint.contains("headwater device upgrade"), "{complaint}");
    let busy = headwater(&["device", "upgrade", &node.data()]);
    let complaint = String::from_utf8_lossy(&busy.stderr);
    assert_eq!(busy.status.code(), Some(1), "{complaint}");
    assert!(complaint.contains(&format!("in use by process {}", node.pid())), "{complaint}");
    let (code, log) = node.end();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("headwater device upgrade"), "{log}");

    let upgraded = headwater(&["device", "upgrade", data.to_str().unwrap()]);
    assert_eq!(upgraded.status.code(), Some(0), "{}", String::from_utf8_lossy(&upgraded.stderr));
    let text = String::from_utf8_lossy(&upgraded.stdout);
    assert!(text.contains(&format!("{} keys and blocks kept", expected.len())), "{text}");
    let again = headwater(&["device", "upgrade", data.to_str().unwrap()]);
    let complaint = String::from_utf8_lossy(&again.stderr);
    assert_eq!(again.status.code(), Some(1), "{complaint}");
    assert!(complaint.contains("version 2 already"), "{complaint}");
}
