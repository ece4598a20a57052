//! The space that clients may not use: blocks for the collector, for a checkpoint, and for a stalled append.
//!
//! Input: the longest record so far, and the requests of stalled appends and of the checkpointer. Output: how many
//! blocks must stay ready or free, and how many bytes of live records the medium may hold. Invariant: the collector can
//! always move the longest record whole, at any fill level.

use crate::index::{ENTRY_BYTES, SEGMENTS};
use crate::media::geometry::{BLOCK_DATA_BYTES, PAGE_DATA_BYTES};
use headwater_host::width::to_usize;

/// Blocks that only the collector may open.
const RESERVE_BLOCKS: usize = 3;
/// Collection starts when fewer blocks than this are free.
const LOW_BLOCKS: usize = 6;
/// Blocks kept erased in advance.
const READY_BLOCKS: usize = 4;

/// Most free blocks beyond those needed.
const SURPLUS_BLOCKS_MAX: usize = 128;
/// The surplus is at most one block of this many of the medium, and one of [`SURPLUS_OF_SPARE`] that hold nothing live: more
/// would leave collection less garbage to choose from.
const SURPLUS_OF_MEDIUM: usize = 128;
const SURPLUS_OF_SPARE: usize = 32;

/// Returns the number of free blocks that collection makes beyond those needed now, on a medium of `blocks` blocks with this
/// many bytes of live records: one commit frees all of them.
pub(super) fn surplus_blocks(blocks: usize, live_bytes: u64) -> usize {
    let spare = blocks.saturating_sub(to_usize(live_bytes) / BLOCK_DATA_BYTES);
    (blocks / SURPLUS_OF_MEDIUM).min(spare / SURPLUS_OF_SPARE).min(SURPLUS_BLOCKS_MAX)
}

/// The blocks that are reserved.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SpaceReserve {
    /// Blocks that the collector needs beyond its usual reserve, to move the longest chained record so far.
    chain: usize,
    /// Ready blocks that a stalled append needs.
    ready_requested: usize,
    /// Blocks that the checkpoint being written has opened.
    checkpoint_opened: usize,
}

impl SpaceReserve {
    /// Returns the number of blocks that only the collector may open.
    pub(super) fn collector_blocks(&self) -> usize {
        RESERVE_BLOCKS + self.chain
    }

    /// Returns the number of free blocks below which collection starts.
    pub(super) fn low_blocks(&self) -> usize {
        LOW_BLOCKS + self.chain
    }

    /// Returns the number of blocks to keep erased in advance.
    pub(super) fn ready_blocks(&self) -> usize {
        READY_BLOCKS.max(self.ready_requested + self.collector_blocks() + 1)
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

    /// Notes that a checkpoint opened a block.
    pub(super) fn open_for_checkpoint(&mut self) {
        self.checkpoint_opened += 1;
    }

    /// Returns the number of blocks that the checkpoint being written has opened.
    pub(super) fn checkpoint_opened(&self) -> usize {
        self.checkpoint_opened
    }

    /// Notes that no checkpoint is being written.
    pub(super) fn end_checkpoint(&mut self) {
        self.checkpoint_opened = 0;
    }

    /// Returns the bytes of live records that a medium of `blocks` blocks may hold, with room for a new record of
    /// `bytes`: the whole medium without the reserve, two checkpoints of this index, quarantined blocks, and one part in
    /// 32 that collection needs.
    pub(super) fn capacity(&self, bytes: usize, blocks: u32, quarantined: u64, index: IndexSize) -> u64 {
        let checkpoints = 2 * checkpoint_blocks(blocks as usize, index, 0) as u64;
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

/// The size of an index.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IndexSize {
    /// Its entries.
    pub(super) entries: u64,
    /// Those of them with an expiry.
    pub(super) expiries: usize,
}

/// Returns the blocks of a checkpoint of a medium of `blocks` blocks with this index and this many settled keys: two maps,
/// in different blocks, and the index, which may grow by an eighth while it is written.
pub(super) fn checkpoint_blocks(blocks: usize, index: IndexSize, settled: usize) -> usize {
    let map = MAP_BYTES + blocks * MAP_BLOCK_BYTES + settled * SETTLED_BYTES;
    let entries = to_usize(index.entries);
    let index = SEGMENTS * 4 + entries * ENTRY_BYTES + index.expiries * EXPIRY_BYTES + PAGE_DATA_BYTES;
    map.div_ceil(BLOCK_DATA_BYTES) + (map + PAGE_DATA_BYTES + index + index / 8).div_ceil(BLOCK_DATA_BYTES)
}

/// Bytes of a map without its blocks, at most.
const MAP_BYTES: usize = 1_024;
/// Bytes of a block in a map.
const MAP_BLOCK_BYTES: usize = 48;
/// Bytes of a settled key in a map.
const SETTLED_BYTES: usize = 24;
/// Bytes of an expiry in an index.
const EXPIRY_BYTES: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_surplus_grows_with_the_medium_and_ends_where_it_is_full() {
        let block = BLOCK_DATA_BYTES as u64;
        assert_eq!((surplus_blocks(127, 0), surplus_blocks(128, 0), surplus_blocks(2_048, 0)), (0, 1, 16));
        assert_eq!(surplus_blocks(1 << 20, 0), SURPLUS_BLOCKS_MAX);
        assert_eq!(surplus_blocks(2_048, 2_048 * block / 10 * 9), 6);
        assert_eq!(surplus_blocks(2_048, 2_048 * block), 0);
        assert_eq!(surplus_blocks(2_048, u64::MAX), 0);
    }

    #[test]
    fn a_longer_record_raises_every_reserve_and_a_shorter_one_lowers_none() {
        let mut space = SpaceReserve::default();
        assert_eq!((space.collector_blocks(), space.low_blocks()), (RESERVE_BLOCKS, LOW_BLOCKS));
        let capacity = space.capacity(0, 100, 0, IndexSize::default());
        space.raise_for_record(3 * BLOCK_DATA_BYTES);
        space.raise_for_record(16);
        assert_eq!((space.collector_blocks(), space.low_blocks()), (RESERVE_BLOCKS + 2, LOW_BLOCKS + 2));
        assert_eq!(
            capacity - space.capacity(0, 100, 0, IndexSize::default()),
            2 * BLOCK_DATA_BYTES as u64 / 32 * 31
        );
        assert_eq!(
            space.capacity(0, 100, 0, IndexSize::default()),
            SpaceReserve::default().capacity(3 * BLOCK_DATA_BYTES, 100, 0, IndexSize::default())
        );
    }
}
