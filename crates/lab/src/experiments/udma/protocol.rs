//! The paper's requests and memory blocks.
//!
//! Input: a class of requests, an upper bound of their length, and a seed.
//! Output: requests, and the memory of the tier that serves them.
//! Invariant: all methods receive the same requests.

use super::failed;
use crate::experiment::LabError;
use headwater_dma::buffer::PoolBuffer;
use headwater_dma::pool::{
    ChunkRule, MemoryPinner, PAPER_BLOCKS, Pool, PoolClock, PoolConfig, TierThresholds,
};
use std::sync::Arc;

/// One of the paper's three classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UdmaClass {
    /// Its name in claims.
    pub(super) name: &'static str,
    /// Number of requests of a run.
    pub(super) requests: usize,
    /// Every request is longer than this.
    pub(super) above: usize,
    /// Upper bounds of the lengths: the axis of figures 5 and 6. The last is the class's own.
    pub(super) bounds: &'static [usize],
}

pub(super) const CLASSES: [UdmaClass; 3] = [
    UdmaClass { name: "small", requests: 50_000, above: 0, bounds: &[1 << 10, 2 << 10, 4 << 10] },
    UdmaClass { name: "medium", requests: 5_000, above: 4 << 10, bounds: &[16 << 10, 64 << 10, 128 << 10] },
    UdmaClass { name: "big", requests: 5_000, above: 128 << 10, bounds: &[256 << 10, 512 << 10, 1 << 20] },
];

/// The granularity of direct I/O.
const SECTOR_BYTES: usize = 512;

/// A read or write request.
#[derive(Clone, Copy, Debug)]
pub(super) struct UdmaRequest {
    pub(super) bytes: usize,
    pub(super) direction: UdmaDirection,
    /// Byte offset on the device, a multiple of 4 KiB that leaves room for the longest request.
    pub(super) offset: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UdmaDirection {
    Read,
    Write,
}

/// Returns `count` random requests of up to `bound` bytes on a device of `device_bytes`.
pub(super) fn requests(
    class: &UdmaClass,
    bound: usize,
    count: usize,
    device_bytes: u64,
    seed: u64,
) -> Vec<UdmaRequest> {
    let mut random = fastrand::Rng::with_seed(seed);
    let sectors = (device_bytes - bound as u64) / 4_096;
    let mut one = || UdmaRequest {
        bytes: random.usize(class.above + 1..=bound).next_multiple_of(SECTOR_BYTES),
        direction: if random.bool() { UdmaDirection::Read } else { UdmaDirection::Write },
        offset: random.u64(..sectors) * 4_096,
    };
    (0..count).map(|_| one()).collect()
}

/// The memory of the tiers, with the borders of a preset.
#[derive(Debug)]
pub(super) struct TierMemory {
    pool: Pool,
    borders: TierThresholds,
    /// The static tier: its block and the next slot.
    small: Option<(PoolBuffer, usize)>,
}

/// The memory of a request while the device works on it.
pub(super) enum RequestMemory<'a> {
    /// A slot of the block that stays pinned; the bytes are copied before or after the transfer.
    Slot(&'a mut [u8]),
    Buffer(PoolBuffer),
}

impl TierMemory {
    /// Opens the tiers for one class, with the paper's block for it. Nothing is pinned before the first request.
    pub(super) fn open(
        class: &UdmaClass,
        borders: TierThresholds,
        pinner: Arc<dyn MemoryPinner>,
        time: Arc<dyn PoolClock>,
    ) -> Result<Self, LabError> {
        let chunk = if class.above == 0 {
            PAPER_BLOCKS.small
        } else if class.above + 1 >= borders.large_min {
            PAPER_BLOCKS.large
        } else {
            PAPER_BLOCKS.medium
        };
        let config = PoolConfig {
            chunk,
            chunk_rule: ChunkRule::Fixed,
            // The paper measures its big requests in blocks of 32 MB that many of them share: chunks, not memory of each.
            tiers: Some(TierThresholds { large_min: usize::MAX, ..borders }.into()),
            pinner,
            clock: time,
            ..PoolConfig::default()
        };
        Ok(Self { pool: Pool::open(config).map_err(failed)?, borders, small: None })
    }

    /// Takes memory for a request.
    pub(super) fn take(&mut self, bytes: usize) -> Result<RequestMemory<'_>, LabError> {
        if bytes > self.borders.small_max {
            return self.pool.buffer(bytes).map(RequestMemory::Buffer).map_err(failed);
        }
        if self.small.is_none() {
            self.small = Some((self.pool.buffer(PAPER_BLOCKS.small).map_err(failed)?, 0));
        }
        let Some((block, next)) = &mut self.small else { return Err(failed("the static tier has no block")) };
        let slot_bytes = self.borders.small_max;
        let at = *next;
        *next = (at + slot_bytes) % block.len();
        Ok(RequestMemory::Slot(&mut block[at..at + bytes]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_dma::pool::NoPinning;
    use headwater_host::clock::Clock;

    #[test]
    fn requests_fit_their_class_and_are_reproducible() {
        for class in &CLASSES {
            for &bound in class.bounds {
                let list = requests(class, bound, 500, 64 << 20, 1);
                assert!(list.iter().all(|request| request.bytes > class.above && request.bytes <= bound));
                assert!(list.iter().all(|request| request.offset + request.bytes as u64 <= 64 << 20));
                let again = requests(class, bound, 500, 64 << 20, 1);
                assert!(list.iter().zip(&again).all(|(a, b)| (a.bytes, a.offset) == (b.bytes, b.offset)));
            }
        }
        assert_eq!(CLASSES.map(|class| class.requests), [50_000, 5_000, 5_000]);
    }

    #[test]
    fn small_requests_share_one_block_and_larger_ones_come_from_chunks() {
        let clock = Arc::new(Clock::start());
        let mut small =
            TierMemory::open(&CLASSES[0], TierThresholds::PAPER_5_2, Arc::new(NoPinning), clock.clone())
                .unwrap();
        for _ in 0..20_000 {
            assert!(matches!(small.take(4_096).unwrap(), RequestMemory::Slot(slot) if slot.len() == 4_096));
        }
        assert_eq!(small.pool.statistics().grown_chunks, 1);
        let mut big =
            TierMemory::open(&CLASSES[2], TierThresholds::PAPER_5_2, Arc::new(NoPinning), clock).unwrap();
        for _ in 0..1_000 {
            assert!(matches!(big.take(1 << 20).unwrap(), RequestMemory::Buffer(_)));
        }
        let statistics = big.pool.statistics();
        assert_eq!((statistics.grown_chunks, statistics.chunk_bytes), (1, 32 << 20));
    }
}
