//! `headwater device check` on the directory of a stopped node: it changes nothing, and exits with 1 on a fault.
#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

use headwater_ssd::media::FlashGeometry;
use headwater_ssd::media::file::{FileMedia, FileOptions};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

const RECORDS: usize = 50;
/// Offset of the first page slot in a file of this size, and bytes of a slot (`docs/formats/flash-file.md`).
const SLOTS_OFFSET: usize = 20_480;
const SLOT_BYTES: usize = 4_608;
/// Offset and bytes of the stamp of the block's erase cycle in a slot.
const STAMP_OFFSET: usize = 4_224;
const STAMP_BYTES: usize = 16;

fn headwater(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_headwater"));
    command.args(args).env_remove("HEADWATER_RESP").stdin(Stdio::null()).output().expect("the binary starts")
}

/// The data directory of a stopped node.
struct StoppedDirectory {
    folder: TempDir,
}

impl StoppedDirectory {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let stopped = Self { folder };
        fs::create_dir(stopped.data()).unwrap();
        let geometry = FlashGeometry::with_blocks(40);
        drop(FileMedia::create(&stopped.data(), geometry, [7; 16], FileOptions::default()).unwrap());
        let records = stopped.folder.path().join("records.jsonl");
        let lines = (0..RECORDS).map(|number| {
            let value = format!("value {number:03} ").repeat(300);
            format!("{{\"key\":\"key {number}\",\"value\":\"{value}\"}}\n")
        });
        fs::write(&records, lines.collect::<String>()).unwrap();
        let data = stopped.data();
        let loaded = headwater(&["kv", "--data", data.to_str().unwrap(), "load", records.to_str().unwrap()]);
        assert_eq!(loaded.status.code(), Some(0), "{}", String::from_utf8_lossy(&loaded.stderr));
        stopped
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Returns the bytes of every file of the directory.
    fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let entries = fs::read_dir(self.data()).unwrap().map(|entry| entry.unwrap().path());
        entries.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
    }

    /// Runs the check, asserts that no file changed, and returns the exit code and the report.
    fn check(&self) -> (Option<i32>, Value) {
        let before = self.files();
        let output = headwater(&["device", "check", self.data().to_str().unwrap(), "--json"]);
        assert!(self.files() == before, "the check changed a file");
        let complaint = String::from_utf8_lossy(&output.stderr);
        let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{complaint}"));
        (output.status.code(), report)
    }

    /// Passes the bytes of the flash file to `change`, with the last offset of `text` in them.
    fn damage(&self, text: &str, change: impl Fn(&mut [u8], usize)) {
        let path = self.data().join("flash");
        let mut bytes = fs::read(&path).unwrap();
        let at = bytes.windows(text.len()).rposition(|window| window == text.as_bytes()).unwrap();
        change(&mut bytes, at);
        fs::write(path, bytes).unwrap();
    }
}

#[test]
fn whole_device_passes_and_no_file_changes() {
    let stopped = StoppedDirectory::new();
    let (code, report) = stopped.check();
    assert_eq!(code, Some(0), "{report}");
    assert_eq!(report["is_whole"], true);
    assert_eq!(report["checkpoint"], "whole");
    assert_eq!(report["namespaces"][0]["whole"].as_u64(), Some(RECORDS as u64));
    let table = headwater(&["device", "check", stopped.data().to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&table.stdout).trim_end().ends_with("free: whole"));
}

#[test]
fn directory_without_a_lock_file_can_be_checked() {
    let stopped = StoppedDirectory::new();
    fs::remove_file(stopped.data().join("lock")).unwrap();
    let (code, report) = stopped.check();
    assert_eq!(code, Some(0), "{report}");
    assert!(!stopped.data().join("lock").exists());
}

#[test]
fn damaged_record_is_shown_by_location_without_its_bytes() {
    let stopped = StoppedDirectory::new();
    stopped.damage("value 007", |bytes, at| bytes[at] ^= 1);
    let (code, report) = stopped.check();
    assert_eq!(code, Some(1), "{report}");
    assert_eq!(report["faults"].as_u64(), Some(1), "{report}");
    assert_eq!(report["first_faults"][0]["fault"], "damaged");
    assert_eq!(report["first_faults"][0]["namespace"].as_u64(), Some(1));
    assert_eq!(report["namespaces"][0]["whole"].as_u64(), Some(RECORDS as u64 - 1));
    let table = headwater(&["device", "check", stopped.data().to_str().unwrap()]);
    let text = String::from_utf8_lossy(&table.stdout);
    assert!(text.contains("a damaged record: namespace 1 hash 0x"), "{text}");
    assert!(!text.contains("key 7") && !text.contains("value 007"), "{text}");
}

#[test]
fn damaged_checkpoint_is_reported_even_if_every_record_is_whole() {
    let stopped = StoppedDirectory::new();
    stopped.damage("HWCK", |bytes, at| bytes[at + 24] ^= 1);
    let (code, report) = stopped.check();
    assert_eq!(code, Some(1), "{report}");
    assert_eq!(report["checkpoint"], "damaged");
    assert_eq!(report["faults"].as_u64(), Some(0), "{report}");
    assert_eq!(report["namespaces"][0]["whole"].as_u64(), Some(RECORDS as u64));
}

#[test]
fn page_in_the_checkpoint_but_not_in_the_log_is_reported() {
    let stopped = StoppedDirectory::new();
    stopped.damage("value 020", |bytes, at| {
        let slot = SLOTS_OFFSET + (at - SLOTS_OFFSET) / SLOT_BYTES * SLOT_BYTES;
        bytes[slot + STAMP_OFFSET..][..STAMP_BYTES].fill(0);
    });
    let (code, report) = stopped.check();
    assert_eq!(code, Some(1), "{report}");
    assert!(report["disagreements"].as_u64().unwrap() > 0, "{report}");
    let first = &report["first_disagreements"][0];
    assert!(first["by_checkpoint"]["hash"].is_string() && first["by_log"].is_null(), "{report}");
}
