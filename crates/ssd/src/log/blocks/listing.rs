//! The blocks of the log in the order in which they were opened.
//!
//! Input: two orders. Output: the blocks between them. Invariant: only blocks that hold records are listed, so a block that
//! is being erased is not.

use super::{BlockEntry, BlockTable};
use crate::media::geometry::BlockId;

impl BlockTable {
    /// Returns the blocks of the log with an order below this one that hold records, the oldest one first.
    pub fn log_blocks_below(&self, order: u64) -> impl Iterator<Item = (BlockId, &BlockEntry)> + '_ {
        self.log_blocks_between(0, order)
    }

    /// Returns the blocks of the log with an order from `from` on and below `below` that hold records, the oldest one first.
    ///
    /// # Panics
    /// `from` is above `below`.
    pub fn log_blocks_between(
        &self,
        from: u64,
        below: u64,
    ) -> impl Iterator<Item = (BlockId, &BlockEntry)> + '_ {
        self.by_order.range(from..below).map(|(_, block)| (*block, self.get(*block)))
    }

    /// Returns the number of blocks of the log with an order below this one that hold records. Takes as long as there are
    /// younger ones.
    #[must_use]
    pub fn log_blocks_count_below(&self, order: u64) -> usize {
        self.by_order.len() - self.by_order.range(order..).count()
    }
}
