//! Tests of batches whose keys were hashed before their submission: no other command waits for a check of them, and their
//! outcome is that of the same batch without hashes.

#![expect(clippy::unwrap_used, reason = "a test fails if its setup fails")]

use bytes::Bytes;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    BatchWrite, FrontEndId, NamespaceId, ReadRelease, RecordExpiry, SsdCommand, SsdCompletion, SubmitError,
    WriteCondition,
};
use headwater_ssd::engine::{DeviceConfig, KeyedBatch, SsdDevice, StartTime};
use headwater_ssd::limits::{BATCH_WRITES_MAX, KEY_BYTES_MAX};
use headwater_ssd::media::FlashGeometry;
use headwater_ssd::media::memory::MemoryMedia;

const FRONT_END: FrontEndId = FrontEndId(1);
const WALL: UnixMillis = UnixMillis(1_000_000);
const BATCH: u64 = 7_000;
/// Keys that are hashed together.
const STEP: usize = 1_000;

fn open(config: DeviceConfig) -> SsdDevice<MemoryMedia> {
    let start = StartTime { now: Nanos::ZERO, wall: WALL };
    let media = MemoryMedia::erased(FlashGeometry::with_blocks(256)).unwrap();
    SsdDevice::open(media, config, start, &mut |_| {}).unwrap()
}

/// Polls until a completion is there, and returns it with the number of polls.
fn next(device: &mut SsdDevice<MemoryMedia>) -> (SsdCompletion, usize) {
    for polls in 1..100_000 {
        device.poll(Nanos::ZERO, WALL);
        if let Some(completion) = device.next_completion(FRONT_END) {
            return (completion, polls);
        }
    }
    panic!("no command completes");
}

fn put(number: usize, value: impl Into<Bytes>) -> BatchWrite {
    let (condition, expiry) = (WriteCondition::Always, RecordExpiry::Never);
    BatchWrite::Store { key: format!("key-{number}").into(), value: value.into(), condition, expiry }
}

fn submit_retrieve(device: &mut SsdDevice<MemoryMedia>, number: usize) {
    let (key, release) = (format!("key-{number}").into(), ReadRelease::WhenDurable);
    let command = SsdCommand::retrieve_whole(key, Vec::new().into(), release);
    device.submit(FRONT_END, NamespaceId::FIRST, 2, command).unwrap();
}

fn value_of(device: &mut SsdDevice<MemoryMedia>, number: usize) -> Vec<u8> {
    submit_retrieve(device, number);
    let completion = next(device).0;
    assert_eq!((completion.token, completion.status), (2, Status::SUCCESS));
    completion.sink
}

/// Makes a batch whose keys a device has hashed in steps.
fn batch_of(device: &SsdDevice<MemoryMedia>, writes: Vec<BatchWrite>) -> KeyedBatch {
    let mut batch = KeyedBatch::with_room(NamespaceId::FIRST, writes.len());
    for (number, write) in writes.into_iter().enumerate() {
        if number % STEP == 0 {
            device.hash_keys(&mut batch);
        }
        batch.push(write);
    }
    device.hash_keys(&mut batch);
    batch
}

#[test]
fn no_read_waits_for_the_check_of_a_batch() {
    let mut device = open(DeviceConfig::default());
    let other = BATCH_WRITES_MAX;
    device
        .submit(
            FRONT_END,
            NamespaceId::FIRST,
            1,
            SsdCommand::Batch { writes: vec![put(other, &b"other"[..])] },
        )
        .unwrap();
    next(&mut device);
    let writes = (0..BATCH_WRITES_MAX).map(|number| put(number, &b"new"[..])).collect();
    let batch = batch_of(&device, writes);
    device.submit_batch(FRONT_END, BATCH, batch).unwrap();
    let mut reads = 0;
    loop {
        submit_retrieve(&mut device, other);
        let (completion, polls) = next(&mut device);
        if completion.token == BATCH {
            assert_eq!(completion.status, Status::SUCCESS);
            break;
        }
        assert_eq!((&completion.sink[..], polls), (&b"other"[..], 1), "read {reads} waits");
        reads += 1;
    }
    assert!(reads > 100, "the batch is not carried out in parts");
    next(&mut device);
    // A read behind the batch waits for it, whichever of its keys it reads.
    let writes = (0..BATCH_WRITES_MAX).map(|number| put(number, &b"last"[..])).collect();
    let batch = batch_of(&device, writes);
    device.submit_batch(FRONT_END, BATCH, batch).unwrap();
    submit_retrieve(&mut device, BATCH_WRITES_MAX - 1);
    assert_eq!(next(&mut device).0.token, BATCH);
    assert_eq!(next(&mut device).0.sink, b"last");
}

#[test]
fn replaced_write_is_not_carried_out() {
    // The hashes of many keys are the same.
    for hash_bits in [12, 60] {
        let mut device = open(DeviceConfig { hash_bits, ..DeviceConfig::default() });
        let mut batch = batch_of(&device, (0..3_000).map(|number| put(number, vec![1; 9])).collect());
        let bytes = batch.bytes();
        batch.replace(5, put(5, &b"second"[..]));
        batch.replace(5, put(5, &b"third"[..]));
        assert_eq!(batch.bytes(), bytes - 4);
        device.submit_batch(FRONT_END, BATCH, batch).unwrap();
        assert_eq!(next(&mut device).0.status, Status::SUCCESS);
        assert_eq!(value_of(&mut device, 5), b"third");
        assert_eq!(value_of(&mut device, 2_999), [1; 9]);
        assert_eq!(device.stats().keys[0], 3_000);
    }
}

#[test]
fn limits_are_those_of_a_batch_without_hashes() {
    let many = || (0..20_000).map(|number| put(number, &b"v"[..]));
    let (condition, expiry) = (WriteCondition::Always, RecordExpiry::Never);
    let keyed = |key: Vec<u8>| {
        let (key, value) = (key.into(), Bytes::new());
        BatchWrite::Store { key, value, condition, expiry }
    };
    let cases = [
        (put(20_000, vec![0; 17 << 20]), Status::INVALID_VALUE_SIZE),
        (put(7, &b"w"[..]), Status::COMMAND_SEQUENCE_ERROR),
        (keyed(Vec::new()), Status::INVALID_KEY_SIZE),
        (keyed(vec![b'k'; KEY_BYTES_MAX + 1]), Status::INVALID_KEY_SIZE),
    ];
    for (write, status) in cases {
        let mut device = open(DeviceConfig::default());
        let batch = batch_of(&device, many().chain([write]).collect());
        let refused = match device.submit_batch(FRONT_END, BATCH, batch) {
            Err(SubmitError::Refused(refused)) => refused,
            Err(busy) => panic!("{busy}"),
            Ok(()) => next(&mut device).0.status,
        };
        assert_eq!(refused, status);
        assert_eq!(device.stats().keys[0], 0);
    }
}

#[test]
fn batch_that_another_device_hashed_is_checked_again() {
    let (mut device, other) =
        (open(DeviceConfig::default()), open(DeviceConfig { hash_bits: 8, ..DeviceConfig::default() }));
    let batch = batch_of(&other, (0..2_000).map(|number| put(number, &b"v"[..])).collect());
    device.submit_batch(FRONT_END, BATCH, batch).unwrap();
    submit_retrieve(&mut device, 1_999);
    assert_eq!(next(&mut device).0.token, BATCH);
    assert_eq!(next(&mut device).0.sink, b"v");
}
