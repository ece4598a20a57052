//! Counters that the stages above read and raise.
//!
//! Input: what happened. Output: the counts since the start. Invariant: no count falls.

use super::Ftl;
use crate::media::Media;

impl<M: Media> Ftl<M> {
    /// Counts records whose checksum does not match.
    pub(crate) fn count_damaged(&mut self, records: u64) {
        self.stats.damaged += records;
    }

    /// Counts a key that expired.
    pub(crate) fn count_expired(&mut self) {
        self.stats.expired += 1;
    }

    /// Returns the bytes of records that clients wrote since the start.
    pub(crate) fn client_bytes(&self) -> u64 {
        self.stats.client_bytes
    }

    /// Returns the bytes that collection moved: while they stay the same, every record lies where it was found.
    pub(crate) fn moved_bytes(&self) -> u64 {
        self.stats.moved_bytes
    }

    /// Returns the records whose checksum did not match.
    pub(crate) fn damaged(&self) -> u64 {
        self.stats.damaged
    }
}
