//! Entries of the index whose record is lost, although an intact record lies at their address.
//!
//! Input: an entry of a key, and a record there that has another key. Output: whether the entry is that other key's.
//! Invariant: recovery keeps the entry of a lost record although its block was opened again since; what lies in its place
//! now is never taken for the record, and a write of the key ends its error.

use super::{Ftl, StallReason};
use crate::index::{IndexEntry, KeyHash};
use crate::log::record::RecordHeader;
use crate::media::Media;

impl<M: Media> Ftl<M> {
    /// Returns true if the record at an entry, whose key is not the requested one, is that of another key with the same
    /// hash. If not, a byte of it is damaged, or the entry is that of a lost record: the requested key exists.
    #[cold]
    pub(crate) fn is_of_another_key(
        &self,
        hash: KeyHash,
        entry: IndexEntry,
        header: &RecordHeader,
    ) -> Result<bool, StallReason> {
        Ok(self.is_intact(entry, header)? && self.index_key(entry, header)? == hash)
    }
}
