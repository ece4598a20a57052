//! The erase of all records up to a sequence, for Sanitize: a clear makes records dead, the purge erases their bytes.
//!
//! Input: a sequence. Output: the number of blocks left that may hold older records. Invariant: when none is left,
//! every block opened at or before the sequence is erased, no checkpoint lists it, and records live at that time have been
//! moved.

use super::Ftl;
use super::snapshot::SnapshotLoss;
use crate::command::Sequence;
use crate::log::blocks::{BlockEntry, BlockState};
use crate::media::Media;

/// The error of a purge that meets a quarantined block, which is never erased because the damage would be hidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockQuarantined;

/// Returns true if a block may hold records that were removed. An extent with a live record holds only that.
fn holds_removed(block: &BlockEntry) -> bool {
    let is_freed = matches!(block.state, BlockState::Evacuated | BlockState::Erasing);
    block.order != 0 && (block.is_of_log() || block.is_extent() && is_freed)
}

impl<M: Media> Ftl<M> {
    /// Closes the open block, so that it can be collected too.
    pub(crate) fn end_block_for_purge(&mut self) {
        self.flash.finish_block();
    }

    /// Returns the number of blocks that were opened at or before a sequence.
    pub(crate) fn blocks_opened_by(&self, up_to: Sequence) -> usize {
        let old =
            self.blocks().iter().filter(|(_, block)| holds_removed(block) && block.open_sequence <= up_to);
        old.count()
    }

    /// Starts collection and erase of the old blocks. Returns the number left.
    pub(crate) fn purge(&mut self, up_to: Sequence) -> Result<usize, BlockQuarantined> {
        // What is sanitized must not stay for a backup or a reader.
        self.lose_snapshot(SnapshotLoss::Sanitized);
        self.held_values.give_up();
        let has_abandoned = self.purge_receipts(up_to);
        let is_freed_extent = |block: &BlockEntry| block.is_extent() && holds_removed(block);
        let has_extents =
            self.blocks().iter().any(|(_, block)| is_freed_extent(block) && block.open_sequence <= up_to);
        if self.blocks().watermark() > up_to && !has_extents && !has_abandoned {
            return Ok(0);
        }
        let set_aside = |state: BlockState| state == BlockState::Quarantined;
        if self.blocks().iter().any(|(_, block)| set_aside(block.state) && block.open_sequence <= up_to) {
            return Err(BlockQuarantined);
        }
        // More free blocks than are possible: collection continues until the watermark has passed the sequence.
        self.collector.request_blocks(self.blocks().len());
        let left = self.blocks_opened_by(up_to);
        // Blocks of the window are erased behind a later checkpoint, and the maps of later checkpoints do not list the
        // erased ones.
        let in_window =
            |block: &BlockEntry| block.open_sequence <= up_to && block.order >= self.reusable_below;
        let used = |block: &BlockEntry| block.order != 0 && block.is_of_log();
        if left == 0 || self.blocks().iter().any(|(_, block)| used(block) && in_window(block)) {
            self.collector.wants_checkpoint = true;
        }
        Ok(left.max(1))
    }

    /// Ends the purge: collection returns to its usual targets.
    pub(crate) fn end_purge(&mut self) {
        self.collector.clear_requested_blocks();
    }
}
