//! Tests of what collection costs where most of what is written is replaced: one commit frees several blocks, and blocks of
//! which nothing is needed are not read.

#![expect(clippy::unwrap_used, reason = "a test fails if its setup fails")]

use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_sim::media::{SimMedia, SimMediaConfig};
use headwater_sim::presets::FILE;
use headwater_ssd::command::{FrontEndId, NamespaceId, RecordExpiry, SsdCommand, WriteCondition};
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
        let media = SimMedia::new(SimMediaConfig::new(FILE, blocks));
        let config = DeviceConfig {
            durability: [Durability::OnFlush; NAMESPACES],
            frames_max: 256,
            ..DeviceConfig::default()
        };
        let start = StartTime { now: Nanos::ZERO, wall: WALL };
        let device = SsdDevice::open(media, config, start, &mut |_| {}).unwrap();
        Self { device, now: Nanos::from_millis(1_000), written: 0 }
    }

    /// Overwrites the keys in turn until the device has erased so many blocks.
    fn run_until_erased(&mut self, erases: u64) {
        while self.device.stats().erases < erases {
            let key = format!("key-{}", self.written % KEYS).into();
            let (condition, expiry) = (WriteCondition::Always, RecordExpiry::Never);
            let store = SsdCommand::Store { key, value: vec![7; VALUE_BYTES].into(), condition, expiry };
            self.device.submit(FRONT_END, NamespaceId::FIRST, self.written, store).unwrap();
            self.written += 1;
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
    let mut rng = fastrand::Rng::with_seed(3);
    let newest = load.written;
    // The keys were written again since: nothing of the blocks that hold records now is needed later.
    while load.written < newest + 2 * KEYS {
        let erases = load.device.stats().erases;
        load.run_until_erased(erases + 1);
    }
    let media = load.device.media_mut();
    for block in 0..64 {
        for page in 0..PAGES_PER_BLOCK {
            media.flip_bits(&mut rng, PageAddress::new(BlockId(block), page.try_into().unwrap()), 40);
        }
    }
    // Each key is written before it is looked at again.
    let erases = load.device.stats().erases;
    load.run_until_erased(erases + 300);
    let stats = load.device.stats();
    assert_eq!((stats.damaged_pages, stats.damaged, stats.quarantined), (0, 0, 0), "dead blocks were read");
}
