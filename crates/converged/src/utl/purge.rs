//! Erasing whatever was written up to a point, for Sanitize: clears make records dead, this takes their bytes away.
//!
//! In: a sequence. Out: how many blocks that may hold something so old are left. Invariant: when none is left, every block
//! that was opened before the sequence is erased and the erase is durable; what was alive then has been moved.

use super::Utl;
use crate::blocks::BlockState;
use crate::command::Sequence;
use crate::media::Media;

/// A block whose records cannot be read cannot be erased either: the damage would no longer show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SetAside;

impl<M: Media> Utl<M> {
    /// Ends the open block, so that it can be collected too.
    pub(crate) fn end_block_for_purge(&mut self) {
        self.log.finish_block(&mut self.dram, &mut self.blocks);
    }

    /// Blocks that were opened at or before a sequence.
    pub(crate) fn blocks_opened_by(&self, up_to: Sequence) -> usize {
        let old = self
            .blocks
            .iter()
            .filter(|(_, block)| block.order != 0 && !block.checkpoint && block.open_sequence <= up_to);
        old.count()
    }

    /// Asks for the old blocks' collection and erase. Returns how many are left.
    pub(crate) fn purge(&mut self, up_to: Sequence) -> Result<usize, SetAside> {
        if self.blocks.watermark() > up_to {
            return Ok(0);
        }
        let set_aside = |state: BlockState| state == BlockState::Quarantined;
        if self.blocks.iter().any(|(_, block)| set_aside(block.state) && block.open_sequence <= up_to) {
            return Err(SetAside);
        }
        // More than there can be: collection goes on until the watermark has passed.
        self.collector.demand(self.blocks.len());
        if self.blocks.is_fading() && self.blocks.erasing_now() == 0 && self.commit.is_idle() {
            self.commit.want_flush();
        }
        Ok(self.blocks_opened_by(up_to).max(1))
    }

    /// Collection goes back to what it does by itself.
    pub(crate) fn end_purge(&mut self) {
        self.collector.forget_demand();
    }
}
