//! The blocks and pages of a checkpoint on the medium.
//!
//! Input: pages of a checkpoint. Output: their programs. Invariant: they are no part of the log, and have no tick.

use super::FlashLog;
use crate::log::blocks::BlockUse;
use crate::media::geometry::{BlockId, PageAddress};
use crate::media::token::MediaPurpose;
use crate::media::{Media, MediaOp, RefusedOp};
use headwater_dma::frame::MediaFrame;
use headwater_host::clock::Nanos;

impl<M: Media> FlashLog<M> {
    /// Opens a ready block for a checkpoint; `None` if none is ready.
    pub(crate) fn open_checkpoint_block(&mut self) -> Option<BlockId> {
        self.blocks.open(self.log.sequence_next(), BlockUse::Checkpoint)
    }

    /// Submits the program of a page of a checkpoint. Returns false, and keeps the frame, if the medium accepts none
    /// now.
    ///
    /// # Panics
    /// The medium returns another operation than the one that it rejects.
    pub(crate) fn program_checkpoint_page(
        &mut self,
        page: PageAddress,
        frame: MediaFrame,
        now: Nanos,
    ) -> bool {
        let token = MediaPurpose::Checkpoint.encode();
        match self.media.submit(token, MediaOp::Program { page, frame }, now) {
            Ok(()) => true,
            Err(RefusedOp { op: MediaOp::Program { frame, .. }, .. }) => {
                self.page_cache.return_frame(frame);
                false
            }
            Err(RefusedOp { op, .. }) => unreachable!("the medium rejected {page} and returned {op:?}"),
        }
    }
}
