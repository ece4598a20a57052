//! The backing device of a cache: it accepts transfers and completes them in any order.
//!
//! Input: [`BackingTransfer`]s with tickets. Output: the same tickets, once each. Invariant: an accepted transfer holds its
//! buffers until it completes.

use crate::buffer::Buffer;
use crate::command::WriteDurability;
use headwater_nvme::spec::status::Status;

/// The operation of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferKind {
    /// A read from the device into the segments.
    Read,
    /// A write from the segments to the device.
    Write,
    /// A write of zeroes.
    Zeroes,
    /// A deallocation.
    Discard,
    /// A flush: everything completed before becomes durable.
    Flush,
}

/// One command for the device.
#[derive(Clone, Debug)]
pub struct BackingTransfer {
    /// The operation.
    pub kind: TransferKind,
    /// The start on the device in bytes, a multiple of a block.
    pub offset: u64,
    /// The length in bytes, whole blocks; equal to that of the segments.
    pub bytes: u64,
    /// The durability of a write.
    pub durable: WriteDurability,
    /// The memory of reads and writes, in order.
    pub segments: Vec<Buffer>,
}

/// The limits of one transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackingLimits {
    /// The most bytes of a read or a write.
    pub transfer_bytes_max: usize,
    /// The most segments.
    pub segments_max: usize,
    /// The most bytes of zeroes or a discard.
    pub range_bytes_max: u64,
}

/// The reason why a transfer was not accepted. No completion follows.
#[derive(Debug)]
pub enum TransferRefusal {
    /// The device has no room; submit the transfer again.
    Full(BackingTransfer),
    /// The transfer failed.
    Failed(Status),
}

/// A completed transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferCompletion {
    /// The ticket of its submission.
    pub ticket: u64,
    /// The result.
    pub status: Status,
}

/// The backing device of a cache.
pub trait BackingDevice {
    /// Returns the limits of a transfer. The cache calls it often, so it must be cheap.
    fn limits(&self) -> BackingLimits;

    /// Accepts a transfer. `Ok` means that exactly one [`TransferCompletion`] follows.
    ///
    /// # Errors
    /// [`TransferRefusal`]: it had no effect.
    fn submit(&mut self, transfer: BackingTransfer, ticket: u64) -> Result<(), TransferRefusal>;

    /// Makes submitted transfers visible to the device, and returns the next completion if there is one.
    ///
    /// # Errors
    /// The device is permanently gone. Transfers in flight never complete, and their memory must not be reused.
    fn poll(&mut self) -> Result<Option<TransferCompletion>, Status>;
}
