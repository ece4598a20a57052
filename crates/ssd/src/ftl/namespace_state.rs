//! The counts of one namespace: its keys or blocks, their bytes, and its last clear.

use crate::command::Sequence;
use crate::index::IndexEntry;
use crate::limits::SHORT_RECORD_BYTES;
use crate::log::record::UNIT_BYTES;

/// The counts of a namespace.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NamespaceState {
    /// Keys, or blocks, that exist.
    pub(crate) keys: u64,
    /// Bytes of their records.
    pub(crate) bytes: u64,
    /// Those of them with more than [`SHORT_RECORD_BYTES`].
    pub(crate) long: u64,
    /// Records below this sequence were removed by a clear.
    pub(crate) cleared: Sequence,
}

impl NamespaceState {
    /// Counts a key or block that was created with this record.
    pub(super) fn add(&mut self, entry: IndexEntry) {
        self.keys += 1;
        self.bytes += bytes_of(entry);
        self.long += u64::from(is_long(entry));
    }

    /// Uncounts a key or block whose record was removed.
    pub(super) fn remove(&mut self, entry: IndexEntry) {
        let keys = self.keys.checked_sub(1);
        let bytes = self.bytes.checked_sub(bytes_of(entry));
        let long = self.long.checked_sub(u64::from(is_long(entry)));
        self.keys = keys.expect("a namespace lost a key that was never counted");
        self.bytes = bytes.expect("a namespace lost bytes that were never counted");
        self.long = long.expect("a namespace lost a long record that was never counted");
    }
}

fn is_long(entry: IndexEntry) -> bool {
    entry.has_extents || bytes_of(entry) > SHORT_RECORD_BYTES as u64
}

fn bytes_of(entry: IndexEntry) -> u64 {
    u64::from(entry.units) * UNIT_BYTES as u64
}
