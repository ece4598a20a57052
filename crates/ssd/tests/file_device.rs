//! Tests of a device on a flash file: acknowledged writes survive a reopening of the file, on every I/O path.

#![expect(clippy::unwrap_used, reason = "a test fails if its setup fails")]
#![expect(clippy::print_stderr, reason = "a test that checks less prints why")]

use bytes::Bytes;
use headwater_host::clock::{Clock, UnixMillis};
use headwater_host::file::{DirectChoice, FileMode};
use headwater_host::mapped_region::MappedRegion;
use headwater_host::pinning::{MemlockBudget, MemoryRange};
use headwater_host::uring::{FileRing, RegisteredCounters, RingKind, UringChoice};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    FrontEndId, NamespaceId, ReadRelease, RecordExpiry, SsdCommand, SsdCompletion, WriteCondition,
};
use headwater_ssd::engine::{DeviceConfig, SsdDevice, StartTime};
use headwater_ssd::media::FlashGeometry;
use headwater_ssd::media::file::{FileMedia, FileOptions, ZeroFillMode};
use std::collections::BTreeMap;
use std::path::Path;
use tempfile::TempDir;

const FRONT_END: FrontEndId = FrontEndId(1);
const WALL: UnixMillis = UnixMillis(1_000_000);
const BLOCKS: u32 = 40;
/// Bytes that a process must be able to register for the test of registration, besides the other tests of this process.
const LOCKABLE_BYTES_MIN: u64 = 16 << 20;

struct FileHost {
    device: SsdDevice<FileMedia>,
    clock: Clock,
    token: u64,
}

impl FileHost {
    fn on(media: FileMedia) -> Self {
        Self::with(media, DeviceConfig::default())
    }

    fn with(media: FileMedia, config: DeviceConfig) -> Self {
        let clock = Clock::start();
        let start = StartTime { now: clock.now(), wall: WALL };
        Self { device: SsdDevice::open(media, config, start, &mut |_| {}).unwrap(), clock, token: 0 }
    }

    fn open(directory: &Path, options: FileOptions) -> Self {
        Self::on(FileMedia::open(directory, options).unwrap())
    }

    fn submit(&mut self, command: SsdCommand) -> u64 {
        self.token += 1;
        self.device.submit(FRONT_END, NamespaceId::FIRST, self.token, command).unwrap();
        self.token
    }

    fn next(&mut self) -> SsdCompletion {
        loop {
            self.device.poll(self.clock.now(), WALL);
            if let Some(completion) = self.device.next_completion(FRONT_END) {
                return completion;
            }
            std::thread::yield_now();
        }
    }

    fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        self.submit(SsdCommand::retrieve_whole(
            Bytes::copy_from_slice(key),
            Vec::new().into(),
            ReadRelease::WhenDurable,
        ));
        let completion = self.next();
        match completion.status {
            Status::SUCCESS => Some(completion.sink),
            Status::KEY_DOES_NOT_EXIST => None,
            other => panic!("{other}"),
        }
    }
}

/// Submits a few writes together, and returns when all are acknowledged.
fn write_some(host: &mut FileHost, model: &mut BTreeMap<Vec<u8>, Vec<u8>>, random: &mut fastrand::Rng) {
    let writes = random.usize(1..12);
    for _ in 0..writes {
        let key = format!("key {}", random.u32(0..400)).into_bytes();
        if random.u32(0..8) == 0 {
            model.remove(&key);
            host.submit(SsdCommand::Delete { key: key.into(), condition: WriteCondition::Always });
        } else {
            let bytes = random.usize(0..12_000);
            let value: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(bytes).collect();
            host.submit(SsdCommand::Store {
                key: key.clone().into(),
                value: value.clone().into(),
                condition: WriteCondition::Always,
                expiry: RecordExpiry::Never,
            });
            model.insert(key, value);
        }
    }
    for _ in 0..writes {
        let status = host.next().status;
        assert!(status == Status::SUCCESS || status == Status::KEY_DOES_NOT_EXIST, "{status}");
    }
}

fn check(host: &mut FileHost, model: &BTreeMap<Vec<u8>, Vec<u8>>, seed: u64) {
    for number in 0..400 {
        let key = format!("key {number}").into_bytes();
        assert!(host.get(&key).as_ref() == model.get(&key), "seed {seed}: key {number}");
    }
}

fn acknowledged_writes_survive(options: FileOptions, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let directory = TempDir::new().unwrap();
    let geometry = FlashGeometry::with_blocks(BLOCKS);
    let media = FileMedia::create(directory.path(), geometry, [7; 16], options).unwrap();
    let mut host = FileHost::on(media);
    let mut model = BTreeMap::new();
    // Each round writes more than the medium holds, so that blocks are collected and erased.
    for _ in 0..2 {
        for _ in 0..350 {
            write_some(&mut host, &mut model, &mut random);
        }
        // No shutdown: the file keeps its state at the last acknowledgement.
        drop(host);
        host = FileHost::open(directory.path(), options);
        check(&mut host, &model, seed);
    }
}

#[test]
fn acknowledged_writes_survive_reopening_the_file() {
    // Failure messages name the random seed.
    for direct in [DirectChoice::Auto, DirectChoice::Never] {
        for uring in [UringChoice::Auto, UringChoice::Never] {
            let options = FileOptions { direct, uring, zero_fill_mode: ZeroFillMode::Ahead };
            acknowledged_writes_survive(options, fastrand::u64(..));
        }
    }
}

#[test]
fn the_core_waits_for_flushes_only_while_one_command_comes_at_a_time() {
    let directory = TempDir::new().unwrap();
    let options = FileOptions::default();
    let media =
        FileMedia::create(directory.path(), FlashGeometry::with_blocks(BLOCKS), [7; 16], options).unwrap();
    let mut host = FileHost::on(media);
    let store = |host: &mut FileHost, count: u32| {
        for _ in 0..count {
            let key = Bytes::from_static(b"key");
            let value = vec![7; 100].into();
            host.submit(SsdCommand::Store {
                key,
                value,
                condition: WriteCondition::Always,
                expiry: RecordExpiry::Never,
            });
        }
        for _ in 0..count {
            assert_eq!(host.next().status, Status::SUCCESS);
        }
    };
    for _ in 0..200 {
        store(&mut host, 2);
    }
    assert_eq!(host.device.media().blocking_flushes(), 0, "the core waited beside a second command");
    for _ in 0..200 {
        store(&mut host, 1);
    }
    let blocking = host.device.media().blocking_flushes();
    assert!(blocking > 0, "the core waited for no flush of a single client");
    store(&mut host, 2);
    for _ in 0..60 {
        store(&mut host, 1);
    }
    assert_eq!(
        host.device.media().blocking_flushes(),
        blocking,
        "the core waited although two commands had come"
    );
    drop(host);
    let mut host = FileHost::open(directory.path(), options);
    assert_eq!(host.get(b"key").unwrap(), vec![7; 100]);
}

#[test]
fn key_in_use_stays_in_memory_beside_many_times_the_memory_of_long_values() {
    const LONG_BYTES: usize = 1 << 20;
    let directory = TempDir::new().unwrap();
    let media =
        FileMedia::create(directory.path(), FlashGeometry::with_blocks(512), [7; 16], FileOptions::default())
            .unwrap();
    // 16 MiB of pages. The file has room for all writes: a collection would read and rewrite the keys.
    let config = DeviceConfig { frames_max: 1_024, extents_from: usize::MAX, ..DeviceConfig::default() };
    let mut host = FileHost::with(media, config);
    let store = |key: &'static [u8], value: Vec<u8>| SsdCommand::Store {
        key: Bytes::from_static(key),
        value: value.into(),
        condition: WriteCondition::Always,
        expiry: RecordExpiry::Never,
    };
    for (key, value) in
        [(&b"once"[..], b"2".to_vec()), (b"long", vec![7; LONG_BYTES]), (b"used", b"1".to_vec())]
    {
        host.submit(store(key, value));
        assert_eq!(host.next().status, Status::SUCCESS);
    }
    for _ in 0..80 {
        host.submit(store(b"long", vec![7; LONG_BYTES]));
        assert_eq!(host.next().status, Status::SUCCESS);
        assert_eq!(host.get(b"used").unwrap(), b"1");
    }
    assert_eq!(host.device.stats().collected, 0);
    assert_eq!(host.device.stats().cache_misses, 0, "the key in use was read from the file");
    assert_eq!(host.get(b"once").unwrap(), b"2");
    assert_eq!(host.device.stats().cache_misses, 1, "80 MiB fit into 16 MiB");
}

// Broken before: an overwrite looks at the key of the record that it replaces, which gave the page of the dead record a second
// time in memory, and took that of a live one away.
#[test]
fn pages_of_replaced_records_leave_memory_before_those_of_live_ones() {
    const KEYS: u64 = 600;
    let directory = TempDir::new().unwrap();
    let media =
        FileMedia::create(directory.path(), FlashGeometry::with_blocks(512), [7; 16], FileOptions::default())
            .unwrap();
    // Three times the records: of random keys one in twenty is not overwritten before its page left.
    let mut host = FileHost::with(media, DeviceConfig { frames_max: 1_900, ..DeviceConfig::default() });
    let mut rng = fastrand::Rng::with_seed(11);
    let overwrites = 6_000;
    for _ in 0..overwrites {
        host.submit(SsdCommand::Store {
            key: Bytes::from(format!("key-{}", rng.u64(..KEYS))),
            value: vec![7; 3_900].into(),
            condition: WriteCondition::Always,
            expiry: RecordExpiry::Never,
        });
        assert_eq!(host.next().status, Status::SUCCESS);
    }
    assert_eq!(host.device.stats().collected, 0);
    let misses = host.device.stats().cache_misses;
    assert!(
        misses < overwrites / 4,
        "{misses} of {overwrites} overwrites read their old record from the file"
    );
}

/// Returns true if a ring of this process can register memory as large as a slab of frames.
fn can_register() -> bool {
    let mut ring = FileRing::open(tempfile::tempfile().unwrap(), 1, UringChoice::Auto).unwrap();
    let mut memory = MappedRegion::zeroed(1 << 20).unwrap();
    let Ok(table) = ring.table(1) else { return false };
    table.register(&[MemoryRange::of(&mut memory)]).is_ok()
}

#[test]
fn frames_that_are_transferred_often_are_registered_with_the_ring() {
    const KEYS: u32 = 400;
    // Below the target directory, which is on a disk more often than the directory of temporary files.
    let directory = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let media =
        FileMedia::create(directory.path(), FlashGeometry::with_blocks(128), [7; 16], FileOptions::default())
            .unwrap();
    let mut host = FileHost::with(media, DeviceConfig { frames_max: 256, ..DeviceConfig::default() });
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let value_of = |key: u32| {
        let mut value = vec![0; if key.is_multiple_of(40) { 700_000 } else { 3_900 }];
        fastrand::Rng::with_seed(key.into()).fill(&mut value);
        value
    };
    for key in 0..KEYS {
        host.submit(SsdCommand::Store {
            key: Bytes::from(format!("{key}")),
            value: value_of(key).into(),
            condition: WriteCondition::Always,
            expiry: RecordExpiry::Never,
        });
        assert_eq!(host.next().status, Status::SUCCESS);
    }
    for _ in 0..1_500 {
        let key = random.u32(..KEYS);
        assert!(host.get(format!("{key}").as_bytes()).unwrap() == value_of(key), "seed {seed}: key {key}");
    }
    let media = host.device.media();
    let (mode, kind) = (media.mode(), media.ring_kind());
    let counters = host.device.stats().registered_memory;
    let budget = MemlockBudget::read();
    if (mode, kind) != (FileMode::Direct, RingKind::Uring) {
        assert_eq!(counters, RegisteredCounters::default(), "seed {seed}");
        eprintln!("registration not tested: a file {mode:?} with {kind:?} registers nothing");
    } else if budget.registrations_max().is_some_and(|bytes| bytes < LOCKABLE_BYTES_MIN) {
        eprintln!("registration not tested: the limit of locked memory is too low: {budget:?}");
    } else if !can_register() {
        assert_eq!((counters.bytes, counters.transfers), (0, 0), "seed {seed}: {counters:?}");
        eprintln!("registration not tested: the kernel refuses a table of buffers, or memory in it");
    } else {
        assert!(counters.transfers > 0, "seed {seed}: {counters:?}");
        assert_eq!(counters.repeated, 0, "seed {seed}: {counters:?}");
        // With a limit, other processes of the user may have taken what is left of it.
        if budget.registrations_max().is_none() {
            assert_eq!(counters.refused, 0, "seed {seed}: {counters:?}");
        }
    }
}
