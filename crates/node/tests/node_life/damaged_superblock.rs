//! Damaged copies of the superblock: two intact ones are enough, damaged ones are named and written again; fewer refuse.
#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

use crate::running::{RunningNode, headwater};
use headwater_ssd::media::file::zones::{FileZones, ZoneOwner};
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

const COPIES: u8 = 4;

/// A damage of the bytes of one copy.
type CopyDamage = fn(&mut [u8]);

/// The flash file of a node that was stopped, with the superblocks that it must have.
struct StoppedFile {
    path: PathBuf,
    places: Vec<Range<u64>>,
    whole: Vec<Vec<u8>>,
}

impl StoppedFile {
    fn new(data: &Path) -> Self {
        let path = data.join("flash");
        let zones = FileZones::of_file(&File::open(&path).unwrap(), &path).unwrap();
        let places = (0..COPIES).map(|copy| zones.range(ZoneOwner::Superblock { copy })).collect();
        let mut file = Self { path, places, whole: Vec::new() };
        file.whole = file.copies();
        file
    }

    /// Returns the bytes of every copy.
    fn copies(&self) -> Vec<Vec<u8>> {
        let file = File::open(&self.path).unwrap();
        let read = |place: &Range<u64>| {
            let mut bytes = vec![0; usize::try_from(place.end - place.start).unwrap()];
            file.read_exact_at(&mut bytes, place.start).unwrap();
            bytes
        };
        self.places.iter().map(read).collect()
    }

    /// Damages these copies. Returns the bytes of every copy.
    fn damage(&self, copies: &[u8], damage: CopyDamage) -> Vec<Vec<u8>> {
        let file = OpenOptions::new().write(true).open(&self.path).unwrap();
        for copy in copies.iter().map(|copy| usize::from(*copy)) {
            let mut bytes = self.whole[copy].clone();
            damage(&mut bytes);
            file.write_all_at(&bytes, self.places[copy].start).unwrap();
        }
        self.copies()
    }
}

/// Starts and stops a node with a key. Returns its folder and its file.
fn stopped_node() -> (tempfile::TempDir, StoppedFile) {
    let dir = tempfile::tempdir().unwrap();
    let node = RunningNode::start(dir.path(), &[]);
    assert_eq!(node.kv(&["put", "kept", "value"]).status.code(), Some(0));
    node.stop();
    let file = StoppedFile::new(&dir.path().join("data"));
    (dir, file)
}

fn check(dir: &Path) -> (Option<i32>, serde_json::Value) {
    let output = headwater(&["device", "check", dir.join("data").to_str().unwrap(), "--json"]);
    let complaint = String::from_utf8_lossy(&output.stderr);
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{complaint}"));
    (output.status.code(), report)
}

#[test]
fn damaged_copies_of_the_superblock_are_named_and_counted_and_written_again() {
    let (dir, file) = stopped_node();
    let damages: [CopyDamage; 3] =
        [|bytes| bytes[2_000] ^= 1, |bytes| bytes.fill(0), |bytes| bytes.fill(0xFF)];
    let cases: [&[u8]; 8] = [&[0], &[1], &[2], &[3], &[0, 1], &[0, 3], &[1, 2], &[2, 3]];
    for (copies, damage) in cases.into_iter().zip(damages.into_iter().cycle()) {
        let damaged = file.damage(copies, damage);
        let (code, report) = check(dir.path());
        assert_eq!((code, &report["effect"]), (Some(1), &"fewer_copies".into()), "{copies:?}: {report}");
        let named = report["damaged_superblocks"].as_array().unwrap();
        assert_eq!(named.len(), copies.len(), "{copies:?}: {report}");
        assert!(file.copies() == damaged, "{copies:?}: the check changed a superblock");

        let node = RunningNode::start(dir.path(), &[]);
        let count = format!("headwater_damaged_copies {}", copies.len());
        let metrics = node.http("/metrics");
        assert!(metrics.lines().any(|line| line == count), "{copies:?}: {metrics}");
        assert_eq!(node.kv(&["get", "kept"]).stdout, b"value");
        let (code, log) = node.end();
        assert_eq!(code, Some(0), "{copies:?}: {log}");
        for (copy, named) in copies.iter().zip(named) {
            let named = named.as_str().unwrap();
            assert!(named.starts_with(&format!("copy {copy} ")), "{copies:?}: {named}");
            let line = format!("superblock {named}; it was written again");
            assert!(log.contains(&line), "{copies:?}: {line} is missing in:\n{log}");
        }
        assert!(file.copies() == file.whole, "{copies:?}: a superblock is not as it was");
        assert_eq!(check(dir.path()).0, Some(0), "{copies:?}: the file is not whole");
    }
}

#[test]
fn fewer_than_two_intact_copies_of_the_superblock_refuse_the_start_and_nothing_changes() {
    let (dir, file) = stopped_node();
    let data = dir.path().join("data");
    let addresses = ["--resp", "127.0.0.1:0", "--metrics", "127.0.0.1:0"];
    let cases: [&[u8]; 5] = [&[1, 2, 3], &[0, 2, 3], &[0, 1, 3], &[0, 1, 2], &[0, 1, 2, 3]];
    for copies in cases {
        let damaged = file.damage(copies, |bytes| bytes[2_000] ^= 1);
        let serve = [&["serve", "--data", data.to_str().unwrap()][..], &addresses].concat();
        for args in [&serve[..], &["device", "check", data.to_str().unwrap()]] {
            let output = headwater(args);
            let complaint = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{copies:?}: {complaint}");
            let named = (0..COPIES).filter(|copy| complaint.contains(&format!("copy {copy} "))).count();
            assert!(complaint.contains("the superblock of ") && named >= 2, "{copies:?}: {complaint}");
        }
        assert!(file.copies() == damaged, "{copies:?}: a refused start changed a superblock");
        file.damage(&[0, 1, 2, 3], |_| {});
    }
    let node = RunningNode::start(dir.path(), &[]);
    assert_eq!(node.kv(&["get", "kept"]).stdout, b"value");
    node.stop();
}
