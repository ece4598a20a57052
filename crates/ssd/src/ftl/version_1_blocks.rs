//! The blocks of version 1 on a medium that was upgraded (`docs/formats/medium-2.md`).
//!
//! Input: the order below which blocks are of version 1. Output: those that are left, and the next one to collect.
//! Invariant: a block that was opened since the upgrade is never among them.

use super::Ftl;
use crate::log::blocks::{BlockEntry, BlockState};
use crate::media::{BlockId, Media};

impl<M: Media> Ftl<M> {
    /// Returns the order below which blocks were written by version 1; 0 if no such block is left.
    pub(crate) fn version_1_below(&self) -> u64 {
        if self.version_1_blocks().next().is_some() { self.version_1_below } else { 0 }
    }

    /// Returns true if the block was written by version 1 and not used again since.
    pub(crate) fn is_version_1(&self, block: BlockId) -> bool {
        self.blocks().get(block).order < self.version_1_below
    }

    /// Returns the blocks of version 1 that hold something, or did until what was moved out of them is durable; the oldest
    /// one first.
    pub(crate) fn version_1_blocks(&self) -> impl Iterator<Item = (BlockId, &BlockEntry)> + '_ {
        self.blocks().log_blocks_below(self.version_1_below)
    }

    /// Returns the oldest block of version 1 that is not out of service.
    pub(crate) fn oldest_version_1_block(&self) -> Option<BlockId> {
        let mut blocks = self.version_1_blocks();
        blocks.find(|(_, block)| block.state != BlockState::Quarantined).map(|(block, _)| block)
    }

    /// Makes the collector move everything out of the blocks of version 1, or ends that.
    pub(crate) fn set_rewrites_version_1(&mut self, rewrites: bool) {
        self.collector.rewrites_version_1 = rewrites;
    }

    /// Returns the next block of version 1 to collect.
    pub(crate) fn next_version_1_victim(&self) -> Option<BlockId> {
        let mut blocks = self.version_1_blocks();
        blocks.find(|(_, block)| block.state == BlockState::Closed).map(|(block, _)| block)
    }
}
