//! Tests of what collection costs where most of what is written is replaced: one commit frees several blocks, and only pages
//! with records that are needed are read. And of what stays in device DRAM.

#![expect(clippy::unwrap_used, reason = "a test fails if its setup fails")]

use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_sim::media::{SimMedia, SimMediaConfig};
use headwater_sim::presets::FILE;
use headwater_ssd::command::{
    FrontEndId, NamespaceId, ReadRelease, RecordExpiry, SsdCommand, WriteCondition,
};
use headwater_ssd::engine::{DeviceConfig, Durability, SsdDevice, StartTime};
use headwater_ssd::limits::NAMESPACES;
use headwater_ssd::media::{BlockId, PAGES_PER_BLOCK, PageAddress};

const FRONT_END: FrontEndId = FrontEndId(1);
const WALL: UnixMillis = UnixMillis(1_000_000);
/// Bytes of a value: its record takes about a page.
const VALUE_BYTES: usize = 4_000;
const KEYS: u64 = 64;

struct Overwriting {
    device: SsdDevice<SimMedia>,
    now: Nanos,
    written: u64,
}

impl Overwriting {
    fn start(blocks: u32) -> Self {
        Self::with_memory(blocks, 256)
    }

    fn with_memory(blocks: u32, frames_max: usize) -> Self {
        let media = SimMedia::new(SimMediaConfig::new(FILE, blocks));
        let config = DeviceConfig {
            durability: [Durability::OnFlush; NAMESPACES],
            frames_max,
            ..DeviceConfig::default()
        };
        let start = StartTime { now: Nanos::ZERO, wall: WALL };
        let device = SsdDevice::open(media, config, start, &mut |_| {}).unwrap();
        Self { device, now: Nanos::from_millis(1_000), written: 0 }
    }

    /// Overwrites the keys in turn until the device has erased so many blocks.
    fn run_until_erased(&mut self, erases: u64) {
        while self.device.stats().erases < erases {
            self.store(format!("key-{}", self.written % KEYS), 7);
        }
    }

    fn store(&mut self, key: String, byte: u8) {
        self.store_bytes(key, vec![byte; VALUE_BYTES]);
    }

    fn store_bytes(&mut self, key: String, value: Vec<u8>) {
        let (condition, expiry) = (WriteCondition::Always, RecordExpiry::Never);
        let value = value.into();
        self.run(SsdCommand::Store { key: key.into(), value, condition, expiry });
        self.written += 1;
    }

    fn retrieve(&mut self, key: String) {
        let (key, sink, release) = (key.into(), Vec::new().into(), ReadRelease::WhenDurable);
        self.run(SsdCommand::retrieve_whole(key, sink, release));
    }

    fn run(&mut self, command: SsdCommand) {
        self.device.submit(FRONT_END, NamespaceId::FIRST, self.written, command).unwrap();
        let completion = loop {
            while self.device.poll(self.now, WALL) {}
            match self.device.next_completion(FRONT_END) {
                Some(completion) => break completion,
                None => self.now = self.device.next_deadline().unwrap().max(Nanos(self.now.0 + 1)),
            }
        };
        assert_eq!(completion.status, Status::SUCCESS);
    }
}

fn pages_of(blocks: u32) -> impl Iterator<Item = PageAddress> {
    let pages = 0..u8::try_from(PAGES_PER_BLOCK).unwrap();
    (0..blocks).flat_map(move |block| pages.clone().map(move |page| PageAddress::new(BlockId(block), page)))
}

#[test]
fn one_commit_frees_several_blocks_of_a_large_medium() {
    let flushes = |blocks: u32| {
        let mut load = Overwriting::start(blocks);
        load.run_until_erased(u64::from(blocks) + 50);
        let (before, erased) = (load.device.stats().flushes, load.device.stats().erases);
        load.run_until_erased(erased + 100);
        load.device.stats().flushes - before
    };
    // Of 640 blocks five are freed at once beyond those needed; of 100 none.
    let (large, small) = (flushes(640), flushes(100));
    assert!(large * 3 <= 100, "{large} flushes for 100 blocks of 640");
    assert!(small > large * 2, "{small} flushes for 100 blocks of 100, {large} of 640");
}

#[test]
fn blocks_of_which_nothing_is_needed_are_not_read() {
    let mut load = Overwriting::start(64);
    load.run_until_erased(200);
    let newest = load.written;
    // The keys were written again since: nothing of the blocks that hold records now is needed later.
    while load.written < newest + 2 * KEYS {
        let erases = load.device.stats().erases;
        load.run_until_erased(erases + 1);
    }
    let mut rng = fastrand::Rng::with_seed(3);
    for page in pages_of(64) {
        load.device.media_mut().flip_bits(&mut rng, page, 40);
    }
    // Each key is written before it is looked at again.
    let erases = load.device.stats().erases;
    load.run_until_erased(erases + 300);
    let stats = load.device.stats();
    assert_eq!((stats.damaged_pages, stats.damaged, stats.quarantined), (0, 0, 0), "dead blocks were read");
}

/// Checks that of a block of which one record is needed, collection reads the pages of this one only.
#[test]
fn only_pages_with_records_that_are_needed_are_read() {
    const BLOCKS: u32 = 64;
    const COLD: u64 = 40;
    const HOT: u64 = 58;
    let mut load = Overwriting::start(BLOCKS);
    let overwrite = |load: &mut Overwriting, kind: &str| {
        (0..HOT).for_each(|hot| load.store(format!("{kind}-{hot}"), 7));
    };
    for cold in 0..COLD {
        load.store(format!("cold-{cold}"), 9);
        overwrite(&mut load, "hot");
    }
    // The hot keys of then are looked at only where collection reads them.
    overwrite(&mut load, "warm");
    let mut rng = fastrand::Rng::with_seed(5);
    let is_needed = |bytes: &[u8]| bytes.windows(8).any(|part| part == [9; 8] || part.starts_with(b"cold-"));
    for page in pages_of(BLOCKS) {
        let media = load.device.media_mut();
        if media.flash().unwrap().page(page).is_some_and(|image| !is_needed(image.bytes())) {
            media.flip_bits(&mut rng, page, 40);
        }
    }
    let moved = load.device.stats().moved_bytes;
    let enough = (0..2 * u64::from(BLOCKS)).any(|_| {
        overwrite(&mut load, "warm");
        load.device.stats().moved_bytes >= moved + COLD * 4_000
    });
    assert!(enough, "the cold records were not moved");
    let stats = load.device.stats();
    assert_eq!((stats.damaged_pages, stats.damaged, stats.quarantined), (0, 0, 0), "other pages were read");
}

/// Checks that replaced records make room in device DRAM where far more pages are written than it has frames.
#[test]
fn replaced_records_leave_device_memory_before_live_ones() {
    let mut load = Overwriting::with_memory(128, 1_024);
    let mut rng = fastrand::Rng::with_seed(11);
    let mut overwrite = |load: &mut Overwriting, times: u64| {
        (0..times).for_each(|_| load.store(format!("key-{}", rng.u64(0..400)), 7));
    };
    overwrite(&mut load, 6_000);
    let before = load.device.stats().cache_misses;
    overwrite(&mut load, 6_000);
    (0..400).for_each(|key| load.retrieve(format!("key-{key}")));
    assert_eq!(load.device.stats().cache_misses - before, 0, "a live record was not in device memory");
}

/// Checks that records over several pages and blocks stay in device DRAM as a whole when they are written and moved.
#[test]
fn records_over_many_pages_stay_in_device_memory() {
    let mut load = Overwriting::with_memory(64, 4_096);
    let mut rng = fastrand::Rng::with_seed(12);
    for round in 0..2_000 {
        let (key, bytes) = (rng.u64(0..120), [100, 5_000, 9_000, 16_384, 65_000, 200_000][rng.usize(0..6)]);
        load.store_bytes(format!("key-{key}"), vec![7; bytes]);
        load.retrieve(format!("key-{key}"));
        assert_eq!(load.device.stats().cache_misses, 0, "round {round}: {bytes} bytes left device memory");
    }
    (0..120).for_each(|key| load.retrieve(format!("key-{key}")));
    let stats = load.device.stats();
    assert!(stats.moved_bytes > 0 && stats.cache_misses == 0, "{stats:?}");
}
