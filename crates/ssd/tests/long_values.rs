//! Tests of long values and large batches: they are read in parts, and no other operation waits for all of them.

#![expect(clippy::unwrap_used, reason = "a test fails if its setup fails")]

use bytes::Bytes;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    BatchWrite, FrontEndId, NamespaceId, ReadCaching, ReadRelease, RecordExpiry, SsdCommand, SsdCompletion,
    SubmitError, WriteCondition,
};
use headwater_ssd::engine::{DeviceConfig, SsdDevice, StartTime, VictimPolicy};
use headwater_ssd::limits::{BATCH_BYTES_MAX, LOG_VALUE_BYTES_MAX, SHORT_RECORD_BYTES};
use headwater_ssd::media::FlashGeometry;
use headwater_ssd::media::memory::MemoryMedia;

const FRONT_END: FrontEndId = FrontEndId(1);
const WALL: UnixMillis = UnixMillis(1_000_000);
const MIB: usize = 1 << 20;

fn open(blocks: u32, config: DeviceConfig) -> SsdDevice<MemoryMedia> {
    let media = MemoryMedia::erased(FlashGeometry::with_blocks(blocks)).unwrap();
    let start = StartTime { now: Nanos::ZERO, wall: WALL };
    SsdDevice::open(media, config, start, &mut |_| {}).unwrap()
}

/// Returns the configuration of a device that keeps every value in the log.
fn in_log() -> DeviceConfig {
    DeviceConfig { extents_from: usize::MAX, ..DeviceConfig::default() }
}

fn submit(device: &mut SsdDevice<MemoryMedia>, token: u64, command: SsdCommand) {
    device.submit(FRONT_END, NamespaceId::FIRST, token, command).unwrap();
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

fn store(key: &'static [u8], value: Vec<u8>) -> SsdCommand {
    SsdCommand::Store {
        key: Bytes::from_static(key),
        value: value.into(),
        condition: WriteCondition::Always,
        expiry: RecordExpiry::Never,
    }
}

fn retrieve(key: &'static [u8], bytes_max: u32) -> SsdCommand {
    let release = ReadRelease::WhenDurable;
    SsdCommand::Retrieve {
        key: Bytes::from_static(key),
        sink: Vec::new().into(),
        offset: 0,
        bytes_max,
        caching: ReadCaching::ByLength,
        release,
    }
}

fn text(bytes: usize) -> Vec<u8> {
    (0..bytes as u64).map(|at| at.to_le_bytes()[0] ^ at.to_le_bytes()[1]).collect()
}

#[test]
fn short_reads_complete_between_the_parts_of_a_long_one() {
    let mut device = open(256, in_log());
    let long = text(LOG_VALUE_BYTES_MAX);
    for command in [store(b"long", long.clone()), store(b"short", b"s".to_vec())] {
        submit(&mut device, 1, command);
        assert_eq!(next(&mut device).0.status, Status::SUCCESS);
    }
    // The parts of two long reads take their turns.
    submit(&mut device, 2, retrieve(b"long", u32::MAX));
    for token in 100..120 {
        submit(&mut device, token, retrieve(b"short", u32::MAX));
        let (completion, polls) = next(&mut device);
        assert_eq!((completion.token, &completion.sink[..], polls), (token, &b"s"[..], 1));
    }
    let (completion, polls) = next(&mut device);
    assert_eq!((completion.token, completion.status), (2, Status::SUCCESS));
    assert!(completion.sink == long && polls > 5, "after {polls} polls");
    for bytes_max in [0, 1, 4_095, 600_000, 1 << 19, (1 << 19) + 1] {
        submit(&mut device, 3, retrieve(b"long", bytes_max));
        let (completion, _) = next(&mut device);
        assert!(completion.sink == long[..bytes_max as usize], "{bytes_max} bytes");
        assert_eq!(completion.value_bytes as usize, long.len());
    }
}

#[test]
fn long_read_gives_the_value_of_its_submission_or_none() {
    let mut device = open(256, in_log());
    let long = text(5 * MIB + 77);
    submit(&mut device, 1, store(b"long", long.clone()));
    next(&mut device);
    // A store of the same key waits until the value is read.
    submit(&mut device, 2, retrieve(b"long", u32::MAX));
    device.poll(Nanos::ZERO, WALL);
    submit(&mut device, 3, store(b"long", b"new".to_vec()));
    submit(&mut device, 4, retrieve(b"long", u32::MAX));
    let (completion, _) = next(&mut device);
    assert!(completion.token == 2 && completion.sink == long);
    assert_eq!(next(&mut device).0.token, 3);
    assert_eq!(next(&mut device).0.sink, b"new");
    // A removal of all keys does not wait.
    submit(&mut device, 5, store(b"long", long));
    next(&mut device);
    submit(&mut device, 6, retrieve(b"long", u32::MAX));
    (0..4).for_each(|_| {
        device.poll(Nanos::ZERO, WALL);
    });
    submit(&mut device, 7, SsdCommand::Clear);
    let both = [next(&mut device).0, next(&mut device).0];
    let read = both.iter().find(|completion| completion.token == 6).unwrap();
    assert_eq!((read.status, read.sink.len()), (Status::KEY_DOES_NOT_EXIST, 0));
}

#[test]
fn value_of_a_batch_that_moves_while_it_is_read_is_whole() {
    // The oldest block is collected first, whatever lives in it.
    let mut device = open(40, DeviceConfig { victim: VictimPolicy::Fifo, ..in_log() });
    let long = text(2 * MIB + 77);
    let mut moved_while_read = 0;
    for round in 0..8 {
        let write = |key, value: &[u8]| BatchWrite::Store {
            key: Bytes::from_static(key),
            value: Bytes::copy_from_slice(value),
            condition: WriteCondition::Always,
            expiry: RecordExpiry::Never,
        };
        let writes = vec![write(b"long", &long), write(b"short", b"s")];
        submit(&mut device, 1, SsdCommand::Batch { writes });
        assert_eq!(next(&mut device).0.status, Status::SUCCESS);
        let before_round = device.stats().moved_bytes;
        while device.stats().moved_bytes - before_round < 4 * MIB as u64 {
            let before = device.stats().moved_bytes;
            submit(&mut device, 2, retrieve(b"long", u32::MAX));
            device.poll(Nanos::ZERO, WALL);
            let mut read = None;
            while read.is_none() {
                submit(&mut device, 3, store(b"other", text(300_000)));
                let completion = next(&mut device).0;
                read = if completion.token == 2 {
                    assert_eq!(next(&mut device).0.status, Status::SUCCESS);
                    Some(completion)
                } else {
                    device.next_completion(FRONT_END)
                };
            }
            let read = read.unwrap();
            assert_eq!((read.token, read.status), (2, Status::SUCCESS), "round {round}");
            assert!(read.sink == long, "round {round}");
            moved_while_read += device.stats().moved_bytes - before;
        }
    }
    assert!(moved_while_read > 0, "the collector moved nothing");
}

/// Cuts the power, and opens the device again.
fn reopen(device: SsdDevice<MemoryMedia>) -> SsdDevice<MemoryMedia> {
    let start = StartTime { now: Nanos::ZERO, wall: WALL };
    let media = device.into_media().after_power_cut();
    SsdDevice::open(media, DeviceConfig::default(), start, &mut |_| {}).unwrap()
}

fn value_of(device: &mut SsdDevice<MemoryMedia>, key: &'static [u8]) -> Vec<u8> {
    submit(device, 999, retrieve(key, u32::MAX));
    let completion = next(device).0;
    assert_eq!(completion.token, 999);
    completion.sink
}

#[test]
fn other_commands_complete_between_the_parts_of_a_long_store() {
    let mut device = open(256, in_log());
    let (old, long) = (text(3 * MIB), text(LOG_VALUE_BYTES_MAX));
    for command in [store(b"long", old.clone()), store(b"short", b"s".to_vec())] {
        submit(&mut device, 1, command);
        next(&mut device);
    }
    submit(&mut device, 2, store(b"long", long.clone()));
    // Reads, stores and removals of other keys, each durable before the next one.
    for token in 100..105 {
        submit(&mut device, token, retrieve(b"short", u32::MAX));
        assert_eq!((next(&mut device).0.token, device.stats().in_flight), (token, 1));
        submit(&mut device, token, store(b"short", b"s".to_vec()));
        assert_eq!((next(&mut device).0.token, device.stats().in_flight), (token, 1));
        let key = Bytes::from_static(b"short");
        submit(&mut device, token, SsdCommand::Delete { key, condition: WriteCondition::Always });
        assert_eq!((next(&mut device).0.token, device.stats().in_flight), (token, 1));
        submit(&mut device, token, store(b"short", b"s".to_vec()));
        next(&mut device);
    }
    // A read of the same key waits for all of it.
    submit(&mut device, 3, retrieve(b"long", u32::MAX));
    let (completion, _) = next(&mut device);
    assert_eq!((completion.token, completion.status), (2, Status::SUCCESS));
    assert!(next(&mut device).0.sink == long);
    let mut device = reopen(device);
    assert!(value_of(&mut device, b"long") == long);
    assert_eq!(value_of(&mut device, b"short"), b"s");
}

#[test]
fn power_cut_in_a_long_store_leaves_the_value_before_it() {
    let (old, long) = (text(2 * MIB), text(5 * MIB));
    // Beside writes that are made durable between its parts.
    for polls in [1, 2, 4, 7] {
        let mut device = open(256, in_log());
        submit(&mut device, 1, store(b"long", old.clone()));
        next(&mut device);
        submit(&mut device, 2, store(b"long", long.clone()));
        for poll in 0..polls {
            device.poll(Nanos::ZERO, WALL);
            if poll % 3 == 0 {
                submit(&mut device, 3, store(b"short", vec![poll; 100]));
                assert_eq!(next(&mut device).0.token, 3);
            }
        }
        let mut device = reopen(device);
        assert!(value_of(&mut device, b"long") == old, "after {polls} polls");
        assert_eq!(value_of(&mut device, b"short"), vec![(polls - 1) / 3 * 3; 100]);
        // What was half built is gone: the same store again is whole.
        submit(&mut device, 4, store(b"long", long.clone()));
        assert_eq!(next(&mut device).0.status, Status::SUCCESS);
        assert!(value_of(&mut reopen(device), b"long") == long);
    }
}

#[test]
fn long_records_agree_with_a_model_wherever_they_begin() {
    let seed = 17;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut device = open(96, DeviceConfig { frames_max: 2_048, ..DeviceConfig::default() });
    let keys: [&'static [u8]; 4] = [b"a", b"b", b"c", b"d"];
    let mut model: [Vec<u8>; 4] = Default::default();
    let mut collected = 0;
    for step in 0..150 {
        let at = random.usize(0..4);
        let long =
            [262_145, 262_144 + 4_096 - 49, 524_288, 524_289, 1_000_000, random.usize(262_145..2_000_000)];
        let bytes = if random.bool() { long[random.usize(0..long.len())] } else { random.usize(0..9_000) };
        let value: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(bytes).collect();
        if random.u8(0..4) == 0 {
            let other = (at + 1) % 4;
            let writes = [(at, &value), (other, &value)].map(|(number, value)| BatchWrite::Store {
                key: Bytes::from_static(keys[number]),
                value: value.clone().into(),
                condition: WriteCondition::Always,
                expiry: RecordExpiry::Never,
            });
            submit(&mut device, 1, SsdCommand::Batch { writes: writes.into() });
            model[other].clone_from(&value);
        } else {
            submit(&mut device, 1, store(keys[at], value.clone()));
        }
        model[at] = value;
        assert_eq!(next(&mut device).0.status, Status::SUCCESS, "seed {seed} step {step}");
        if step % 50 == 49 {
            collected += device.stats().collected;
            device = reopen(device);
        }
        for (key, value) in keys.iter().zip(&model) {
            assert!(value_of(&mut device, key) == *value, "seed {seed} step {step}");
        }
    }
    assert!(collected > 0, "the collector moved nothing");
}

#[test]
fn long_store_without_room_returns_its_memory() {
    let config = DeviceConfig { frames_max: 2_048, ..DeviceConfig::default() };
    let mut device = open(32, config);
    let mut refused = 0;
    // Each would hold a quarter of the frames.
    for number in 0..40u32 {
        let key = Bytes::from(format!("key-{number}"));
        let (condition, expiry) = (WriteCondition::Always, RecordExpiry::Never);
        submit(&mut device, 1, SsdCommand::Store { key, value: text(MIB).into(), condition, expiry });
        let status = next(&mut device).0.status;
        refused += u32::from(status == Status::CAPACITY_EXCEEDED);
        assert!(matches!(status, Status::SUCCESS | Status::CAPACITY_EXCEEDED), "{status:?}");
    }
    assert!(refused > 30, "{refused} stores were refused");
    submit(&mut device, 2, SsdCommand::Clear);
    assert_eq!(next(&mut device).0.status, Status::SUCCESS);
    submit(&mut device, 3, store(b"long", text(2 * MIB)));
    assert_eq!(next(&mut device).0.status, Status::SUCCESS);
    assert!(value_of(&mut device, b"long") == text(2 * MIB));
}

/// Returns a batch of so many values of one length.
fn batch(count: usize, value_bytes: usize) -> Vec<BatchWrite> {
    let writes = (0..count).map(|number| BatchWrite::Store {
        key: Bytes::from(format!("{number:0>8}")),
        value: vec![b'v'; value_bytes].into(),
        condition: WriteCondition::Always,
        expiry: RecordExpiry::Never,
    });
    writes.collect()
}

#[test]
fn batch_is_written_up_to_the_limit_that_the_device_names() {
    for frames_max in [1_024, 4_096, 16_384, 65_536] {
        let mut device = open(1_024, DeviceConfig { frames_max, ..DeviceConfig::default() });
        let bytes_max = device.batch_bytes_max();
        assert_eq!(bytes_max, BATCH_BYTES_MAX.min(frames_max / 2 * 4_096));
        let record = batch(1, 0)[0].bytes();
        for value_bytes in [500_000, 5_000] {
            let count = bytes_max / (record + value_bytes);
            let mut writes = batch(count, value_bytes);
            let used: usize = writes.iter().map(BatchWrite::bytes).sum();
            writes.extend(batch(count + 1, bytes_max - used - record).pop());
            for _ in 0..4 {
                // Reads keep pages in memory at the same time.
                submit(&mut device, 1, SsdCommand::Batch { writes: writes.clone() });
                submit(&mut device, 2, retrieve(b"00000000", u32::MAX));
                for _ in 0..2 {
                    assert_eq!(next(&mut device).0.status, Status::SUCCESS, "{frames_max} frames");
                }
            }
            writes.extend(batch(count + 2, 0).pop());
            let refused =
                device.submit(FRONT_END, NamespaceId::FIRST, 3, SsdCommand::Batch { writes }).unwrap_err();
            assert_eq!(refused, SubmitError::Refused(Status::COMMAND_SIZE_LIMIT));
        }
    }
}

#[test]
fn value_of_a_batch_is_no_longer_than_one_in_the_log() {
    let mut device = open(256, DeviceConfig::default());
    let writes = batch(1, LOG_VALUE_BYTES_MAX + 1);
    let refused = device.submit(FRONT_END, NamespaceId::FIRST, 1, SsdCommand::Batch { writes }).unwrap_err();
    assert_eq!(refused, SubmitError::Refused(Status::INVALID_VALUE_SIZE));
    submit(&mut device, 2, SsdCommand::Batch { writes: batch(1, LOG_VALUE_BYTES_MAX) });
    assert_eq!(next(&mut device).0.status, Status::SUCCESS);
}

#[test]
fn bytes_of_a_record_follow_its_value() {
    let mut device = open(256, DeviceConfig::default());
    let bytes = |device: &SsdDevice<MemoryMedia>| device.record_bytes(NamespaceId::FIRST, b"key");
    assert_eq!(bytes(&device), 0);
    for value_bytes in [0, 100, 5 * MIB, LOG_VALUE_BYTES_MAX, 3] {
        submit(&mut device, 1, store(b"key", vec![0; value_bytes]));
        next(&mut device);
        let list = value_bytes / 262_144 * 16;
        assert!((value_bytes..value_bytes + list + 80).contains(&bytes(&device)), "{value_bytes} bytes");
    }
    assert_eq!(device.record_bytes(NamespaceId(2), b"key"), 0);
    let key = Bytes::from_static(b"key");
    submit(&mut device, 2, SsdCommand::Delete { key, condition: WriteCondition::Always });
    next(&mut device);
    assert_eq!(bytes(&device), 0);
}

#[test]
fn namespace_knows_if_all_its_records_are_short() {
    let mut device = open(256, DeviceConfig::default());
    let start = StartTime { now: Nanos::ZERO, wall: WALL };
    let only_short = |device: &SsdDevice<MemoryMedia>| device.has_only_short_records(NamespaceId::FIRST);
    assert!(only_short(&device));
    // Each write with what it makes of the answer, and with the answer after a restart.
    let steps: [(SsdCommand, bool); 6] = [
        (store(b"a", vec![0; 300]), true),
        (store(b"a", vec![0; SHORT_RECORD_BYTES]), false),
        (store(b"b", vec![0; 5 * MIB]), false),
        (store(b"a", vec![0; 10]), false),
        (SsdCommand::Delete { key: Bytes::from_static(b"b"), condition: WriteCondition::Always }, true),
        (SsdCommand::Clear, true),
    ];
    for (at, (command, short)) in steps.into_iter().enumerate() {
        submit(&mut device, 1, command);
        assert_eq!(next(&mut device).0.status, Status::SUCCESS, "step {at}");
        assert_eq!(only_short(&device), short, "step {at}");
        let media = device.into_media().after_power_cut();
        device = SsdDevice::open(media, DeviceConfig::default(), start, &mut |_| {}).unwrap();
        assert_eq!(only_short(&device), short, "step {at}, opened again");
    }
}
