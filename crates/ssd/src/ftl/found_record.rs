//! A record that carries a requested key: its index entry, and the header that was read for it.

use crate::index::IndexEntry;
use crate::log::record::RecordHeader;

/// A record that carries the requested key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FoundRecord {
    pub(crate) entry: IndexEntry,
    /// `None` if the record's checksum does not match: the key exists and its value is lost.
    pub(crate) header: Option<RecordHeader>,
}
