//! Tests of checkpoints of many keys that expire: their expiries are written in parts while keys come and go, and none is
//! lost.

#![expect(clippy::unwrap_used, reason = "a test fails if its setup fails")]

use bytes::Bytes;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    FrontEndId, NamespaceId, RecordExpiry, SsdCommand, SsdCompletion, WriteCondition,
};
use headwater_ssd::engine::{DeviceConfig, SsdDevice, StartTime};
use headwater_ssd::media::FlashGeometry;
use headwater_ssd::media::memory::MemoryMedia;

const FRONT_END: FrontEndId = FrontEndId(1);
const WALL: UnixMillis = UnixMillis(1_000_000);
/// All keys have expired.
const END: UnixMillis = UnixMillis(9_000_000);
const FIRST: NamespaceId = NamespaceId::FIRST;
const KEYS: u64 = 40_000;

fn open(media: MemoryMedia) -> SsdDevice<MemoryMedia> {
    let start = StartTime { now: Nanos::ZERO, wall: WALL };
    SsdDevice::open(media, DeviceConfig::default(), start, &mut |_| {}).unwrap()
}

fn next(device: &mut SsdDevice<MemoryMedia>) -> SsdCompletion {
    for _ in 0..100_000 {
        device.poll(Nanos::ZERO, WALL);
        if let Some(completion) = device.next_completion(FRONT_END) {
            return completion;
        }
    }
    panic!("no command completes");
}

/// Stores a key that expires at a time between `WALL` and `END`, spread by its number.
fn store(number: u64) -> SsdCommand {
    SsdCommand::Store {
        key: Bytes::from(format!("key-{number}")),
        value: b"v".to_vec().into(),
        condition: WriteCondition::Always,
        expiry: RecordExpiry::At(WALL.0 + 1 + number * 7_919 % 4_000_000),
    }
}

fn delete(number: u64) -> SsdCommand {
    SsdCommand::Delete { key: Bytes::from(format!("key-{number}")), condition: WriteCondition::Always }
}

/// Executes commands, many at a time.
fn run_all(device: &mut SsdDevice<MemoryMedia>, commands: impl IntoIterator<Item = SsdCommand>) {
    let mut in_flight = 0;
    for command in commands {
        while device.submit(FRONT_END, FIRST, 1, command.clone()).is_err() {
            assert_eq!(next(device).status, Status::SUCCESS);
            in_flight -= 1;
        }
        in_flight += 1;
    }
    for _ in 0..in_flight {
        assert_eq!(next(device).status, Status::SUCCESS);
    }
}

/// Returns the number of keys that are left when all have expired.
fn left_at_the_end(device: &mut SsdDevice<MemoryMedia>) -> u64 {
    for _ in 0..20_000 {
        device.poll(Nanos::ZERO, END);
    }
    device.keys(FIRST)
}

#[test]
fn every_key_expires_that_changed_while_its_checkpoint_was_written() {
    // A key that is in the checkpoint's index without an expiry stays for ever.
    for (polls, changes) in [(1, 0), (3, 50), (9, 200), (15, 1_000), (20, 2_000)] {
        let mut device = open(MemoryMedia::erased(FlashGeometry::with_blocks(256)).unwrap());
        run_all(&mut device, (0..KEYS).map(store));
        let before = device.stats().checkpoints;
        device.request_checkpoint();
        let mut number = KEYS;
        while device.stats().checkpoints == before {
            for _ in 0..polls {
                device.poll(Nanos::ZERO, WALL);
            }
            // Expiries are added in front of and behind the part that is written, and present ones removed or replaced.
            run_all(&mut device, (number..number + changes).map(store));
            run_all(&mut device, (0..changes).map(|n| store((number + n * 31) % KEYS)));
            run_all(&mut device, (0..changes / 2).map(|n| delete(number + n)));
            number += changes;
            assert!(number < 10 * KEYS, "the checkpoint does not end");
        }
        let mut device = open(device.into_media().after_power_cut());
        let keys = KEYS + (number - KEYS) / 2;
        assert_eq!(device.keys(FIRST), keys, "{polls} polls and {changes} changes between the parts");
        assert_eq!(left_at_the_end(&mut device), 0, "{polls} polls and {changes} changes between the parts");
    }
}
