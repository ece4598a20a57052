//! The room of an append, and appends of records whose pages are built before.
//!
//! Input: the length of an append; drafts. Output: true if there is room; the address of a record. Invariant: a draft's
//! frames are device DRAM that no page uses, until the draft is appended or given up.

use super::FlashLog;
use crate::log::RecordSource;
use crate::log::record::{RecordAddress, RecordHeader};
use crate::log::record_draft::RecordDraft;
use crate::media::Media;

/// The length of an append.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AppendSize {
    /// Bytes of its records.
    pub(crate) bytes: usize,
    /// Bytes of frames that are filled already.
    pub(crate) drafted: usize,
}

impl AppendSize {
    /// Returns the size of an append of which nothing is filled.
    #[inline]
    pub(crate) const fn of(bytes: usize) -> Self {
        Self { bytes, drafted: 0 }
    }
}

impl<M: Media> FlashLog<M> {
    /// Checks that an append finds its frames, and its blocks beside `ready` ready ones and `free` free ones. Returns the
    /// number of blocks that it may open if not.
    pub(crate) fn check_room(&mut self, append: AppendSize, ready: usize, free: usize) -> Result<(), usize> {
        let blocks = self.log.blocks_for(append.bytes);
        let to_fill = append.bytes.saturating_sub(append.drafted);
        let frames = self.log.frames_for(to_fill) + usize::from(self.traits.guard_pages);
        let few = self.blocks.ready_count() < blocks + ready || self.blocks.free_count() < blocks + free;
        if (blocks > 0 && few) || !self.page_cache.reserve(frames) {
            return Err(blocks);
        }
        Ok(())
    }

    /// Appends a record with the next sequence whose pages are built, and returns its address. The caller checked the room.
    pub(crate) fn append_draft(&mut self, header: &RecordHeader, draft: RecordDraft) -> RecordAddress {
        assert!(header.sequence == self.log.sequence_next(), "a new record has the sequence of an older one");
        let address = self.log.append_draft(&mut self.page_cache, &mut self.blocks, header, draft);
        self.log.advance_sequence();
        address
    }

    /// Copies the next bytes of a draft's payload. The caller checked the room.
    pub(crate) fn extend_draft(&mut self, draft: &mut RecordDraft, piece: RecordSource<'_>) {
        draft.put(&mut self.page_cache, piece);
    }

    /// Returns the frames of a draft that is given up.
    pub(crate) fn discard_draft(&mut self, draft: RecordDraft) {
        draft.discard(&mut self.page_cache);
    }
}
