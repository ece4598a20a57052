//! Tests of values that are read in parts: each reader reads the value that it found first, whatever is written,
//! and no reader costs a writer its room.

#![expect(clippy::unwrap_used, reason = "a test fails if its setup fails")]

use bytes::Bytes;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    FrontEndId, NamespaceId, RecordExpiry, SsdCommand, SsdCompletion, ValueReader, WriteCondition,
};
use headwater_ssd::engine::{DeviceConfig, SsdDevice, StartTime};
use headwater_ssd::media::FlashGeometry;
use headwater_ssd::media::memory::MemoryMedia;
use std::collections::BTreeMap;

const FRONT_END: FrontEndId = FrontEndId(1);
const WALL: UnixMillis = UnixMillis(1_000_000);
const KEYS: u8 = 6;

struct PartsHost {
    device: SsdDevice<MemoryMedia>,
    readers: u64,
}

impl PartsHost {
    /// Makes a device that keeps so many pages in memory.
    fn new(blocks: u32, frames_max: usize) -> Self {
        let media = MemoryMedia::erased(FlashGeometry::with_blocks(blocks)).unwrap();
        let start = StartTime { now: Nanos::ZERO, wall: WALL };
        let config = DeviceConfig { frames_max, ..DeviceConfig::default() };
        Self { device: SsdDevice::open(media, config, start, &mut |_| {}).unwrap(), readers: 0 }
    }

    fn run(&mut self, command: SsdCommand) -> SsdCompletion {
        self.device.submit(FRONT_END, NamespaceId::FIRST, 0, command).unwrap();
        for _ in 0..100_000 {
            self.device.poll(Nanos::ZERO, WALL);
            if let Some(completion) = self.device.next_completion(FRONT_END) {
                return completion;
            }
        }
        panic!("the command does not complete");
    }

    fn store(&mut self, key: u8, value: &[u8]) -> Status {
        let (condition, expiry) = (WriteCondition::Always, RecordExpiry::Never);
        let value = Bytes::copy_from_slice(value).into();
        self.run(SsdCommand::Store { key: name(key), value, condition, expiry }).status
    }

    fn open(&mut self, key: u8) -> (ValueReader, SsdCompletion) {
        self.readers += 1;
        let reader = ValueReader::new(self.readers);
        let completion = self.run(SsdCommand::OpenValue { key: name(key), reader: reader.clone() });
        (reader, completion)
    }

    /// Reads a part of a value: the first byte and the most of them.
    fn read(&mut self, reader: &ValueReader, (offset, bytes_max): (usize, u32)) -> SsdCompletion {
        let (reader, offset) = (reader.clone(), u32::try_from(offset).unwrap());
        self.run(SsdCommand::ReadPart { reader, offset, sink: b"old".to_vec(), bytes_max })
    }

    /// Reads the rest of a value in parts.
    fn read_rest(&mut self, reader: &ValueReader, length: usize) -> Vec<u8> {
        let mut value = Vec::new();
        while value.len() < length {
            let part = self.read(reader, (value.len(), 100_000));
            assert_eq!(part.status, Status::SUCCESS, "after {} of {length} bytes", value.len());
            value.extend(part.sink);
        }
        value
    }
}

fn name(key: u8) -> Bytes {
    Bytes::from(vec![key; 1 + usize::from(key)])
}

fn random_value(random: &mut fastrand::Rng, bytes_max: usize) -> Vec<u8> {
    let bytes = random.usize(0..bytes_max);
    std::iter::repeat_with(|| random.u8(..)).take(bytes).collect()
}

/// A reader that a test follows.
struct FollowedReader {
    reader: ValueReader,
    key: u8,
    value: Vec<u8>,
    read: usize,
    /// True if its key was written or removed since it was opened.
    changed: bool,
}

/// The readers of one run that came to an end.
#[derive(Debug, Default)]
struct ReaderCounts {
    /// Read to the end although their keys were changed.
    changed: u32,
    /// Ended early, because the device needed the room.
    gone: u32,
}

/// Writes, removes and reads in parts at random on a device of so many blocks.
fn read_while_writing(seed: u64, blocks: u32, value_bytes_max: usize) -> ReaderCounts {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut host = PartsHost::new(blocks, 1_024);
    let mut model: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
    let mut open: Vec<FollowedReader> = Vec::new();
    let mut counts = ReaderCounts::default();
    for step in 0..400 {
        let key = random.u8(0..KEYS);
        let change = |open: &mut Vec<FollowedReader>| {
            open.iter_mut().filter(|followed| followed.key == key).for_each(|one| one.changed = true);
        };
        match random.u8(0..10) {
            0..=3 => {
                let value = random_value(&mut random, value_bytes_max);
                assert_eq!(host.store(key, &value), Status::SUCCESS, "seed {seed}, step {step}");
                model.insert(key, value);
                change(&mut open);
            }
            4 if random.u8(0..4) == 0 => {
                assert_eq!(host.run(SsdCommand::Clear).status, Status::SUCCESS);
                model.clear();
                open.iter_mut().for_each(|one| one.changed = true);
            }
            4 => {
                host.run(SsdCommand::Delete { key: name(key), condition: WriteCondition::Always });
                model.remove(&key);
                change(&mut open);
            }
            5 | 6 if open.len() < 5 => {
                let (reader, completion) = host.open(key);
                let Some(value) = model.get(&key) else {
                    assert_eq!(completion.status, Status::KEY_DOES_NOT_EXIST, "seed {seed}, step {step}");
                    continue;
                };
                assert_eq!(completion.status, Status::SUCCESS, "seed {seed}, step {step}");
                assert_eq!(completion.value_bytes as usize, value.len(), "seed {seed}, step {step}");
                open.push(FollowedReader { reader, key, value: value.clone(), read: 0, changed: false });
            }
            7 if !open.is_empty() && random.u8(0..4) == 0 => {
                drop(open.swap_remove(random.usize(..open.len())));
            }
            _ if !open.is_empty() => {
                let at = random.usize(..open.len());
                let one = &mut open[at];
                let passed =
                    if random.u8(0..3) == 0 { random.usize(..=one.value.len() - one.read) } else { 0 };
                let offset = one.read + passed;
                let part = host.read(&one.reader, (offset, random.u32(1..300_000)));
                if part.status == Status::SEQUENCE_MISMATCH {
                    assert!(one.changed, "seed {seed}, step {step}: a value that nothing replaced is gone");
                    counts.gone += 1;
                    open.swap_remove(at);
                    continue;
                }
                assert_eq!(part.status, Status::SUCCESS, "seed {seed}, step {step}");
                let rest = &one.value[offset..];
                assert!(rest.starts_with(&part.sink), "seed {seed}, step {step}: another value's bytes");
                one.read = offset + part.sink.len();
                if one.read == one.value.len() {
                    counts.changed += u32::from(one.changed);
                    open.swap_remove(at);
                } else {
                    assert!(!part.sink.is_empty(), "seed {seed}, step {step}: an empty part");
                }
            }
            _ => {}
        }
    }
    counts
}

#[test]
fn each_reader_reads_the_value_that_it_found_first_whatever_is_written() {
    let seed = fastrand::u64(..);
    let mut changed = 0;
    for seed in (0..6).chain([seed]) {
        let counts = read_while_writing(seed, 80, 900_000);
        changed += counts.changed;
    }
    assert!(changed > 10, "only {changed} readers outlived their keys");
}

#[test]
fn readers_of_replaced_values_end_when_the_device_needs_their_room_and_no_write_fails() {
    let seed = fastrand::u64(..);
    let (mut gone, mut changed) = (0, 0);
    for seed in (100..106).chain([seed]) {
        let counts = read_while_writing(seed, 44, 600_000);
        (gone, changed) = (gone + counts.gone, changed + counts.changed);
    }
    assert!(gone > 0 && changed > 0, "{gone} readers ended early, and {changed} outlived their keys");
}

#[test]
fn reader_that_was_dropped_keeps_nothing_from_those_that_are_open() {
    let mut host = PartsHost::new(64, 1_024);
    let value = vec![7; 400_000];
    assert_eq!(host.store(0, &value), Status::SUCCESS);
    let (followed, opened) = host.open(0);
    assert_eq!(opened.status, Status::SUCCESS);
    // Each value is opened, replaced and dropped: together they would fill the device three times.
    for round in 0..120_u8 {
        assert_eq!(host.store(round % 4, &vec![round; 400_000]), Status::SUCCESS);
        let (dropped, _) = host.open(round % 4);
        assert_eq!(host.read(&dropped, (0, 10)).sink, [round; 10]);
    }
    assert!(host.read_rest(&followed, value.len()) == value);
}

#[test]
fn reader_that_is_not_open_or_open_already_is_refused() {
    let mut host = PartsHost::new(64, 1_024);
    assert_eq!(host.store(1, b"value"), Status::SUCCESS);
    assert_eq!(host.read(&ValueReader::new(9), (0, 10)).status, Status::INVALID_FIELD);
    let (reader, _) = host.open(1);
    let again = SsdCommand::OpenValue { key: name(1), reader: reader.clone() };
    assert_eq!(host.run(again).status, Status::INVALID_FIELD);
    let part = host.read(&reader, (0, 2));
    assert_eq!((part.status, &part.sink[..]), (Status::SUCCESS, &b"va"[..]));
    assert_eq!(host.read(&reader, (2, 100)).sink, b"lue");
    // The end of the value closed it.
    let part = host.read(&reader, (5, 100));
    assert_eq!((part.status, &part.sink[..]), (Status::INVALID_FIELD, &b""[..]));
}

#[test]
fn part_in_front_of_the_last_one_or_behind_the_value_is_refused_and_closes_the_reader() {
    let mut host = PartsHost::new(64, 1_024);
    // In the log, and in extents.
    for length in [1_000, 700_000] {
        let value: Vec<u8> = (0..=250).cycle().take(length).collect();
        assert_eq!(host.store(1, &value), Status::SUCCESS);
        for offset in [149, 0, length + 1] {
            let (reader, _) = host.open(1);
            let part = host.read(&reader, (100, 50));
            assert_eq!((part.status, &part.sink[..]), (Status::SUCCESS, &value[100..150]));
            let part = host.read(&reader, (offset, 50));
            assert_eq!((part.status, part.sink.len()), (Status::INVALID_FIELD, 0), "offset {offset}");
            assert_eq!(host.read(&reader, (150, 50)).status, Status::INVALID_FIELD, "offset {offset}");
        }
        // A part of no byte at the end ends the value.
        let (reader, _) = host.open(1);
        let part = host.read(&reader, (length, 50));
        assert_eq!((part.status, part.sink.len()), (Status::SUCCESS, 0));
        assert_eq!(host.read(&reader, (length, 50)).status, Status::INVALID_FIELD);
    }
}
