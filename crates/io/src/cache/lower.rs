//! What is below a cache: a device that takes transfers and answers them in any order.
//!
//! In: [`Transfer`]s with tickets. Out: the same tickets, once each. Invariant: a transfer that was accepted holds its
//! buffers until it is answered.

use crate::buffer::Buffer;
use crate::command::Durable;
use headwater_nvme::spec::status::Status;

/// What a transfer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// From the device into its segments.
    Read,
    /// From its segments to the device.
    Write,
    /// Zeroes instead of what was there.
    Zeroes,
    /// What was there is needed no more.
    Discard,
    /// Everything answered before becomes durable.
    Flush,
}

/// One command for the device.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// What it does.
    pub kind: Kind,
    /// Where on the device, in bytes: whole blocks.
    pub offset: u64,
    /// How much: whole blocks, as many bytes as the segments have together.
    pub bytes: u64,
    /// When a write is safe.
    pub durable: Durable,
    /// The bytes of reads and writes, in order.
    pub segments: Vec<Buffer>,
}

/// What one transfer may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LowerLimits {
    /// Most bytes of a read or a write.
    pub transfer_bytes_max: usize,
    /// Most segments.
    pub segments_max: usize,
    /// Most bytes of zeroes or a discard.
    pub range_bytes_max: u64,
}

/// Why a transfer was not taken. No answer will follow.
#[derive(Debug)]
pub enum NotTaken {
    /// The device is busy; the transfer is wanted again.
    Full(Transfer),
    /// The transfer will not be done.
    Failed(Status),
}

/// A transfer that came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The ticket of its submission.
    pub ticket: u64,
    /// What became of it.
    pub status: Status,
}

/// What is below a cache.
pub trait Lower {
    /// What a transfer may be. Asked often: an answer from memory.
    fn limits(&self) -> LowerLimits;

    /// Takes a transfer. `Ok` means that exactly one [`Done`] will follow.
    ///
    /// # Errors
    /// [`NotTaken`]: nothing happened.
    fn submit(&mut self, transfer: Transfer, ticket: u64) -> Result<(), NotTaken>;

    /// Shows the device what was submitted, and takes the next answer if one has come.
    ///
    /// # Errors
    /// The device is gone for good. What was in flight is never answered, and its memory is not to be used again.
    fn poll(&mut self) -> Result<Option<Done>, Status>;
}
