//! Requests to a cache, and their results.
//!
//! Input: requests in bytes. Output: [`FinishedRequest`], with the request's buffer. Invariant: an accepted request finishes
//! exactly once, and its buffer is returned in every case.

use super::backing::{TransferKind, TransferOrigin};
use super::shape::{PagePart, pages_of, to_u64};
use crate::buffer::Buffer;
use crate::command::WriteDurability;
use crate::error::CacheError;
use crate::scheduler::RequestClass;
use headwater_nvme::spec::status::Status;

/// A user of a cache, returned by [`BlockCache::join`](super::BlockCache::join).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheUser(pub(super) u32);

/// The caller's names for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestTag {
    /// The token that the finished request carries.
    pub token: u64,
    /// The class of the transfers that the request causes.
    pub class: RequestClass,
}

impl From<u64> for RequestTag {
    fn from(token: u64) -> Self {
        Self { token, class: RequestClass::FIRST }
    }
}

/// A request. Offsets and lengths are in bytes; cached requests need not be whole blocks.
#[derive(Debug)]
pub enum CacheRequest {
    /// A read through the cache.
    Read {
        /// The start on the device.
        offset: u64,
        /// The buffer to fill.
        into: Buffer,
    },
    /// A write through the cache, by its write policy.
    Write {
        /// The start on the device.
        offset: u64,
        /// The buffer to write.
        from: Buffer,
        /// The durability; [`WriteDurability::Immediate`] writes through to the medium under either policy.
        durable: WriteDurability,
    },
    /// A comparison with a buffer: [`Status::COMPARE_FAILURE`] when they differ.
    Compare {
        /// The start on the device.
        offset: u64,
        /// The buffer to compare.
        with: Buffer,
    },
    /// A read of whole blocks directly from the device, unless dirty pages are newer.
    DirectRead {
        /// The start on the device.
        offset: u64,
        /// The buffer to fill.
        into: Buffer,
    },
    /// A write of whole blocks directly to the device; cached pages are updated.
    DirectWrite {
        /// The start on the device.
        offset: u64,
        /// The buffer to write.
        from: Buffer,
        /// The durability.
        durable: WriteDurability,
    },
    /// Zeroes for whole blocks.
    Zeroes {
        /// The start on the device.
        offset: u64,
        /// The length in bytes.
        bytes: u64,
        /// The durability.
        durable: WriteDurability,
    },
    /// A deallocation of whole blocks.
    Discard {
        /// The start on the device.
        offset: u64,
        /// The length in bytes.
        bytes: u64,
    },
    /// A flush: everything that finished before becomes durable.
    Flush,
}

/// A request that was refused; it had no effect.
#[derive(Debug)]
pub struct RefusedCacheRequest {
    /// The request.
    pub request: CacheRequest,
    /// The reason.
    pub error: CacheError,
}

/// A finished request.
#[derive(Debug)]
pub struct FinishedRequest {
    /// The caller's token.
    pub token: u64,
    /// The result. After a failed write, each byte may or may not have been written.
    pub status: Status,
    /// The request's buffer.
    pub data: Option<Buffer>,
}

/// The immediate result of a submission.
#[derive(Debug)]
pub enum SubmitResult {
    /// The request is finished.
    Done(FinishedRequest),
    /// The request finishes later, through [`BlockCache::take_finished`](super::BlockCache::take_finished).
    Pending,
}

/// The operation of a request in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheOperation {
    Read,
    Compare,
    Write {
        through: bool,
        durable: WriteDurability,
    },
    /// Around the cache.
    Direct {
        kind: TransferKind,
        durable: WriteDurability,
    },
    Flush,
    Shrink,
}

/// A request in progress.
#[derive(Debug)]
pub(super) struct PendingCacheRequest {
    pub(super) owner: u32,
    pub(super) token: u64,
    pub(super) class: RequestClass,
    pub(super) operation: CacheOperation,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) data: Option<Buffer>,
    /// The first page not yet processed; `end` is the page after the last.
    pub(super) next: u64,
    pub(super) end: u64,
    /// The pages, transfers and jobs that it waits for.
    pub(super) waiting: u64,
    /// The jobs of the mover that use its buffer; it waits for each.
    pub(super) moves: u32,
    /// True if it finishes with its last job, whatever else it waits for, and copies nothing until then.
    pub(super) is_cancelled: bool,
    pub(super) status: Status,
}

impl PendingCacheRequest {
    pub(super) fn new(owner: CacheUser, tag: RequestTag, request: CacheRequest) -> Self {
        let (operation, offset, bytes, data) = request.into_parts();
        let (next, end) = pages_of(offset, bytes);
        let (RequestTag { token, class }, status) = (tag, Status::SUCCESS);
        Self {
            owner: owner.0,
            token,
            class,
            operation,
            offset,
            bytes,
            data,
            next,
            end,
            waiting: 0,
            moves: 0,
            is_cancelled: false,
            status,
        }
    }

    /// Returns a request without bytes.
    pub(super) fn without_bytes(owner: CacheUser, token: u64, operation: CacheOperation) -> Self {
        Self { operation, ..Self::new(owner, token.into(), CacheRequest::Flush) }
    }

    /// Returns the origin of the transfers that it causes.
    pub(super) fn origin(&self) -> TransferOrigin {
        TransferOrigin::of(self.owner, self.class)
    }

    pub(super) fn part(&self, page: u64) -> PagePart {
        PagePart::of(page, self.offset, self.bytes)
    }

    /// Notes a failure, of which the first is reported; no further pages are started.
    pub(super) fn fail(&mut self, status: Status) {
        if self.status.is_success() {
            self.status = status;
        }
        self.next = self.end;
    }

    pub(super) fn is_finished(&self) -> bool {
        self.next >= self.end && self.waiting == 0
    }

    pub(super) fn into_finished(self) -> FinishedRequest {
        FinishedRequest { token: self.token, status: self.status, data: self.data }
    }
}

impl CacheRequest {
    /// Returns the start and the length.
    #[must_use]
    pub fn range(&self) -> (u64, u64) {
        match self {
            Self::Read { offset, into } | Self::DirectRead { offset, into } => {
                (*offset, to_u64(into.bytes()))
            }
            Self::Write { offset, from, .. } | Self::DirectWrite { offset, from, .. } => {
                (*offset, to_u64(from.bytes()))
            }
            Self::Compare { offset, with } => (*offset, to_u64(with.bytes())),
            Self::Zeroes { offset, bytes, .. } | Self::Discard { offset, bytes } => (*offset, *bytes),
            Self::Flush => (0, 0),
        }
    }

    /// Returns the request's buffer.
    #[must_use]
    pub fn into_buffer(self) -> Option<Buffer> {
        self.into_parts().3
    }

    /// Returns true if it must be whole blocks.
    pub(super) fn is_direct(&self) -> bool {
        !matches!(self, Self::Read { .. } | Self::Write { .. } | Self::Compare { .. } | Self::Flush)
    }

    fn into_parts(self) -> (CacheOperation, u64, u64, Option<Buffer>) {
        let (offset, bytes) = self.range();
        let plain = WriteDurability::NamespaceDefault;
        let (action, data) = match self {
            Self::Read { into, .. } => (CacheOperation::Read, Some(into)),
            Self::Compare { with, .. } => (CacheOperation::Compare, Some(with)),
            Self::Write { from, durable, .. } => (
                CacheOperation::Write { through: durable == WriteDurability::Immediate, durable },
                Some(from),
            ),
            Self::DirectRead { into, .. } => {
                (CacheOperation::Direct { kind: TransferKind::Read, durable: plain }, Some(into))
            }
            Self::DirectWrite { from, durable, .. } => {
                (CacheOperation::Direct { kind: TransferKind::Write, durable }, Some(from))
            }
            Self::Zeroes { durable, .. } => {
                (CacheOperation::Direct { kind: TransferKind::Zeroes, durable }, None)
            }
            Self::Discard { .. } => {
                (CacheOperation::Direct { kind: TransferKind::Discard, durable: plain }, None)
            }
            Self::Flush => (CacheOperation::Flush, None),
        };
        (action, offset, bytes, data)
    }
}
