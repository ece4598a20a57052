//! Inspection passes an intact device without changing a byte of it, and reports each kind of damage as its kind.

use super::*;
use crate::command::{FrontEndId, NamespaceId, RecordExpiry, SsdCommand, WriteCondition};
use crate::engine::SsdDevice;
use crate::index::RecordIndex as _;
use crate::media::FlashGeometry;
use crate::media::file::{FLASH_FILE_NAME, FileMedia, FileOptions};
use bytes::Bytes;
use headwater_host::clock::{Clock, UnixMillis};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

const FRONT_END: FrontEndId = FrontEndId(1);
const WALL: UnixMillis = UnixMillis(1_000_000);

struct InspectionHost {
    device: SsdDevice<FileMedia>,
    clock: Clock,
}

impl InspectionHost {
    fn new(directory: &Path) -> Self {
        let options = FileOptions::default();
        let media = FileMedia::create(directory, FlashGeometry::with_blocks(40), [7; 16], options).unwrap();
        let clock = Clock::start();
        let start = StartTime { now: clock.now(), wall: WALL };
        let device = SsdDevice::open(media, DeviceConfig::default(), start, &mut |_| {}).unwrap();
        Self { device, clock }
    }

    fn run(&mut self, command: SsdCommand) {
        self.device.submit(FRONT_END, NamespaceId::FIRST, 0, command).unwrap();
        while self.device.next_completion(FRONT_END).is_none() {
            self.device.poll(self.clock.now(), WALL);
            std::thread::yield_now();
        }
    }

    fn store(&mut self, key: &[u8], value: Vec<u8>, expiry: RecordExpiry) {
        let key = Bytes::copy_from_slice(key);
        self.run(SsdCommand::Store { key, value: value.into(), condition: WriteCondition::Always, expiry });
    }

    fn shut_down(mut self) {
        self.device.shutdown(self.clock.now(), WALL).unwrap();
    }
}

/// Inspects the file, and asserts that no byte of it changed.
fn inspect_file(directory: &TempDir) -> MediumInspection {
    let path = directory.path().join(FLASH_FILE_NAME);
    let before = fs::read(&path).unwrap();
    let media = FileMedia::open_read_only(directory.path(), FileOptions::default()).unwrap();
    let start = StartTime { now: Clock::start().now(), wall: WALL };
    let (found, media) = inspect(media, &DeviceConfig::default(), start, &mut |_| {}).unwrap();
    drop(media);
    assert!(fs::read(&path).unwrap() == before, "the inspection changed the flash file");
    found
}

fn value(number: u32) -> Vec<u8> {
    format!("<value {number}>").into_bytes().repeat(1 + number as usize % 900)
}

/// Returns a device with records of many kinds, and its number of keys.
fn used_device(directory: &TempDir) -> (InspectionHost, u64) {
    let mut host = InspectionHost::new(directory.path());
    for number in 0..900u32 {
        let key = format!("key {}", number % 300).into_bytes();
        let expiry = if number % 90 == 0 { RecordExpiry::At(WALL.0 + 60_000) } else { RecordExpiry::Never };
        host.store(&key, value(number), expiry);
        if number == 450 {
            host.device.request_checkpoint();
        }
    }
    for number in (0..300).step_by(10) {
        let key = Bytes::from(format!("key {number}"));
        host.run(SsdCommand::Delete { key, condition: WriteCondition::Always });
    }
    host.store(b"over two blocks", vec![5; 400_000], RecordExpiry::Never);
    (host, 271)
}

fn assert_clean(found: &MediumInspection, keys: u64) {
    assert_eq!(found.faults, BoundedFindings::default());
    assert_eq!(found.differences, BoundedFindings::default());
    let [first, ..] = found.namespaces;
    assert_eq!((first.records, first.intact, first.damaged), (keys, keys, 0));
    assert_eq!((found.damaged_records, found.unreadable_blocks), (0, 0));
}

#[test]
fn inspection_after_shutdown_finds_no_fault_and_changes_nothing() {
    let directory = TempDir::new().unwrap();
    let (host, keys) = used_device(&directory);
    host.shut_down();
    let found = inspect_file(&directory);
    assert_clean(&found, keys);
    assert_eq!(found.checkpoint, CheckpointFound::Whole);
}

#[test]
fn inspection_after_kill_finds_no_fault_and_changes_nothing() {
    let directory = TempDir::new().unwrap();
    let (host, keys) = used_device(&directory);
    drop(host);
    assert_clean(&inspect_file(&directory), keys);
}

#[test]
fn inspection_is_refused_while_a_device_serves_and_two_inspections_run_together() {
    let directory = TempDir::new().unwrap();
    let (host, _) = used_device(&directory);
    let open_to_read = || FileMedia::open_read_only(directory.path(), FileOptions::default());
    assert!(open_to_read().unwrap_err().to_string().contains("in use"));
    host.shut_down();
    let first = open_to_read().unwrap();
    open_to_read().unwrap();
    let serve = FileMedia::open(directory.path(), FileOptions::default());
    assert!(serve.unwrap_err().to_string().contains("in use"));
    drop(first);
    FileMedia::open(directory.path(), FileOptions::default()).unwrap();
}

/// Flips a bit `offset` bytes after the start of each occurrence of `pattern` in the file, stale copies included.
fn flip_bit_after(directory: &TempDir, pattern: &[u8], offset: usize) {
    let path = directory.path().join(FLASH_FILE_NAME);
    let mut bytes = fs::read(&path).unwrap();
    for at in places_of(&bytes, pattern) {
        bytes[at + offset] ^= 1;
    }
    fs::write(path, bytes).unwrap();
}

fn places_of(bytes: &[u8], pattern: &[u8]) -> Vec<usize> {
    let matches = bytes.windows(pattern.len()).enumerate().filter(|(_, window)| *window == pattern);
    let matches: Vec<usize> = matches.map(|(at, _)| at).collect();
    assert!(!matches.is_empty());
    matches
}

#[test]
fn damaged_record_is_reported_with_its_location() {
    let directory = TempDir::new().unwrap();
    let mut host = InspectionHost::new(directory.path());
    host.store(b"damaged", b"a value that reads like nothing else".to_vec(), RecordExpiry::Never);
    host.store(b"whole", b"another value".to_vec(), RecordExpiry::Never);
    host.shut_down();
    flip_bit_after(&directory, b"a value that reads", 3);
    let found = inspect_file(&directory);
    assert_eq!(found.faults.count, 1);
    let (location, fault) = found.faults.first[0];
    assert_eq!((location.namespace, fault), (1, RecordFault::Damaged));
    let [first, ..] = found.namespaces;
    assert_eq!((first.records, first.intact, first.damaged), (2, 1, 1));
    assert_eq!((found.lost_log_pages, found.damaged_checkpoint.pages(), found.damaged_cells), (1, 0, 0));
}

#[test]
fn damaged_map_is_reported_and_the_other_copy_is_used() {
    let directory = TempDir::new().unwrap();
    let (host, keys) = used_device(&directory);
    host.shut_down();
    let whole = fs::read(directory.path().join(FLASH_FILE_NAME)).unwrap();
    let mut damaged = 0;
    for at in places_of(&whole, b"HWCK") {
        let mut bytes = whole.clone();
        bytes[at + 20] ^= 1;
        fs::write(directory.path().join(FLASH_FILE_NAME), bytes).unwrap();
        let found = inspect_file(&directory);
        assert_eq!(found.checkpoint, CheckpointFound::Whole);
        assert_clean(&found, keys);
        damaged += found.damaged_checkpoint.pages();
    }
    assert_eq!(damaged, 2, "each copy of the map of the present checkpoint");
}

#[test]
fn medium_with_both_maps_damaged_is_refused() {
    let directory = TempDir::new().unwrap();
    let (host, _) = used_device(&directory);
    host.shut_down();
    flip_bit_after(&directory, b"HWCK", 20);
    let media = FileMedia::open(directory.path(), FileOptions::default()).unwrap();
    let start = StartTime { now: Clock::start().now(), wall: WALL };
    let refused = SsdDevice::open(media, DeviceConfig::default(), start, &mut |_| {}).unwrap_err();
    assert!(refused.to_string().contains("in neither copy of its map"), "{refused}");
}

#[test]
fn key_missing_from_the_checkpoint_is_reported_as_a_difference() {
    let directory = TempDir::new().unwrap();
    let (mut host, keys) = used_device(&directory);
    let index = host.device.index_mut();
    let (hash, entry) = index.next(KeyHash(0)).unwrap();
    assert!(index.remove(hash, entry.address));
    host.shut_down();
    let found = inspect_file(&directory);
    assert_eq!((found.checkpoint, found.faults.count), (CheckpointFound::Whole, 0));
    assert_eq!(found.differences.count, 1);
    let forgotten = IndexDifference { by_checkpoint: None, by_log: Some(RecordLocation::of(hash, entry)) };
    assert_eq!(found.differences.first, [forgotten]);
    assert_eq!(found.namespaces[0].records, keys - 1);
}

#[test]
fn entry_that_names_another_keys_record_is_a_fault_and_a_difference() {
    let directory = TempDir::new().unwrap();
    let (mut host, _) = used_device(&directory);
    let index = host.device.index_mut();
    let (hash, entry) = index.next(KeyHash(0)).unwrap();
    let (_, other) = index.next(KeyHash(hash.0 + 1)).unwrap();
    assert!(index.replace(hash, entry.address, other));
    host.shut_down();
    let found = inspect_file(&directory);
    assert_eq!(found.faults.first, [(RecordLocation::of(hash, other), RecordFault::OtherKey)]);
    let difference = IndexDifference {
        by_checkpoint: Some(RecordLocation::of(hash, other)),
        by_log: Some(RecordLocation::of(hash, entry)),
    };
    assert_eq!(found.differences.first, [difference]);
}

#[test]
fn findings_above_the_kept_maximum_are_still_counted() {
    let mut findings = BoundedFindings::default();
    for number in 0..100 {
        findings.add(number);
    }
    assert_eq!((findings.count, findings.first.len()), (100, FINDINGS_KEPT_MAX));
}
