//! The adoption of the blocks that recovery finds in use.
//!
//! Input: blocks with their entries, before the table is used. Output: the table as the device before left it. Invariant:
//! every block that was not adopted holds nothing that counts.

use super::{BlockEntry, BlockState, BlockTable, BlockUse, EMPTY_ENTRY, EXTENT_LIVE_BYTES, FULL_PAGES};
use crate::log::prefix::EPOCH_SHIFT;
use crate::media::geometry::BlockId;

impl BlockTable {
    /// Adds a block that recovery found in use.
    pub fn adopt(&mut self, block: BlockId, found: BlockEntry) {
        if found.is_of_log() {
            self.by_order.insert(found.order, block);
        }
        self.live_bytes += u64::from(found.live_bytes) + u64::from(found.tombstone_bytes);
        self.tombstone_bytes += u64::from(found.tombstone_bytes);
        self.entries[block.index()] = found;
        self.update_cost(block);
    }

    /// Adds a block after the adoption ended: it is neither erased nor collected.
    pub fn adopt_lost(&mut self, block: BlockId, found: BlockEntry) {
        self.dirty.retain(|dirty| *dirty != block);
        self.adopt(block, BlockEntry { state: BlockState::Quarantined, ..found });
    }

    /// Adds extents after the adoption ended, each with its order. Blocks in use are left as they are.
    pub fn adopt_extents(&mut self, extents: impl Iterator<Item = (BlockId, u64)>) {
        for (block, order) in extents {
            if self.entries.get(block.index()).is_some_and(|entry| entry.order == 0) {
                let found = BlockEntry {
                    state: BlockState::Closed,
                    order,
                    live_bytes: EXTENT_LIVE_BYTES,
                    pages: FULL_PAGES,
                    usage: BlockUse::Extent,
                    ..EMPTY_ENTRY
                };
                self.adopt(block, found);
            }
        }
        let table = &self.entries;
        self.dirty.retain(|block| table[block.index()].state == BlockState::Dirty);
    }

    /// Ends adoption: every block that was not adopted must be erased before use. Orders continue in a new epoch.
    ///
    /// # Panics
    /// A block was opened in a later epoch.
    pub fn finish_adoption(&mut self, epoch: u64) {
        self.order_next = (epoch << EPOCH_SHIFT) + 1;
        assert!(
            self.entries.iter().all(|block| block.order < self.order_next),
            "a block was opened in a later epoch than this one"
        );
        let table = &self.entries;
        self.dirty.retain(|block| table[block.index()].state == BlockState::Dirty);
    }
}
