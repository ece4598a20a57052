//! The table of the values that are being received.
//!
//! Input: receipts that begin and end. Output: what each of them holds. Invariant: the extents of all of them are counted.

use super::extent_store::ExtentStore;
use crate::command::ValueReceipt;
use headwater_dma::frame::MediaFrame;
use headwater_host::clock::Nanos;
use headwater_nvme::spec::status::Status;
use std::collections::BTreeMap;

/// A value that is being received.
#[derive(Debug)]
pub(super) struct OpenReceipt {
    /// The device's clone: the receipt ends when it is the last one.
    pub(super) handle: ValueReceipt,
    /// The filled extents, or the status of the store that cannot be.
    pub(super) store: Result<ExtentStore, Status>,
    /// The page that is filled in part, and its bytes so far.
    pub(super) partial: Option<(MediaFrame, usize)>,
    /// Bytes received.
    pub(super) bytes: usize,
    /// True while an operation opens its next extent.
    pub(super) is_opening: bool,
    /// The time of its last progress.
    pub(super) moved_at: Nanos,
}

/// The values that are being received.
#[derive(Debug, Default)]
pub(super) struct OpenReceipts {
    pub(super) open: BTreeMap<u64, OpenReceipt>,
    pub(super) last: u64,
    /// Extents of all receipts.
    pub(super) extents: usize,
    /// Bytes received so far.
    pub(super) bytes: u64,
    /// The time of the present turn.
    pub(super) now: Nanos,
}
