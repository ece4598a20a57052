//! Reads of parts of values: of short ones, of long ones in the log, and of those in extents, which read only the pages that hold
//! the part, and keep them in device memory only where the command says so.

#![expect(clippy::unwrap_used, reason = "a test fails if its setup fails")]

use bytes::Bytes;
use headwater_dma::iova::{ClientMemory, Iova};
use headwater_dma::mover::policy::PolicyConfig;
use headwater_dma::mover::{MoveChannel, Mover, SoftwareChannel};
use headwater_host::clock::{Clock, Nanos, UnixMillis};
use headwater_host::shared_memory::SharedMemory;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    FrontEndId, NamespaceId, ReadCaching, ReadRelease, RecordExpiry, SsdCommand, SsdCompletion, ValueReader,
    ValueSink, WriteCondition,
};
use headwater_ssd::engine::{DeviceConfig, SsdDevice, StartTime};
use headwater_ssd::media::file::{FileMedia, FileOptions};
use headwater_ssd::media::memory::MemoryMedia;
use headwater_ssd::media::{FlashGeometry, Media};
use std::path::Path;
use tempfile::TempDir;

const FRONT_END: FrontEndId = FrontEndId(1);
const WALL: UnixMillis = UnixMillis(1_000_000);
const START: StartTime = StartTime { now: Nanos::ZERO, wall: WALL };
const EXTENT: usize = 262_144;
/// 64 extents, and a rest that lies in the record.
const LONGEST: usize = (16 << 20) + 1_000;
const WHOLE: (usize, usize) = (0, 256 << 20);

/// Returns a folder on the disk and one in memory, whose files have another I/O path.
fn folders() -> [TempDir; 2] {
    [TempDir::new().unwrap(), TempDir::new_in("/dev/shm").unwrap()]
}

fn memory_device(config: DeviceConfig) -> SsdDevice<MemoryMedia> {
    let media = MemoryMedia::erased(FlashGeometry::with_blocks(256)).unwrap();
    SsdDevice::open(media, config, START, &mut |_| {}).unwrap()
}

fn file_device(folder: &Path, config: DeviceConfig) -> SsdDevice<FileMedia> {
    let options = FileOptions::default();
    let media = FileMedia::create(folder, FlashGeometry::with_blocks(256), [7; 16], options).unwrap();
    SsdDevice::open(media, config, START, &mut |_| {}).unwrap()
}

/// Returns the configuration of a device that keeps every value in the log.
fn in_log() -> DeviceConfig {
    DeviceConfig { extents_from: usize::MAX, ..DeviceConfig::default() }
}

fn next<M: Media>(device: &mut SsdDevice<M>) -> SsdCompletion {
    for _ in 0..100_000_000 {
        device.poll(Nanos::ZERO, WALL);
        if let Some(completion) = device.next_completion(FRONT_END) {
            return completion;
        }
    }
    panic!("no command completes");
}

fn submit<M: Media>(device: &mut SsdDevice<M>, token: u64, command: SsdCommand) {
    device.submit(FRONT_END, NamespaceId::FIRST, token, command).unwrap();
}

fn store(key: &str, value: &[u8]) -> SsdCommand {
    SsdCommand::Store {
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: value.to_vec().into(),
        condition: WriteCondition::Always,
        expiry: RecordExpiry::Never,
    }
}

fn put<M: Media>(device: &mut SsdDevice<M>, key: &str, value: &[u8]) {
    submit(device, 1, store(key, value));
    assert_eq!(next(device).status, Status::SUCCESS);
}

/// Returns a read of bytes of a value: the first one and the most of them.
fn retrieve(
    key: &str,
    sink: ValueSink,
    (offset, bytes_max): (usize, usize),
    caching: ReadCaching,
) -> SsdCommand {
    SsdCommand::Retrieve {
        key: Bytes::copy_from_slice(key.as_bytes()),
        sink,
        offset: u32::try_from(offset).unwrap(),
        bytes_max: u32::try_from(bytes_max).unwrap(),
        caching,
        release: ReadRelease::WhenDurable,
    }
}

fn text(bytes: usize, salt: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(salt);
    let mut text = vec![0; bytes];
    random.fill(&mut text);
    text
}

fn part_of(value: &[u8], (offset, bytes_max): (usize, usize)) -> &[u8] {
    let rest = value.get(offset..).unwrap_or_default();
    &rest[..rest.len().min(bytes_max)]
}

/// Reads a part of a value, and checks it. Returns the pages that the read waited for.
#[track_caller]
fn check<M: Media>(
    device: &mut SsdDevice<M>,
    (key, value): (&str, &[u8]),
    part: (usize, usize),
    caching: ReadCaching,
) -> u64 {
    let before = device.stats().cache_misses;
    submit(device, 2, retrieve(key, Vec::new().into(), part, caching));
    let found = next(device);
    assert_eq!((found.status, found.value_bytes as usize), (Status::SUCCESS, value.len()), "{part:?}");
    assert!(found.sink == part_of(value, part), "{part:?} of {} bytes", value.len());
    device.stats().cache_misses - before
}

/// Reads a part of a value into client memory, and checks it and the memory behind it.
#[track_caller]
fn check_into<M: Media>(device: &mut SsdDevice<M>, (key, value): (&str, &[u8]), part: (usize, usize)) {
    const MEMORY: usize = 1 << 20;
    let mut memory = ClientMemory::new();
    memory.register(Iova(0), SharedMemory::anonymous(MEMORY).unwrap()).unwrap();
    let whole = memory.resolve(Iova(0), MEMORY as u64).unwrap();
    assert_eq!(whole.copy_out(0, &vec![0xEE; MEMORY]), MEMORY);
    let bytes = part.1.clamp(1, 700_000);
    let into = memory.resolve(Iova(77), bytes as u64).unwrap();
    submit(device, 2, retrieve(key, ValueSink::Client(into), (part.0, WHOLE.1), ReadCaching::ByLength));
    let found = next(device);
    assert_eq!((found.status, found.value_bytes as usize), (Status::SUCCESS, value.len()), "{part:?}");
    let wanted = part_of(value, (part.0, bytes));
    let (mut read, mut expected) = (vec![0; MEMORY], vec![0xEE; MEMORY]);
    expected[77..77 + wanted.len()].copy_from_slice(wanted);
    assert_eq!(whole.copy_in(0, &mut read), MEMORY);
    assert!(read == expected, "{part:?} of {} bytes", value.len());
}

/// Stores values of many lengths, and reads parts of them: at both ends, over the borders of pages, extents and the parts that a
/// command is carried out in, and from the end of the value on.
fn check_lengths<M: Media>(device: &mut SsdDevice<M>, lengths: &[usize]) {
    for (salt, &bytes) in (0..).zip(lengths) {
        let value = text(bytes, salt);
        put(device, "key", &value);
        let ends = [bytes.saturating_sub(1), bytes, bytes + 1, u32::MAX as usize];
        let borders = [0, 1, 4_095, 4_096, EXTENT - 3, EXTENT, 2 * EXTENT - 1, 2 * EXTENT + 4_097, bytes / 2];
        for offset in borders.into_iter().chain(ends) {
            for bytes_max in [0, 1, 10, 4_096, 70_001, 600_000, WHOLE.1] {
                check(device, ("key", &value), (offset, bytes_max), ReadCaching::ByLength);
            }
            for bytes_max in [1, 4_097, 700_000] {
                check_into(device, ("key", &value), (offset, bytes_max));
            }
        }
    }
}

const SHORT: [usize; 6] = [0, 1, 100, 3_900, 9_000, 60_000];

#[test]
fn parts_of_values_in_the_log_read_back() {
    let lengths = [&SHORT[..], &[520_000, 1_100_000]].concat();
    check_lengths(&mut memory_device(in_log()), &lengths);
    let folder = TempDir::new_in("/dev/shm").unwrap();
    check_lengths(&mut file_device(folder.path(), in_log()), &lengths);
}

#[test]
fn parts_of_values_in_extents_read_back() {
    let lengths = [&SHORT[..], &[EXTENT, EXTENT + 1, 3 * EXTENT + 4_097, 5 * EXTENT - 1]].concat();
    check_lengths(&mut memory_device(DeviceConfig::default()), &lengths);
    for folder in folders() {
        check_lengths(&mut file_device(folder.path(), DeviceConfig::default()), &lengths);
    }
}

#[test]
fn parts_of_values_in_extents_are_moved_by_channels() {
    let folder = TempDir::new_in("/dev/shm").unwrap();
    let mut device = file_device(folder.path(), DeviceConfig::default());
    device.set_mover(mover_with_thread());
    check_lengths(&mut device, &[3 * EXTENT + 4_097]);
}

fn mover_with_thread() -> Mover {
    let clock = Clock::start();
    let channel = SoftwareChannel::start(clock, Nanos::from_millis(60_000)).unwrap();
    let channels: Vec<Box<dyn MoveChannel>> = vec![Box::new(channel)];
    Mover::with_channels(channels, PolicyConfig::of_software_channels(), clock)
}

#[test]
fn a_part_of_a_value_in_extents_reads_the_pages_that_hold_it_and_no_other() {
    for folder in folders() {
        let mut device = file_device(folder.path(), DeviceConfig::default());
        let value = text(LONGEST, 3);
        put(&mut device, "long", &value);
        // The record comes into device memory.
        check(&mut device, ("long", &value), (0, 1), ReadCaching::ByLength);
        for (offset, bytes, pages) in [
            (0, 0, 0),
            (0, 1, 1),
            (4_095, 1, 1),
            (4_095, 2, 2),
            (4_096, 4_096, 1),
            (5 * EXTENT - 1, 2, 2),
            (7 * EXTENT + 100, 65_536, 17),
            // In several parts, none of which reads a page of another one.
            (3 * EXTENT + 100, 3 << 20, 769),
            (16 << 20, 1_000, 0),
            ((16 << 20) - 5, 10, 1),
            (LONGEST, 10, 0),
            (0, LONGEST, 4_096),
        ] {
            let read = check(&mut device, ("long", &value), (offset, bytes), ReadCaching::ByLength);
            assert_eq!(read, pages, "{bytes} bytes from {offset} on");
        }
    }
}

/// Reads parts of a value by the reader of this number, each from an offset on, and checks them. Returns the pages that the parts
/// waited for.
#[track_caller]
fn check_reader<M: Media>(
    device: &mut SsdDevice<M>,
    (key, value, number): (&str, &[u8], u64),
    parts: &[(usize, usize)],
) -> u64 {
    let reader = ValueReader::new(number);
    let open = Bytes::copy_from_slice(key.as_bytes());
    submit(device, 3, SsdCommand::OpenValue { key: open, reader: reader.clone() });
    let opened = next(device);
    assert_eq!((opened.status, opened.value_bytes as usize), (Status::SUCCESS, value.len()));
    let before = device.stats().cache_misses;
    for &(offset, bytes) in parts {
        let (reader, bytes_max) = (reader.clone(), u32::try_from(bytes).unwrap());
        let offset_field = u32::try_from(offset).unwrap();
        let part = SsdCommand::ReadPart { reader, offset: offset_field, sink: Vec::new(), bytes_max };
        submit(device, 4, part);
        let found = next(device);
        assert_eq!(found.status, Status::SUCCESS, "{key}: {bytes} bytes from {offset} on");
        let wanted = part_of(value, (offset, bytes));
        let is_front = wanted.starts_with(&found.sink) && found.sink.is_empty() == wanted.is_empty();
        assert!(is_front, "{key}: {bytes} bytes from {offset} on are {} other ones", found.sink.len());
    }
    device.stats().cache_misses - before
}

#[test]
fn a_reader_passes_over_what_lies_between_its_parts() {
    for folder in folders() {
        let mut device = file_device(folder.path(), DeviceConfig::default());
        let value = text(LONGEST, 9);
        put(&mut device, "long", &value);
        // The record comes into device memory.
        check(&mut device, ("long", &value), (0, 1), ReadCaching::ByLength);
        let far = (50 * EXTENT + 5, 200_000);
        let cases: [(&[(usize, usize)], u64); 5] = [
            (&[far], 49),
            (&[(4_095, 2), far, (LONGEST - 10, 10)], 51),
            (&[(EXTENT - 1, 1), (EXTENT, 1), (2 * EXTENT + 4_096, 4_096)], 3),
            (&[((16 << 20) + 1, 999)], 0),
            (&[(LONGEST, 10)], 0),
        ];
        for (number, (parts, pages)) in (1..).zip(cases) {
            let read = check_reader(&mut device, ("long", &value, number), parts);
            assert_eq!(read, pages, "{parts:?}");
        }
    }
}

#[test]
fn random_parts_of_a_reader_are_those_of_the_value() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let folder = TempDir::new_in("/dev/shm").unwrap();
    let mut in_extents = file_device(folder.path(), DeviceConfig::default());
    let mut in_log = memory_device(in_log());
    let (mut number, key) = (0, format!("seed {seed}"));
    for bytes in [1, 4_096, 60_000, EXTENT - 1, EXTENT, EXTENT + 1, 3 * EXTENT, 5 * EXTENT + 4_097] {
        let value = text(bytes, seed);
        put(&mut in_extents, &key, &value);
        put(&mut in_log, &key, &value);
        for _ in 0..12 {
            let (mut parts, mut at) = (Vec::new(), 0);
            while at < bytes && parts.len() < 8 {
                at += random.usize(..=(bytes - at) / 2);
                let part = random.usize(1..=300_000);
                parts.push((at, part));
                at += part;
            }
            number += 1;
            check_reader(&mut in_extents, (&key, &value, number), &parts);
            check_reader(&mut in_log, (&key, &value, number), &parts);
        }
    }
}

#[test]
fn a_part_is_of_one_value_while_the_value_is_overwritten() {
    for folder in folders() {
        let mut device = file_device(folder.path(), DeviceConfig::default());
        let values = [text(LONGEST / 4, 1), text(LONGEST / 4, 2)];
        put(&mut device, "key", &values[0]);
        let part = (2 * EXTENT - 700, (1 << 20) + 5);
        for round in 0..6 {
            let caching = if round % 3 == 0 { ReadCaching::Keep } else { ReadCaching::ByLength };
            let (old, new) = (&values[round % 2], &values[(round + 1) % 2]);
            submit(&mut device, 10, retrieve("key", Vec::new().into(), part, caching));
            submit(&mut device, 11, store("key", new));
            submit(&mut device, 12, retrieve("key", Vec::new().into(), part, caching));
            for _ in 0..3 {
                let done = next(&mut device);
                assert_eq!(done.status, Status::SUCCESS, "command {}", done.token);
                match done.token {
                    10 => assert!(done.sink == part_of(old, part), "not the value before the store"),
                    12 => assert!(done.sink == part_of(new, part), "not the value behind the store"),
                    _ => {}
                }
            }
        }
    }
}

#[test]
fn pages_stay_in_device_memory_where_a_read_keeps_them() {
    for folder in folders() {
        let mut device = file_device(folder.path(), DeviceConfig::default());
        check_kept(&mut device);
    }
}

#[test]
fn pages_stay_where_a_read_keeps_them_beside_channels() {
    let folder = TempDir::new_in("/dev/shm").unwrap();
    let mut device = file_device(folder.path(), DeviceConfig::default());
    device.set_mover(mover_with_thread());
    check_kept(&mut device);
}

fn check_kept(device: &mut SsdDevice<FileMedia>) {
    let (by_length, keep) = (ReadCaching::ByLength, ReadCaching::Keep);
    let value = text(3 * EXTENT + 5_000, 4);
    put(device, "key", &value);
    check(device, ("key", &value), (0, 1), by_length);
    for _ in 0..2 {
        assert_eq!(check(device, ("key", &value), WHOLE, by_length), 192, "the pages stayed");
    }
    let border = (EXTENT - 10, 20);
    assert_eq!(check(device, ("key", &value), border, keep), 2);
    assert_eq!(check(device, ("key", &value), border, by_length), 0, "the pages did not stay");
    assert_eq!(check(device, ("key", &value), (EXTENT, 1), by_length), 0);
    assert_eq!(check(device, ("key", &value), (EXTENT - 4_097, 1), by_length), 1);
    // A part of which a page is missing is read as a whole.
    assert_eq!(check(device, ("key", &value), WHOLE, keep), 192);
    assert_eq!(check(device, ("key", &value), WHOLE, keep), 0, "the pages did not stay");
    assert_eq!(check(device, ("key", &value), WHOLE, by_length), 0);
    check_into(device, ("key", &value), (EXTENT - 10, 700_000));
    // A new value has other pages.
    let new = text(3 * EXTENT + 5_000, 5);
    put(device, "key", &new);
    check(device, ("key", &new), (0, 1), by_length);
    assert_eq!(check(device, ("key", &new), WHOLE, by_length), 192);
}

#[test]
fn kept_pages_give_way_in_the_least_device_memory() {
    for folder in folders() {
        let config = DeviceConfig { frames_max: 256, ..DeviceConfig::default() };
        let mut device = file_device(folder.path(), config);
        let keys = ["a", "b", "c"];
        let values: Vec<Vec<u8>> = (0..3).map(|salt| text(5 * EXTENT + 77, salt)).collect();
        keys.iter().zip(&values).for_each(|(key, value)| put(&mut device, key, value));
        let mut random = fastrand::Rng::with_seed(6);
        for round in 0..40 {
            // Several at once, whose pages do not all find room.
            let mut expected = Vec::new();
            for token in 0..8_u64 {
                let which = random.usize(..3);
                let part = (random.usize(..5 * EXTENT), random.usize(..2 * EXTENT));
                let caching = if random.bool() { ReadCaching::Keep } else { ReadCaching::ByLength };
                submit(&mut device, token, retrieve(keys[which], Vec::new().into(), part, caching));
                expected.push(part_of(&values[which], part));
            }
            for _ in 0..expected.len() {
                let done = next(&mut device);
                assert_eq!(done.status, Status::SUCCESS, "round {round}");
                let token = usize::try_from(done.token).unwrap();
                assert!(done.sink == expected[token], "round {round}, command {token}");
            }
            // A store takes frames too, and blocks whose pages were kept.
            if round % 8 == 7 {
                put(&mut device, "other", &text(2 * EXTENT, round));
            }
        }
    }
}
