//! `headwater device check` on the directory of a stopped node: it changes nothing, exits with 1 on damage of every kind,
//! and says beforehand what a serving node answers.
#![expect(clippy::unwrap_used, reason = "a failed set-up fails the test")]

mod directory;
mod extents;
mod faults;
mod host;

use directory::{StoppedDirectory, headwater};
use std::fs;

#[test]
fn whole_device_passes_and_no_file_changes() {
    let stopped = StoppedDirectory::stopped();
    let (code, report) = stopped.check();
    assert_eq!(code, Some(0), "{report}");
    assert_eq!((&report["is_whole"], &report["effect"]), (&true.into(), &"none".into()));
    assert_eq!((&report["checkpoint"], &report["version"]), (&"whole".into(), &2.into()));
    let counted = &report["namespaces"][0];
    assert!(counted["counted"].as_u64().unwrap() > 100 && counted["whole"] == counted["counted"], "{report}");
    let table = headwater(&["device", "check", stopped.data().to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&table.stdout).trim_end().ends_with("free: whole"));
}

#[test]
fn directory_without_a_lock_file_can_be_checked() {
    let stopped = StoppedDirectory::stopped();
    let _there_may_be_none = fs::remove_file(stopped.data().join("lock"));
    let (code, report) = stopped.check();
    assert_eq!(code, Some(0), "{report}");
    assert!(!stopped.data().join("lock").exists());
}

#[test]
fn damaged_record_is_shown_by_location_without_its_bytes() {
    let stopped = StoppedDirectory::killed();
    stopped.change(|file| {
        let at = file.text("<key 0050 version 1>");
        file.bytes[at] ^= 1;
    });
    let (code, report) = stopped.check();
    assert_eq!((code, report["faults"].as_u64()), (Some(1), Some(1)), "{report}");
    assert_eq!(report["first_faults"][0]["fault"], "damaged");
    assert_eq!(report["first_faults"][0]["namespace"].as_u64(), Some(1));
    assert!(report["damaged_records"].as_u64().unwrap() > 0, "{report}");
    let table = headwater(&["device", "check", stopped.data().to_str().unwrap()]);
    let text = String::from_utf8_lossy(&table.stdout);
    for line in ["a damaged record: namespace 1 hash 0x", "a damaged page: block ", "clients get errors"] {
        assert!(text.contains(line), "{line} is missing in\n{text}");
    }
    assert!(!text.contains("key-0050") && !text.contains("<key 0050"), "{text}");
}

#[test]
fn doubt_is_shown_with_its_namespaces_its_keys_and_the_digest_that_ends_it() {
    let stopped = StoppedDirectory::killed();
    stopped.change(|file| {
        let at = file.text("<key 0005 version 2>");
        file.bytes[at] ^= 1;
    });
    let (_, report) = stopped.check();
    let digest = report["doubt_digest"].as_str().unwrap();
    let table = headwater(&["device", "check", stopped.data().to_str().unwrap()]);
    let text = String::from_utf8_lossy(&table.stdout);
    for line in
        ["namespace 1 is in doubt: ", "a record in doubt: namespace 1 hash 0x", "lost: 1 pages of the log"]
    {
        assert!(text.contains(line), "{line} is missing in\n{text}");
    }
    assert!(text.contains(&format!("--accept-loss={digest}")), "{text}");
    let answers = stopped.answers_after_accepting(digest);
    assert_eq!(answers.errors, 0, "the accepted loss leaves keys in doubt");
}
