//! The backing device of a cache: it accepts transfers and completes them in any order.
//!
//! Input: [`BackingTransfer`]s with tickets. Output: the same tickets, once each. Invariant: an accepted transfer holds its
//! buffers until it completes.

use super::request::CacheUser;
use crate::buffer::Buffer;
use crate::command::WriteDurability;
use crate::completion::SleepObservation;
use crate::scheduler::RequestClass;
use headwater_host::clock::Nanos;
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

/// The user and the class of the request that causes a transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferOrigin {
    /// The number of the user plus one; 0 for a user whose number is too large for a page to hold.
    user: u16,
    /// The class of the request: of a miss that of the read, of a write-back that of the write.
    pub class: RequestClass,
}

impl TransferOrigin {
    /// The origin of an empty frame.
    pub(super) const UNKNOWN: Self = Self { user: 0, class: RequestClass::FIRST };

    /// Returns the origin of a request of a user.
    #[must_use]
    #[inline]
    pub(super) fn of(user: u32, class: RequestClass) -> Self {
        Self { user: u16::try_from(user).ok().and_then(|user| user.checked_add(1)).unwrap_or(0), class }
    }

    /// Returns the user, unless its number is too large for a page to hold.
    #[must_use]
    pub fn user(self) -> Option<CacheUser> {
        self.user.checked_sub(1).map(|user| CacheUser(user.into()))
    }
}

/// The number of the path by which a backing device carries transfers that have no path of their own.
pub const SHARED_PATH: u16 = 0;

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
    /// The user and the class of the request that causes it.
    pub origin: TransferOrigin,
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

/// The default interval between two polls of a thread that waits for transfers.
const POLL_INTERVAL: Nanos = Nanos::from_micros(50);

/// The backing device of a cache.
pub trait BackingDevice {
    /// Returns the limits of a transfer. The cache calls it often, so it must be cheap.
    fn limits(&self) -> BackingLimits;

    /// Returns the number of the path that carries the transfers of an origin. A path without room holds up no transfer
    /// of another path. By default there is one path.
    fn path_of(&self, origin: TransferOrigin) -> u16 {
        let _ = origin;
        SHARED_PATH
    }

    /// Returns how long a thread that waits for transfers in flight may sleep before the next poll, zero for not at all.
    fn poll_interval(&mut self) -> Nanos {
        POLL_INTERVAL
    }

    /// Notes a sleep that a thread took between two polls.
    fn observe_sleep(&mut self, sleep: SleepObservation) {
        let _ = sleep;
    }

    /// Notes that a user has left the cache.
    fn user_left(&mut self, user: CacheUser) {
        let _ = user;
    }

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
