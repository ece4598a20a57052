//! The space that clients may not use: blocks for the collector, for a checkpoint, and for a stalled append.
//!
//! Input: the longest record so far, and the requests of stalled appends and of the checkpointer. Output: how many
//! blocks must stay ready or free, and how many bytes of live records the medium may hold. Invariant: the collector can
//! always move the longest record whole, at any fill level.

use crate::index::ENTRY_BYTES;
use crate::media::geometry::BLOCK_DATA_BYTES;

/// Blocks that only the collector may open.
const RESERVE_BLOCKS: usize = 3;
/// Collection starts when fewer blocks than this are free.
const LOW_BLOCKS: usize = 6;
/// Blocks kept erased in advance.
const READY_BLOCKS: usize = 4;

/// The blocks that are reserved.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SpaceReserve {
    /// Blocks that the collector needs beyond its usual reserve, to move the longest chained record so far.
    chain: usize,
    /// Ready blocks that a stalled append needs.
    ready_requested: usize,
    /// Blocks reserved for a checkpoint; appends of clients may not open them.
    checkpoint: usize,
}

impl SpaceReserve {
    /// Returns the number of blocks that only the collector may open.
    pub(super) fn collector_blocks(&self) -> usize {
        RESERVE_BLOCKS + self.chain
    }

    /// Returns the number of blocks that appends of clients may not open.
    pub(super) fn client_reserve(&self) -> usize {
        self.collector_blocks() + self.checkpoint
    }

    /// Returns the number of free blocks below which collection starts.
    pub(super) fn low_blocks(&self) -> usize {
        LOW_BLOCKS + self.chain
    }

    /// Returns the number of blocks to keep erased in advance.
    pub(super) fn ready_blocks(&self) -> usize {
        READY_BLOCKS.max(self.ready_requested + self.client_reserve() + 1)
    }

    /// Raises the reserve so that the collector can move a record of this many bytes whole.
    pub(super) fn raise_for_record(&mut self, bytes: usize) {
        self.chain = self.chain.max(chain_reserve(bytes));
    }

    /// Requests ready blocks for a stalled append.
    pub(super) fn request_ready(&mut self, blocks: usize) {
        self.ready_requested = self.ready_requested.max(blocks);
    }

    /// Ends the request for ready blocks, after the first stalled append ran.
    pub(super) fn clear_ready_request(&mut self) {
        self.ready_requested = 0;
    }

    /// Reserves blocks for a checkpoint, instead of those reserved before.
    pub(super) fn reserve_for_checkpoint(&mut self, blocks: usize) {
        self.checkpoint = blocks;
    }

    /// Returns the bytes of live records that a medium of `blocks` blocks may hold, with room for a new record of
    /// `bytes`: the whole medium without the reserve, two checkpoints of an index of `entries`, quarantined blocks, and
    /// one part in 32 that collection needs.
    pub(super) fn capacity(&self, bytes: usize, blocks: u32, quarantined: u64, entries: u64) -> u64 {
        let checkpoints = (2 * entries * ENTRY_BYTES as u64).div_ceil(BLOCK_DATA_BYTES as u64);
        let reserve = LOW_BLOCKS + 2 + self.chain.max(chain_reserve(bytes));
        let reserved = reserve as u64 + quarantined + checkpoints;
        u64::from(blocks).saturating_sub(reserved) * BLOCK_DATA_BYTES as u64 / 32 * 31
    }
}

/// Returns the blocks that moving a record of this many bytes may open, beyond the usual reserve.
const fn chain_reserve(bytes: usize) -> usize {
    (bytes.div_ceil(BLOCK_DATA_BYTES) + 2).saturating_sub(RESERVE_BLOCKS)
}

const _: () =
    assert!(chain_reserve(BLOCK_DATA_BYTES) == 0, "records of one block must need no extra reserve");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_record_raises_every_reserve_and_a_shorter_one_lowers_none() {
        let mut space = SpaceReserve::default();
        assert_eq!((space.collector_blocks(), space.low_blocks()), (RESERVE_BLOCKS, LOW_BLOCKS));
        let capacity = space.capacity(0, 100, 0, 0);
        space.raise_for_record(3 * BLOCK_DATA_BYTES);
        space.raise_for_record(16);
        assert_eq!((space.collector_blocks(), space.low_blocks()), (RESERVE_BLOCKS + 2, LOW_BLOCKS + 2));
        assert_eq!(capacity - space.capacity(0, 100, 0, 0), 2 * BLOCK_DATA_BYTES as u64 / 32 * 31);
        assert_eq!(
            space.capacity(0, 100, 0, 0),
            SpaceReserve::default().capacity(3 * BLOCK_DATA_BYTES, 100, 0, 0)
        );
    }

    #[test]
    fn a_checkpoint_reserves_blocks_from_clients_and_not_from_the_collector() {
        let mut space = SpaceReserve::default();
        space.reserve_for_checkpoint(9);
        space.request_ready(2);
        space.request_ready(1);
        assert_eq!(space.collector_blocks(), RESERVE_BLOCKS);
        assert_eq!(space.client_reserve(), RESERVE_BLOCKS + 9);
        assert_eq!(space.ready_blocks(), 2 + RESERVE_BLOCKS + 9 + 1);
        space.clear_ready_request();
        space.reserve_for_checkpoint(0);
        assert_eq!(space.ready_blocks(), READY_BLOCKS);
    }
}
