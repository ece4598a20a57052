//! The choice of the next block to collect, by policy, from the table of costs.
//!
//! Input: the block table. Output: a victim, or none if no block is eligible. Invariant: only closed blocks have a
//! cost, and it equals the live and tombstone bytes of their entries.

use super::costs::NOT_COLLECTED;
use super::{BlockState, BlockTable};
use crate::config::VictimPolicy;
use crate::log::prefix::Tick;
use crate::media::geometry::{BLOCK_DATA_BYTES, BlockId};

impl BlockTable {
    /// Returns the bytes that must be moved before the block can be erased.
    #[must_use]
    pub fn cost(&self, block: BlockId) -> u32 {
        let entry = self.get(block);
        let is_kept = entry.tombstone_bytes > 0 && entry.tombstone_sequence >= self.watermark();
        entry.live_bytes + if is_kept { entry.tombstone_bytes } else { 0 }
    }

    /// Returns the next block to collect, by policy: closed, opened in front of the window of the checkpoint that counts
    /// (`reusable_below`), so that it can be used again, and with no page behind `witnessed`, what is known to be durable.
    #[must_use]
    pub fn victim(&self, policy: VictimPolicy, witnessed: Tick, reusable_below: u64) -> Option<BlockId> {
        let eligible = |block: &BlockId| {
            let entry = self.get(*block);
            entry.state == BlockState::Closed && entry.last_tick <= witnessed && entry.order < reusable_below
        };
        match policy {
            VictimPolicy::Fifo => self.by_order.values().copied().find(eligible),
            VictimPolicy::Greedy => self.costs.cheapest(|block| eligible(&block)),
        }
    }

    /// Returns true if a checkpoint would let blocks be collected that cannot be collected now: closed ones in its window
    /// that hold less than they could.
    #[must_use]
    pub fn has_garbage_behind(&self, reusable_below: u64) -> bool {
        self.by_order.range(reusable_below..).any(|(_, block)| {
            let entry = self.get(*block);
            entry.state == BlockState::Evacuated
                || entry.state == BlockState::Closed
                    && (self.cost(*block) as usize) < BLOCK_DATA_BYTES / 64 * 63
        })
    }

    /// Updates the cost of a block from its entry.
    pub(super) fn update_cost(&mut self, block: BlockId) {
        let entry = &self.entries[block.index()];
        let closed = entry.state == BlockState::Closed && entry.is_of_log();
        let cost = if closed { entry.live_bytes + entry.tombstone_bytes } else { NOT_COLLECTED };
        self.costs.set(block, cost);
    }
}
