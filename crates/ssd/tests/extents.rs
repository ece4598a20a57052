//! Values in extents: they read back whole and in ranges, take whole blocks beside the log, give them back when they are
//! replaced, and survive power cuts.

#![expect(clippy::unwrap_used, reason = "a test fails if its setup fails")]

use bytes::Bytes;
use headwater_dma::iova::{ClientMemory, Iova};
use headwater_dma::mover::policy::PolicyConfig;
use headwater_dma::mover::{ChannelCounters, DsaChannel, DsaConfig, MoveChannel, Mover, SoftwareChannel};
use headwater_host::clock::{Clock, Nanos, UnixMillis};
use headwater_host::dsa::{
    DsaOpcode, DsaOpcodeSet, FaultSource, PortalFault, PortalKind, SoftwarePortal, WorkQueueMode,
};
use headwater_host::shared_memory::SharedMemory;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    FrontEndId, NamespaceId, ReadCaching, ReadRelease, RecordExpiry, SsdCommand, SsdCompletion, ValueReader,
    ValueSink, ValueSource, WriteCondition,
};
use headwater_ssd::engine::{DeviceConfig, DeviceStats, SsdDevice, StartTime};
use headwater_ssd::limits::VALUE_BYTES_MAX;
use headwater_ssd::media::file::{FileMedia, FileOptions};
use headwater_ssd::media::memory::MemoryMedia;
use headwater_ssd::media::{FlashGeometry, Media};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use tempfile::TempDir;

const FRONT_END: FrontEndId = FrontEndId(1);
const WALL: UnixMillis = UnixMillis(1_000_000);
const START: StartTime = StartTime { now: Nanos::ZERO, wall: WALL };
const EXTENT: usize = 262_144;

/// Returns a folder on the disk and one in memory, whose files have another I/O path.
fn folders() -> [TempDir; 2] {
    [TempDir::new().unwrap(), TempDir::new_in("/dev/shm").unwrap()]
}

type MemoryDevice = SsdDevice<MemoryMedia>;

fn open(blocks: u32) -> MemoryDevice {
    let media = MemoryMedia::erased(FlashGeometry::with_blocks(blocks)).unwrap();
    SsdDevice::open(media, DeviceConfig::default(), START, &mut |_| {}).unwrap()
}

/// Cuts the power, and opens the device again.
fn reopen(device: MemoryDevice) -> MemoryDevice {
    let media = device.into_media().after_power_cut();
    SsdDevice::open(media, DeviceConfig::default(), START, &mut |_| {}).unwrap()
}

fn run<M: Media>(device: &mut SsdDevice<M>, command: SsdCommand) -> SsdCompletion {
    device.submit(FRONT_END, NamespaceId::FIRST, 1, command).unwrap();
    for _ in 0..100_000_000 {
        device.poll(Nanos::ZERO, WALL);
        if let Some(completion) = device.next_completion(FRONT_END) {
            return completion;
        }
    }
    panic!("no command completes");
}

/// Lets the device work until nothing moves.
fn settle(device: &mut MemoryDevice) {
    while device.poll(Nanos::ZERO, WALL) {}
}

fn store<M: Media>(device: &mut SsdDevice<M>, key: &str, value: &[u8]) -> Status {
    let command = SsdCommand::Store {
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: value.to_vec().into(),
        condition: WriteCondition::Always,
        expiry: RecordExpiry::Never,
    };
    run(device, command).status
}

fn retrieve<M: Media>(device: &mut SsdDevice<M>, key: &str, bytes_max: u32) -> SsdCompletion {
    let key = Bytes::copy_from_slice(key.as_bytes());
    run(
        device,
        SsdCommand::Retrieve {
            key,
            sink: Vec::new().into(),
            offset: 0,
            bytes_max,
            caching: ReadCaching::ByLength,
            release: ReadRelease::WhenDurable,
        },
    )
}

fn delete<M: Media>(device: &mut SsdDevice<M>, key: &str) -> Status {
    let key = Bytes::copy_from_slice(key.as_bytes());
    run(device, SsdCommand::Delete { key, condition: WriteCondition::Always }).status
}

fn text(bytes: usize, salt: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(salt);
    let mut text = vec![0; bytes];
    random.fill(&mut text);
    text
}

#[track_caller]
fn holds<M: Media>(device: &mut SsdDevice<M>, key: &str, value: &[u8]) {
    let found = retrieve(device, key, u32::MAX);
    assert_eq!((found.status, found.value_bytes as usize), (Status::SUCCESS, value.len()));
    assert!(found.sink == value, "{key} has other bytes");
}

#[test]
fn values_of_every_shape_read_back_before_and_after_a_power_cut() {
    let mut device = open(128);
    let lengths =
        [EXTENT - 1, EXTENT, EXTENT + 1, 2 * EXTENT - 1, 3 * EXTENT + 4_097, 5 * EXTENT, 17 * EXTENT + 99];
    for (salt, bytes) in (0..).zip(lengths) {
        assert_eq!(store(&mut device, &format!("key {bytes}"), &text(bytes, salt)), Status::SUCCESS);
    }
    for opening in 0..3 {
        for (salt, bytes) in (0..).zip(lengths) {
            holds(&mut device, &format!("key {bytes}"), &text(bytes, salt));
            for bytes_max in [0, 1, 4_096, 4_097, 262_144, 262_145, 524_288, 700_001] {
                let found = retrieve(&mut device, &format!("key {bytes}"), bytes_max);
                assert!(
                    found.sink == text(bytes, salt)[..bytes.min(bytes_max as usize)],
                    "{bytes_max} bytes"
                );
                assert_eq!(found.value_bytes as usize, bytes, "opening {opening}");
            }
        }
        device = reopen(device);
    }
}

#[test]
fn a_value_of_256_mib_is_stored_whole_and_nothing_longer() {
    let mut device = open(1_300);
    let long = text(VALUE_BYTES_MAX, 5);
    assert_eq!(store(&mut device, "long", &long), Status::SUCCESS);
    holds(&mut device, "long", &long);
    let mut device = reopen(device);
    holds(&mut device, "long", &long);
    let longer = vec![0; VALUE_BYTES_MAX + 1];
    let command = SsdCommand::Store {
        key: Bytes::from_static(b"longer"),
        value: longer.into(),
        condition: WriteCondition::Always,
        expiry: RecordExpiry::Never,
    };
    let refused = device.submit(FRONT_END, NamespaceId::FIRST, 1, command);
    assert!(refused.is_err());
}

#[test]
fn replaced_and_removed_values_give_their_blocks_back() {
    let mut device = open(72);
    let mut random = fastrand::Rng::with_seed(9);
    let mut model = std::collections::BTreeMap::new();
    for turn in 0..400 {
        let key = format!("key {}", random.u8(..4));
        if random.u8(..5) == 0 {
            assert_eq!(delete(&mut device, &key) == Status::SUCCESS, model.remove(&key).is_some());
        } else {
            let bytes = random.usize(..9 * EXTENT);
            assert_eq!(store(&mut device, &key, &text(bytes, turn)), Status::SUCCESS, "turn {turn}");
            model.insert(key, (bytes, turn));
        }
        if random.u8(..40) == 0 {
            device = reopen(device);
        }
        for (key, (bytes, turn)) in &model {
            holds(&mut device, key, &text(*bytes, *turn));
        }
    }
    let keys: Vec<String> = model.into_keys().collect();
    for key in keys {
        assert_eq!(delete(&mut device, &key), Status::SUCCESS);
    }
    settle(&mut device);
    let device = reopen(device);
    assert!(device.stats().live_bytes < EXTENT as u64, "{} bytes are live", device.stats().live_bytes);
}

#[test]
fn a_device_without_room_refuses_a_value_and_keeps_the_old_one() {
    let mut device = open(40);
    let old = text(8 * EXTENT, 1);
    assert_eq!(store(&mut device, "key", &old), Status::SUCCESS);
    for turn in 0..5 {
        assert_eq!(store(&mut device, "key", &text(60 * EXTENT, 2)), Status::CAPACITY_EXCEEDED);
        assert_eq!(
            store(&mut device, "other", &text(25 * EXTENT, 2)),
            Status::CAPACITY_EXCEEDED,
            "turn {turn}"
        );
        holds(&mut device, "key", &old);
    }
    assert_eq!(delete(&mut device, "key"), Status::SUCCESS);
    assert_eq!(store(&mut device, "other", &text(16 * EXTENT, 3)), Status::SUCCESS);
    holds(&mut device, "other", &text(16 * EXTENT, 3));
}

#[test]
fn a_cleared_namespace_gives_its_extents_back() {
    let mut device = open(64);
    for turn in 0..30 {
        for key in ["a", "b", "c"] {
            assert_eq!(store(&mut device, key, &text(4 * EXTENT + 5, turn)), Status::SUCCESS, "turn {turn}");
        }
        assert_eq!(run(&mut device, SsdCommand::Clear).status, Status::SUCCESS);
        assert_eq!(retrieve(&mut device, "a", u32::MAX).status, Status::KEY_DOES_NOT_EXIST);
    }
}

#[test]
fn the_collector_moves_the_record_of_a_value_and_leaves_its_extents() {
    let mut device = open(48);
    let long = text(4 * EXTENT + 60_000, 7);
    assert_eq!(store(&mut device, "long", &long), Status::SUCCESS);
    for turn in 0..3_000u32 {
        let key = format!("short {}", turn % 50);
        assert_eq!(store(&mut device, &key, &text(9_000, 8)), Status::SUCCESS, "turn {turn}");
    }
    assert!(device.stats().collected > 20);
    holds(&mut device, "long", &long);
    let mut device = reopen(device);
    holds(&mut device, "long", &long);
    assert_eq!(store(&mut device, "long", &text(6 * EXTENT, 1)), Status::SUCCESS);
    assert_eq!(store(&mut device, "other", &text(6 * EXTENT, 2)), Status::SUCCESS);
    holds(&mut device, "long", &text(6 * EXTENT, 1));
}

#[test]
fn a_reader_of_parts_gets_the_value_that_it_opened_while_the_key_is_written() {
    let mut device = open(96);
    let old = text(6 * EXTENT + 1_000, 1);
    assert_eq!(store(&mut device, "key", &old), Status::SUCCESS);
    let reader = ValueReader::new(4);
    let open = SsdCommand::OpenValue { key: Bytes::from_static(b"key"), reader: reader.clone() };
    assert_eq!(run(&mut device, open).value_bytes as usize, old.len());
    let mut read = Vec::new();
    while read.len() < old.len() {
        let (reader, offset) = (reader.clone(), u32::try_from(read.len()).unwrap());
        let part = SsdCommand::ReadPart { reader, offset, sink: Vec::new(), bytes_max: 300_000 };
        let part = run(&mut device, part);
        assert_eq!(part.status, Status::SUCCESS, "behind {} bytes", read.len());
        read.extend_from_slice(&part.sink);
        assert_eq!(store(&mut device, "key", &text(2 * EXTENT, 2)), Status::SUCCESS);
    }
    assert!(read == old);
}

#[test]
fn device_memory_holds_only_the_pages_on_their_way() {
    let config = DeviceConfig { frames_max: 256, ..DeviceConfig::default() };
    let media = MemoryMedia::erased(FlashGeometry::with_blocks(256)).unwrap();
    let mut device = SsdDevice::open(media, config, START, &mut |_| {}).unwrap();
    let long = text(100 * EXTENT + 3, 6);
    assert_eq!(store(&mut device, "long", &long), Status::SUCCESS);
    holds(&mut device, "long", &long);
}

#[test]
fn nine_tenths_of_the_bytes_of_long_values_move_in_large_jobs() {
    for folder in folders() {
        let moved = move_long_values(folder.path(), Mover::default());
        assert_eq!(moved.move_channels, ChannelCounters::default());
    }
}

#[test]
fn threads_of_the_mover_move_parts_of_long_values() {
    let clock = Clock::start();
    let channels = (0..2).map(|_| {
        let channel = SoftwareChannel::start(clock, Nanos::from_millis(60_000)).unwrap();
        Box::new(channel) as Box<dyn MoveChannel>
    });
    let config = PolicyConfig { busy_cpu_factor: 2.0, ..PolicyConfig::of_software_channels() };
    let mover = Mover::with_channels(channels.collect(), config, clock);
    let [folder, _] = folders();
    let moved = move_long_values(folder.path(), mover);
    let channels = moved.move_channels;
    assert!(channels.channel_jobs > 0, "{moved:?}");
    assert_eq!((channels.abandoned, channels.refused, channels.not_split), (0, 0, 0), "{moved:?}");
    assert!(moved.move_decisions.total() > 0, "{moved:?}");
}

/// A page fault in the first descriptors and in every third later one, and a lost one now and then.
struct FaultyPages;

impl FaultSource for FaultyPages {
    fn fault(&mut self, nth: u64, opcode: Option<DsaOpcode>) -> PortalFault {
        match nth % 60 {
            30 => PortalFault::Lost,
            rest if opcode != Some(DsaOpcode::Batch) && (nth < 3 || rest % 3 == 1) => {
                PortalFault::PageFault { done: 1_500, is_write: true }
            }
            _ => PortalFault::None,
        }
    }
}

#[test]
fn a_work_queue_with_faults_moves_parts_of_long_values() {
    let clock = Clock::start();
    let kind = PortalKind {
        mode: WorkQueueMode::Dedicated,
        size: 32,
        transfer_bytes_max: 1 << 20,
        batch_max: 16,
        opcodes: DsaOpcodeSet::ALL,
    };
    let portal = SoftwarePortal::start(kind, FaultyPages).unwrap();
    let config = DsaConfig { patience: Nanos::from_millis(1), ..DsaConfig::default() };
    let channel = DsaChannel::software(portal, config).unwrap();
    let counters = channel.counters();
    // Both engines seem equally fast, so that the channel gets a part of each job until it holds up the device.
    let even = PolicyConfig {
        cpu_bytes_per_ns: 0.01,
        channel_bytes_per_ns: 0.01,
        channel_fixed_ns: 0.0,
        busy_cpu_factor: 2.0,
        ..PolicyConfig::default()
    };
    let mut mover = Mover::with_channels(vec![Box::new(channel)], even, clock);
    mover.policy_mut().unwrap().freeze();
    let [_, folder] = folders();
    let moved = move_long_values(folder.path(), mover);
    let counters = counters.read();
    assert!(moved.move_channels.channel_jobs > 0 && counters.page_faults > 0, "{counters:?}, {moved:?}");
    let found = (moved.move_channels.page_faults, moved.move_channels.finished_bytes);
    assert_eq!(found, (counters.page_faults, counters.finished_bytes));
}

/// Stores and reads long values of a client through a mover, and returns the statistics of the device.
fn move_long_values(folder: &Path, mover: Mover) -> DeviceStats {
    const VALUE: usize = (1 << 20) + 3_000;
    let mut device = file_device(folder);
    device.set_mover(mover);
    let mut memory = ClientMemory::new();
    memory.register(Iova(0), SharedMemory::anonymous(2 * VALUE).unwrap()).unwrap();
    let (from, into) =
        (memory.resolve(Iova(0), VALUE as u64).unwrap(), memory.resolve(Iova(VALUE as u64), VALUE as u64));
    let into = into.unwrap();
    for salt in 0..4 {
        let value = text(VALUE, salt);
        assert_eq!(from.copy_out(0, &value), VALUE);
        let key = Bytes::copy_from_slice(format!("long-{salt}").as_bytes());
        let store = SsdCommand::Store {
            key: key.clone(),
            value: ValueSource::Client(from.clone()),
            condition: WriteCondition::Always,
            expiry: RecordExpiry::Never,
        };
        assert_eq!(run(&mut device, store).status, Status::SUCCESS);
        let retrieve =
            SsdCommand::retrieve_whole(key, ValueSink::Client(into.clone()), ReadRelease::WhenDurable);
        assert_eq!(run(&mut device, retrieve).status, Status::SUCCESS);
        let mut found = vec![0; VALUE];
        into.copy_in(0, &mut found);
        assert!(found == value, "value {salt}");
    }
    let stats = device.stats();
    let payload = 2 * 4 * VALUE as u64;
    let large = stats.moved_in_large_jobs;
    assert!(large * 10 >= payload * 9, "{large} of {payload} bytes moved in jobs of 16 KiB and more");
    assert!(large + stats.moved_in_small_jobs <= payload, "{stats:?}");
    stats
}

#[test]
fn many_reads_of_long_values_share_the_least_device_memory() {
    folders().iter().for_each(|folder| read_many_at_once(folder.path()));
}

fn read_many_at_once(folder: &Path) {
    let options = FileOptions::default();
    let media = FileMedia::create(folder, FlashGeometry::with_blocks(64), [7; 16], options).unwrap();
    let config = DeviceConfig { frames_max: 256, ..DeviceConfig::default() };
    let mut device = SsdDevice::open(media, config, START, &mut |_| {}).unwrap();
    let value = |number: usize| text([EXTENT, 3 * EXTENT + 77, 5 * EXTENT - 1][number % 3], number as u64);
    let key = |number: usize| Bytes::from(format!("key {number}"));
    for number in 0..6 {
        assert_eq!(store(&mut device, &format!("key {number}"), &value(number)), Status::SUCCESS);
    }
    let readers: Vec<ValueReader> = (0..6).map(ValueReader::new).collect();
    for (number, reader) in readers.iter().enumerate() {
        let open = SsdCommand::OpenValue { key: key(number), reader: reader.clone() };
        assert_eq!(run(&mut device, open).status, Status::SUCCESS);
    }
    // Whole values, and parts that have as many pages as may be asked for at once, more and fewer.
    let mut expected = Vec::new();
    for token in 100..154_usize {
        let number = token % 6;
        let (command, answer) = if token < 148 {
            let (sink, release) = (Vec::new().into(), ReadRelease::WhenDurable);
            let command = SsdCommand::retrieve_whole(key(number), sink, release);
            (command, value(number))
        } else {
            // The last one is longer than device memory has room for.
            let bytes = [EXTENT / 3, EXTENT, EXTENT + 5_000][number / 2];
            let bytes_max = u32::try_from(bytes).unwrap();
            let (reader, sink) = (readers[number].clone(), Vec::new());
            let command = SsdCommand::ReadPart { reader, offset: 0, sink, bytes_max };
            (command, value(number).into_iter().take(bytes.min(EXTENT)).collect())
        };
        device.submit(FRONT_END, NamespaceId::FIRST, token as u64, command).unwrap();
        expected.push(answer);
    }
    let mut left = expected.len();
    for _ in 0..100_000_000 {
        device.poll(Nanos::ZERO, WALL);
        while let Some(completion) = device.next_completion(FRONT_END) {
            let token = usize::try_from(completion.token).unwrap();
            assert_eq!(completion.status, Status::SUCCESS, "command {token}");
            assert!(completion.sink == expected[token - 100], "command {token}");
            left -= 1;
        }
        if left == 0 {
            return;
        }
    }
    panic!("{left} reads never complete");
}

fn file_device(folder: &Path) -> SsdDevice<FileMedia> {
    let options = FileOptions::default();
    let media = match folder.join("flash").exists() {
        true => FileMedia::open(folder, options),
        false => FileMedia::create(folder, FlashGeometry::with_blocks(64), [7; 16], options),
    };
    SsdDevice::open(media.unwrap(), DeviceConfig::default(), START, &mut |_| {}).unwrap()
}

/// Ends a device of which nothing is written behind its last answer, as after a kill.
fn killed(device: SsdDevice<FileMedia>) {
    drop(device.into_media());
}

#[test]
fn every_damaged_sector_of_an_extent_is_an_error_and_never_an_answer() {
    folders().iter().for_each(|folder| damage_every_sector(folder.path()));
}

fn damage_every_sector(folder: &Path) {
    let long = text(3 * EXTENT + 500, 4);
    let mut device = file_device(folder);
    assert_eq!(store(&mut device, "long", &long), Status::SUCCESS);
    assert_eq!(store(&mut device, "other", b"other"), Status::SUCCESS);
    // A later commit says that the first one is durable.
    assert_eq!(store(&mut device, "other", b"other"), Status::SUCCESS);
    killed(device);
    let path = folder.join("flash");
    let pristine = std::fs::read(&path).unwrap();
    let mut random = fastrand::Rng::with_seed(2);
    let mut struck = 0;
    for _ in 0..40 {
        let at = random.usize(..long.len() - 512);
        let place = pristine.windows(64).position(|window| window == &long[at..at + 64]);
        let Some(place) = place else { continue };
        struck += 1;
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&pristine, 0).unwrap();
        file.write_all_at(&[pristine[place] ^ 1], place as u64).unwrap();
        let mut device = file_device(folder);
        let found = retrieve(&mut device, "long", u32::MAX);
        assert_eq!((found.status, found.sink.len()), (Status::UNRECOVERED_ERROR, 0), "byte {at}");
        assert_eq!(retrieve(&mut device, "other", u32::MAX).sink, b"other");
        // The key can be written again.
        assert_eq!(store(&mut device, "long", &long), Status::SUCCESS);
        holds(&mut device, "long", &long);
        killed(device);
    }
    assert!(struck >= 30, "{struck} places were struck");
}
