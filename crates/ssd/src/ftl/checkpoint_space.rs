//! The blocks and pages that the checkpointer takes from the FTL.
//!
//! Input: the checkpointer's requests. Output: blocks, frames and programs for a checkpoint. Invariant: a checkpoint is
//! begun only if the collector keeps its reserve, and its blocks come from no client's append.

use super::Ftl;
use super::space_reserve::{IndexSize, checkpoint_blocks};
use crate::index::RecordIndex;
use crate::log::commit_record::CheckpointRoot;
use crate::log::prefix::Tick;
use crate::media::Media;
use crate::media::geometry::{BlockId, PageAddress};
use headwater_dma::frame::MediaFrame;
use headwater_host::clock::Nanos;

impl<M: Media> Ftl<M> {
    /// Returns true if this many blocks are free for a checkpoint. While it is written the collector needs none:
    /// afterwards the blocks of the checkpoint before are free, and each block that it opens lets it empty another one.
    pub(crate) fn has_checkpoint_blocks(&self, blocks: usize) -> bool {
        self.blocks().free_count() >= blocks
    }

    /// Returns the blocks that a checkpoint takes now: its map twice and its index once.
    pub(crate) fn checkpoint_blocks(&self) -> usize {
        checkpoint_blocks(self.blocks().len(), self.index_size(), self.catalog.doubts().settled().len())
    }

    pub(super) fn index_size(&self) -> IndexSize {
        IndexSize { entries: self.index().len(), expiries: self.catalog.expiry().len() }
    }

    /// Returns the free blocks that only a checkpoint may open: those of the next one, or the rest of the one that is
    /// being written.
    pub(super) fn checkpoint_reserve(&self) -> usize {
        self.checkpoint_blocks().saturating_sub(self.space.checkpoint_opened())
    }

    /// Returns true if opening this many blocks would take those of a checkpoint that could begin now, and that would make
    /// blocks of the window reusable. Where blocks are too few for a checkpoint the collector goes on: it may free some.
    pub(super) fn needs_checkpoint_first(&self, opened: usize) -> bool {
        // After a power cut only these are free, and a checkpoint must still be possible.
        let (free, reserve) = (self.blocks().unlisted_free_count(), self.checkpoint_reserve());
        let taken = opened.saturating_sub(self.blocks().free_count() - free);
        taken > 0
            && free >= reserve
            && free - taken.min(free) < reserve
            && self.blocks().has_garbage_behind(self.reusable_below)
    }

    /// Reserves blocks for a checkpoint, and requests them from the collector. Returns true if it collects more now.
    pub(crate) fn request_checkpoint_blocks(&mut self, blocks: usize) -> bool {
        self.space.request_ready(blocks);
        self.collector.request_blocks(blocks)
    }

    /// Opens the next block of a checkpoint; `None` if none is erased now.
    pub(crate) fn open_checkpoint_block(&mut self) -> Option<BlockId> {
        self.space.request_ready(1);
        let block = self.flash.open_checkpoint_block()?;
        self.space.open_for_checkpoint();
        Some(block)
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

    /// Discards a block of an older checkpoint, after a durable record names a newer one; later if a snapshot keeps it.
    pub(crate) fn discard_checkpoint_block(&mut self, block: BlockId) {
        if !self.keep_checkpoint_block(block) {
            self.flash.blocks_mut().discard(block);
        }
    }

    /// Returns the order of the block and the last tick in front of the window of a checkpoint that begins now.
    pub(crate) fn window_start(&self) -> (u64, Tick) {
        self.flash.log().window_start(self.flash.blocks())
    }

    /// Notes that the map of a checkpoint is written now. Returns its number.
    pub(crate) fn begin_map(&mut self) -> u64 {
        self.flash.blocks_mut().begin_map()
    }

    /// Makes the next commit record name a checkpoint.
    ///
    /// # Panics
    /// It is older than the one that records name.
    pub(crate) fn name_checkpoint(&mut self, root: CheckpointRoot) {
        self.flash.records_mut().set_root(root);
    }

    /// Ends a checkpoint that a durable record names: blocks in front of its window may be used again.
    pub(crate) fn finish_checkpoint(&mut self, start_order: u64, map: u64) {
        assert!(start_order >= self.reusable_below, "the window of a checkpoint grew");
        self.reusable_below = start_order;
        self.flash.blocks_mut().finish_map(map);
        self.space.end_checkpoint();
    }
}
