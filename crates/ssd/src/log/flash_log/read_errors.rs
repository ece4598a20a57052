//! The account of reads that failed.
//!
//! Input: errors of reads. Output: their numbers, and the last error. Invariant: a page that is not the one that was programmed
//! counts at each read, and as damaged once it was read twice.

use super::FlashLog;
use crate::media::{Media, MediaError};

impl<M: Media> FlashLog<M> {
    /// Returns the number of reads that failed, and the last error of one.
    pub(crate) fn read_errors(&self) -> (u64, Option<MediaError>) {
        (self.read_errors, self.last_read_error)
    }

    /// Returns the number of reads of pages that hold other bytes than were programmed, also when read again.
    pub(crate) fn damaged_pages(&self) -> u64 {
        self.damaged_pages
    }

    /// Counts a read that failed, or a page that did not prove itself.
    pub(super) fn note_read_error(&mut self, error: MediaError) {
        self.read_errors += 1;
        self.last_read_error = Some(error);
    }
}
