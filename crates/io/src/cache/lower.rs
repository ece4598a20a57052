//! The backing device of a cache: it accepts transfers and completes them in any order.
//!
//! Input: [`Transfer`]s with tickets. Output: the same tickets, once each. Invariant: an accepted transfer holds its
//! buffers until it completes.

use crate::buffer::Buffer;
use crate::command::Durable;
use headwater_nvme::spec::status::Status;

/// The operation of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
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
pub struct Transfer {
    /// The operation.
    pub kind: Kind,
    /// The start on the device in bytes, a multiple of a block.
    pub offset: u64,
    /// The length in bytes, whole blocks; equal to that of the segments.
    pub bytes: u64,
    /// The durability of a write.
    pub durable: Durable,
    /// The memory of reads and writes, in order.
    pub segments: Vec<Buffer>,
}

/// The limits of one transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LowerLimits {
    /// The most bytes of a read or a write.
    pub transfer_bytes_max: usize,
    /// The most segments.
    pub segments_max: usize,
    /// The most bytes of zeroes or a discard.
    pub range_bytes_max: u64,
}

/// The reason why a transfer was not accepted. No completion follows.
#[derive(Debug)]
pub enum NotTaken {
    /// The device has no room; submit the transfer again.
    Full(Transfer),
    /// The transfer failed.
    Failed(Status),
}

/// A completed transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The ticket of its submission.
    pub ticket: u64,
    /// The result.
    pub status: Status,
}

/// The backing device of a cache.
pub trait Lower {
    /// Returns the limits of a transfer. The cache calls it often, so it must be cheap.
    fn limits(&self) -> LowerLimits;

    /// Accepts a transfer. `Ok` means that exactly one [`Done`] follows.
    ///
    /// # Errors
    /// [`NotTaken`]: it had no effect.
    fn submit(&mut self, transfer: Transfer, ticket: u64) -> Result<(), NotTaken>;

    /// Makes submitted transfers visible to the device, and returns the next completion if there is one.
    ///
    /// # Errors
    /// The device is permanently gone. Transfers in flight never complete, and their memory must not be reused.
    fn poll(&mut self) -> Result<Option<Done>, Status>;
}
