//! The move of a record from one place of the log to its write frontier.
//!
//! Input: a record's header, and where its bytes lie. Output: its new address. Invariant: a record whose bytes fail its
//! checksum is not moved.

use super::{FlashLog, PageSpan};
use crate::log::record::{RecordAddress, RecordHeader};
use crate::media::Media;

/// Pieces of a record, one a page, that are proven while they are copied.
pub(crate) const CHECKED_PIECES_MAX: usize = 3;

/// The result of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CheckedMove {
    /// The record is at the write frontier.
    Moved(RecordAddress),
    /// Its bytes fail its checksum.
    Damaged,
    /// It cannot be proven while it is copied: no block is open, it does not fit into it unchanged, is too long, or one of its
    /// pages is not at hand.
    Unsuitable,
}

impl<M: Media> FlashLog<M> {
    /// Appends a record unchanged, of which the bytes behind its checksum lie in these pieces of pages. The caller checked the
    /// room.
    pub(crate) fn append_checked(
        &mut self,
        header: &RecordHeader,
        spans: &[Option<PageSpan>; CHECKED_PIECES_MAX],
    ) -> CheckedMove {
        let Some(mut copied) = self.log.begin_copy(&mut self.page_cache, header) else {
            return CheckedMove::Unsuitable;
        };
        let mut pieces = [&[][..]; CHECKED_PIECES_MAX];
        for (piece, (page, within, bytes)) in pieces.iter_mut().zip(spans.iter().flatten()) {
            let shown = if self.traits.addressable { self.media.view(*page) } else { None };
            let at_hand = shown.or_else(|| self.page_cache.peek(*page));
            let Some(bytes) = at_hand.and_then(|page| page.get(*within..within + bytes)) else {
                copied.discard(&mut self.page_cache);
                return CheckedMove::Unsuitable;
            };
            *piece = bytes;
        }
        if !self.log.copy_record(&mut copied, header.crc, pieces.into_iter()) {
            copied.discard(&mut self.page_cache);
            return CheckedMove::Damaged;
        }
        CheckedMove::Moved(self.log.append_copied(&mut self.page_cache, &mut self.blocks, header, copied))
    }
}
