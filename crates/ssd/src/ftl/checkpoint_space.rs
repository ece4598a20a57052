//! The blocks and pages that the checkpointer takes from the FTL.
//!
//! Input: the checkpointer's requests. Output: blocks, frames and programs for a checkpoint. Invariant: a checkpoint is
//! begun only if the collector keeps its reserve, and its blocks come from no client's append.

use super::Ftl;
use crate::media::Media;
use crate::media::geometry::{BlockId, PageAddress};
use headwater_dma::frame::MediaFrame;
use headwater_host::clock::Nanos;

impl<M: Media> Ftl<M> {
    /// Returns true if this many blocks are free for a checkpoint, and nothing that recovery left must be erased first.
    pub(crate) fn has_checkpoint_blocks(&self, blocks: usize) -> bool {
        self.blocks().free_count() >= blocks + self.space.low_blocks() && !self.collector.is_cleaning_up()
    }

    /// Reserves blocks for a checkpoint, and requests them from the collector. Returns true if it collects more now.
    pub(crate) fn request_checkpoint_blocks(&mut self, blocks: usize) -> bool {
        self.space.reserve_for_checkpoint(blocks + self.space.low_blocks());
        self.collector.request_blocks(blocks)
    }

    /// Opens the next block of a checkpoint; `None` if only the collector may open one now.
    pub(crate) fn open_checkpoint_block(&mut self) -> Option<BlockId> {
        if self.blocks().ready_count() <= self.space.collector_blocks() {
            return None;
        }
        self.flash.open_checkpoint_block()
    }

    /// Takes a frame for a page of a checkpoint; `None` if every frame is in use.
    pub(crate) fn take_checkpoint_frame(&mut self) -> Option<MediaFrame> {
        self.flash.take_frame()
    }

    /// Submits the program of a page of a checkpoint. Returns false, and keeps the frame, if the medium accepts none
    /// now.
    pub(crate) fn program_checkpoint_page(
        &mut self,
        page: PageAddress,
        frame: MediaFrame,
        now: Nanos,
    ) -> bool {
        self.flash.program_checkpoint_page(page, frame, now)
    }

    /// Closes a block of a checkpoint after this many pages.
    pub(crate) fn close_checkpoint_block(&mut self, block: BlockId, pages: u8) {
        self.flash.blocks_mut().close(block, pages);
    }

    /// Discards a block of an older checkpoint, after a newer one is durable.
    pub(crate) fn discard_checkpoint_block(&mut self, block: BlockId) {
        self.flash.blocks_mut().discard(block);
    }
}

impl<M> Ftl<M> {
    /// Releases the blocks that were reserved for a checkpoint.
    pub(crate) fn release_checkpoint_blocks(&mut self) {
        self.space.reserve_for_checkpoint(0);
    }
}
