//! Devices in good order pass without a byte of them changing; each kind of damage is reported as what it is.

use super::*;
use crate::command::{Command, Condition, Expiry, FaceId, NamespaceId};
use crate::device::Device;
use crate::index::Index as _;
use crate::media::Geometry;
use crate::media::file::{FLASH_FILE_NAME, FileMedia, FileOptions};
use bytes::Bytes;
use headwater_host::clock::{Clock, UnixMillis};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

const FACE: FaceId = FaceId(1);
const WALL: UnixMillis = UnixMillis(1_000_000);

struct Host {
    device: Device<FileMedia>,
    clock: Clock,
}

impl Host {
    fn new(directory: &Path) -> Self {
        let options = FileOptions::default();
        let media = FileMedia::create(directory, Geometry::with_blocks(40), [7; 16], options).unwrap();
        let clock = Clock::start();
        let start = Start { now: clock.now(), wall: WALL };
        let device = Device::open(media, DeviceConfig::default(), start, &mut |_| {}).unwrap();
        Self { device, clock }
    }

    fn ask(&mut self, command: Command) {
        self.device.submit(FACE, NamespaceId::FIRST, 0, command).unwrap();
        while self.device.next_completion(FACE).is_none() {
            self.device.poll(self.clock.now(), WALL);
            std::thread::yield_now();
        }
    }

    fn store(&mut self, key: &[u8], value: Vec<u8>, expiry: Expiry) {
        let key = Bytes::copy_from_slice(key);
        self.ask(Command::Store { key, value: value.into(), condition: Condition::Always, expiry });
    }

    fn shut_down(mut self) {
        self.device.shutdown(self.clock.now(), WALL).unwrap();
    }
}

/// Inspects the file, and makes sure that nothing of it changed.
fn inspect_file(directory: &TempDir) -> Inspection {
    let path = directory.path().join(FLASH_FILE_NAME);
    let before = fs::read(&path).unwrap();
    let media = FileMedia::open_to_read(directory.path(), FileOptions::default()).unwrap();
    let start = Start { now: Clock::start().now(), wall: WALL };
    let (found, media) = inspect(media, &DeviceConfig::default(), start, &mut |_| {}).unwrap();
    drop(media);
    assert!(fs::read(&path).unwrap() == before, "looking changed the file");
    found
}

fn value(number: u32) -> Vec<u8> {
    format!("<value {number}>").into_bytes().repeat(1 + number as usize % 900)
}

/// A device with records of many kinds, and how many keys it has.
fn used(directory: &TempDir) -> (Host, u64) {
    let mut host = Host::new(directory.path());
    for number in 0..900u32 {
        let key = format!("key {}", number % 300).into_bytes();
        let expiry = if number % 90 == 0 { Expiry::At(WALL.0 + 60_000) } else { Expiry::Never };
        host.store(&key, value(number), expiry);
        if number == 450 {
            host.device.request_checkpoint();
        }
    }
    for number in (0..300).step_by(10) {
        let key = Bytes::from(format!("key {number}"));
        host.ask(Command::Delete { key, condition: Condition::Always });
    }
    host.store(b"over two blocks", vec![5; 400_000], Expiry::Never);
    (host, 271)
}

fn is_clean(found: &Inspection, keys: u64) {
    assert_eq!(found.faults, Findings::default());
    assert_eq!(found.differences, Findings::default());
    let [first, ..] = found.namespaces;
    assert_eq!((first.counted, first.whole, first.damaged), (keys, keys, 0));
    assert_eq!((found.damaged_records, found.unreadable_blocks), (0, 0));
}

#[test]
fn a_device_that_was_shut_down_is_found_whole_and_stays_as_it_is() {
    let directory = TempDir::new().unwrap();
    let (host, keys) = used(&directory);
    host.shut_down();
    let found = inspect_file(&directory);
    is_clean(&found, keys);
    assert_eq!(found.checkpoint, CheckpointFound::Whole);
}

#[test]
fn a_device_that_was_killed_is_found_whole_and_stays_as_it_is() {
    let directory = TempDir::new().unwrap();
    let (host, keys) = used(&directory);
    drop(host);
    is_clean(&inspect_file(&directory), keys);
}

#[test]
fn nobody_looks_while_a_device_serves_and_two_may_look_together() {
    let directory = TempDir::new().unwrap();
    let (host, _) = used(&directory);
    let look = || FileMedia::open_to_read(directory.path(), FileOptions::default());
    assert!(look().unwrap_err().to_string().contains("in use"));
    host.shut_down();
    let first = look().unwrap();
    look().unwrap();
    let serve = FileMedia::open(directory.path(), FileOptions::default());
    assert!(serve.unwrap_err().to_string().contains("in use"));
    drop(first);
    FileMedia::open(directory.path(), FileOptions::default()).unwrap();
}

/// Turns a bit over in every place of the file that reads like this, those of older lives of a block included.
fn flip_behind(directory: &TempDir, words: &[u8], behind: usize) {
    let path = directory.path().join(FLASH_FILE_NAME);
    let mut bytes = fs::read(&path).unwrap();
    let places = bytes.windows(words.len()).enumerate().filter(|(_, window)| *window == words);
    let places: Vec<usize> = places.map(|(at, _)| at).collect();
    assert!(!places.is_empty());
    for at in places {
        bytes[at + behind] ^= 1;
    }
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_damaged_record_is_reported_with_its_place() {
    let directory = TempDir::new().unwrap();
    let mut host = Host::new(directory.path());
    host.store(b"damaged", b"a value that reads like nothing else".to_vec(), Expiry::Never);
    host.store(b"whole", b"another value".to_vec(), Expiry::Never);
    host.shut_down();
    flip_behind(&directory, b"a value that reads", 3);
    let found = inspect_file(&directory);
    assert_eq!(found.faults.count, 1);
    let (place, fault) = found.faults.first[0];
    assert_eq!((place.namespace, fault), (1, RecordFault::Damaged));
    let [first, ..] = found.namespaces;
    assert_eq!((first.counted, first.whole, first.damaged), (2, 1, 1));
}

#[test]
fn a_damaged_checkpoint_is_reported_and_the_records_are_found_without_it() {
    let directory = TempDir::new().unwrap();
    let (host, keys) = used(&directory);
    host.shut_down();
    flip_behind(&directory, b"HWCK", 20);
    let found = inspect_file(&directory);
    assert_eq!(found.checkpoint, CheckpointFound::Damaged);
    is_clean(&found, keys);
}

#[test]
fn a_key_that_the_checkpoint_forgot_is_a_difference() {
    let directory = TempDir::new().unwrap();
    let (mut host, keys) = used(&directory);
    let index = host.device.index_mut();
    let (hash, entry) = index.next(KeyHash(0)).unwrap();
    assert!(index.remove(hash, entry.address));
    host.shut_down();
    let found = inspect_file(&directory);
    assert_eq!((found.checkpoint, found.faults.count), (CheckpointFound::Whole, 0));
    assert_eq!(found.differences.count, 1);
    let forgotten = Difference { by_checkpoint: None, by_log: Some(Whereabouts::of(hash, entry)) };
    assert_eq!(found.differences.first, [forgotten]);
    assert_eq!(found.namespaces[0].counted, keys - 1);
}

#[test]
fn an_entry_that_names_another_keys_record_is_a_fault_and_a_difference() {
    let directory = TempDir::new().unwrap();
    let (mut host, _) = used(&directory);
    let index = host.device.index_mut();
    let (hash, entry) = index.next(KeyHash(0)).unwrap();
    let (_, other) = index.next(KeyHash(hash.0 + 1)).unwrap();
    assert!(index.replace(hash, entry.address, other));
    host.shut_down();
    let found = inspect_file(&directory);
    assert_eq!(found.faults.first, [(Whereabouts::of(hash, other), RecordFault::Foreign)]);
    let difference = Difference {
        by_checkpoint: Some(Whereabouts::of(hash, other)),
        by_log: Some(Whereabouts::of(hash, entry)),
    };
    assert_eq!(found.differences.first, [difference]);
}

#[test]
fn findings_beyond_the_first_are_counted() {
    let mut findings = Findings::default();
    for number in 0..100 {
        findings.add(number);
    }
    assert_eq!((findings.count, findings.first.len()), (100, KEPT_MAX));
}
