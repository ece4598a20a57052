//! A device that clients keep as full as they may: it finds room for every overwritten value.
//!
//! Seeds of former failures run first, then one that no run had before.
#![expect(clippy::unwrap_used, reason = "a test fails if its setup fails")]

use bytes::Bytes;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{FrontEndId, NamespaceId, RecordExpiry, SsdCommand, WriteCondition};
use headwater_ssd::engine::{DeviceConfig, SsdDevice, StartTime};
use headwater_ssd::media::FlashGeometry;
use headwater_ssd::media::memory::MemoryMedia;
use std::collections::VecDeque;

const FRONT_END: FrontEndId = FrontEndId(1);
const WALL: UnixMillis = UnixMillis(1_000_000);
/// Seeds of devices that once ran out of blocks.
const FOUND: [u64; 1] = [5_207_592_885_361_272_904];
/// Times that every value is overwritten.
const ROUNDS: usize = 6;

struct FullDevice {
    device: SsdDevice<MemoryMedia>,
    now: Nanos,
    /// Bytes of the value of each key.
    sizes: Vec<usize>,
    seed: u64,
    random: fastrand::Rng,
}

impl FullDevice {
    /// Stores values of random sizes until the next one would not fit into what clients may use.
    fn filled(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let media = MemoryMedia::erased(FlashGeometry::with_blocks(random.u32(48..192))).unwrap();
        let start = StartTime { now: Nanos::ZERO, wall: WALL };
        let device = SsdDevice::open(media, DeviceConfig::default(), start, &mut |_| {}).unwrap();
        let bytes_max = random.usize(2 << 10..64 << 10);
        let mut full = Self { device, now: Nanos::ZERO, sizes: Vec::new(), seed, random };
        while full.device.stats().live_bytes + 2 * (bytes_max as u64) < full.device.stats().capacity_bytes {
            full.sizes.push(full.random.usize(..bytes_max));
            full.store([full.sizes.len() - 1].into(), 1);
        }
        full
    }

    /// Overwrites these keys, with so many commands in flight.
    fn store(&mut self, mut keys: VecDeque<usize>, depth: usize) {
        let mut in_flight = 0;
        while in_flight > 0 || !keys.is_empty() {
            while in_flight < depth
                && let Some(key) = keys.pop_front()
            {
                let command = SsdCommand::Store {
                    key: Bytes::from(format!("key {key}")),
                    value: Bytes::from(vec![self.random.u8(..); self.sizes[key]]).into(),
                    condition: WriteCondition::Always,
                    expiry: RecordExpiry::Never,
                };
                self.device.submit(FRONT_END, NamespaceId::FIRST, key as u64, command).unwrap();
                in_flight += 1;
            }
            let moved = self.device.poll(self.now, WALL);
            while let Some(completion) = self.device.next_completion(FRONT_END) {
                in_flight -= 1;
                let seed = self.seed;
                assert_eq!(completion.status, Status::SUCCESS, "seed {seed}: {:?}", self.device.stats());
            }
            if !moved && let Some(at) = self.device.next_deadline() {
                self.now = self.now.max(at);
            }
        }
    }
}

fn overwrite_all(seed: u64) {
    let mut full = FullDevice::filled(seed);
    for _ in 0..ROUNDS {
        let mut keys: Vec<usize> = (0..full.sizes.len()).collect();
        full.random.shuffle(&mut keys);
        let depth = 1 << full.random.u8(..6);
        full.store(keys.into(), depth);
    }
}

#[test]
fn every_value_of_a_nearly_full_device_can_be_overwritten() {
    let fresh = fastrand::u64(..);
    for seed in FOUND.into_iter().chain([fresh, fresh.wrapping_add(1)]) {
        overwrite_all(seed);
    }
}
