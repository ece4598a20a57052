//! Which extents belong to which record.
//!
//! Input: records that are appended, moved and replaced. Output: their extents. Invariant: an extent is named once: by a record,
//! a receipt, a store under way, or a store that ended without a record.

use super::open_receipts::OpenReceipts;
use crate::limits::EXTENT_BYTES;
use crate::log::extent_list::Extent;
use crate::log::extent_writes::ExtentWriter;
use crate::log::record::RecordAddress;
use crate::media::geometry::BLOCK_DATA_BYTES;
use std::collections::BTreeMap;

/// The extents of all values.
#[derive(Debug, Default)]
pub(super) struct ValueExtents {
    /// By the address of the record.
    pub(super) by_record: BTreeMap<RecordAddress, Vec<Extent>>,
    /// Extents that stores under way have still to open.
    pub(super) promised: usize,
    /// Extents of stores that ended without a record.
    pub(super) abandoned: Vec<(ExtentWriter, Vec<Extent>)>,
    /// Values that are received before the commands that store them.
    pub(super) receipts: OpenReceipts,
}

impl ValueExtents {
    /// Returns the bytes of extents that stores under way have still to open.
    #[inline]
    pub(super) fn promised_bytes(&self) -> u64 {
        bytes_of_extents(self.promised)
    }

    /// Notes that a record was moved.
    pub(super) fn relocate(&mut self, from: RecordAddress, to: RecordAddress) {
        if let Some(extents) = self.by_record.remove(&from) {
            self.by_record.insert(to, extents);
        }
    }
}

const _: () = assert!(BLOCK_DATA_BYTES == EXTENT_BYTES);

/// Returns the bytes of a value that so many extents hold.
pub(super) const fn bytes_of_extents(extents: usize) -> u64 {
    (extents * BLOCK_DATA_BYTES) as u64
}
