//! What is asked of a cache, and what comes back.
//!
//! In: requests in bytes. Out: [`Finished`], with the buffer that came with the request. Invariant: a request that was
//! accepted is finished exactly once, and its buffer comes back whatever became of it.

use super::config::CacheError;
use super::lower::Kind;
use super::shape::{Part, pages_of, to_u64};
use crate::buffer::Buffer;
use crate::command::Durable;
use headwater_nvme::spec::status::Status;

/// Who uses a cache: what [`Cache::join`](super::Cache::join) gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner(pub(super) u32);

/// What can be asked. Offsets and lengths are in bytes; those through the cache need not be whole blocks.
#[derive(Debug)]
pub enum Request {
    /// Reads through the cache.
    Read {
        /// Where from.
        offset: u64,
        /// Where to, all of it.
        into: Buffer,
    },
    /// Writes through the cache, as its policy says.
    Write {
        /// Where to.
        offset: u64,
        /// What, all of it.
        from: Buffer,
        /// [`Durable::Now`] goes through to the medium, whatever the policy says.
        durable: Durable,
    },
    /// Compares what is there with a buffer: [`Status::COMPARE_FAILURE`] when they differ.
    Compare {
        /// Where.
        offset: u64,
        /// With what.
        with: Buffer,
    },
    /// Reads whole blocks from the device itself, unless dirty pages are newer than what it has.
    DirectRead {
        /// Where from.
        offset: u64,
        /// Where to.
        into: Buffer,
    },
    /// Writes whole blocks to the device itself; pages that are here follow.
    DirectWrite {
        /// Where to.
        offset: u64,
        /// What.
        from: Buffer,
        /// When it is safe.
        durable: Durable,
    },
    /// Whole blocks become zeroes.
    Zeroes {
        /// Where.
        offset: u64,
        /// How many bytes.
        bytes: u64,
        /// When they are safe.
        durable: Durable,
    },
    /// Whole blocks are needed no more.
    Discard {
        /// Where.
        offset: u64,
        /// How many bytes.
        bytes: u64,
    },
    /// Everything that was finished before becomes durable.
    Flush,
}

/// A request that was refused, and why. Nothing happened.
#[derive(Debug)]
pub struct Refused {
    /// As it was given.
    pub request: Request,
    /// Why.
    pub error: CacheError,
}

/// A request that came to its end.
#[derive(Debug)]
pub struct Finished {
    /// The caller's token.
    pub token: u64,
    /// What became of it. After a failure, bytes of a write may have been written or not, each for itself.
    pub status: Status,
    /// The buffer that came with it.
    pub data: Option<Buffer>,
}

/// What became of a request at once.
#[derive(Debug)]
pub enum Submitted {
    /// It is finished; no more will be heard of it.
    Done(Finished),
    /// [`Cache::take`](super::Cache::take) will give it.
    Later,
}

/// What a request that is under way does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Read,
    Compare,
    Write {
        through: bool,
        durable: Durable,
    },
    /// Past the cache.
    Direct {
        kind: Kind,
        durable: Durable,
    },
    Flush,
    Shrink,
}

/// A request that is under way.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) owner: u32,
    pub(super) token: u64,
    pub(super) action: Action,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) data: Option<Buffer>,
    /// The first page that was not dealt with, and the page after the last.
    pub(super) next: u64,
    pub(super) end: u64,
    /// Pages, or transfers, that it waits for.
    pub(super) waiting: u64,
    pub(super) status: Status,
}

impl Pending {
    pub(super) fn new(owner: Owner, token: u64, request: Request) -> Self {
        let (action, offset, bytes, data) = request.into_parts();
        let (next, end) = pages_of(offset, bytes);
        let status = Status::SUCCESS;
        Self { owner: owner.0, token, action, offset, bytes, data, next, end, waiting: 0, status }
    }

    /// A request that has no bytes.
    pub(super) fn of(owner: Owner, token: u64, action: Action) -> Self {
        Self { action, ..Self::new(owner, token, Request::Flush) }
    }

    pub(super) fn part(&self, page: u64) -> Part {
        Part::of(page, self.offset, self.bytes)
    }

    /// Notes a failure, the first of which is told; nothing more is begun.
    pub(super) fn fail(&mut self, status: Status) {
        if self.status.is_success() {
            self.status = status;
        }
        self.next = self.end;
    }

    pub(super) fn is_over(&self) -> bool {
        self.next >= self.end && self.waiting == 0
    }

    pub(super) fn finished(self) -> Finished {
        Finished { token: self.token, status: self.status, data: self.data }
    }
}

impl Request {
    /// Where it starts, and how long it is.
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

    /// The buffer that came with it.
    #[must_use]
    pub fn into_buffer(self) -> Option<Buffer> {
        self.into_parts().3
    }

    /// Whether it must be whole blocks.
    pub(super) fn is_direct(&self) -> bool {
        !matches!(self, Self::Read { .. } | Self::Write { .. } | Self::Compare { .. } | Self::Flush)
    }

    fn into_parts(self) -> (Action, u64, u64, Option<Buffer>) {
        let (offset, bytes) = self.range();
        let plain = Durable::AsPromised;
        let (action, data) = match self {
            Self::Read { into, .. } => (Action::Read, Some(into)),
            Self::Compare { with, .. } => (Action::Compare, Some(with)),
            Self::Write { from, durable, .. } => {
                (Action::Write { through: durable == Durable::Now, durable }, Some(from))
            }
            Self::DirectRead { into, .. } => {
                (Action::Direct { kind: Kind::Read, durable: plain }, Some(into))
            }
            Self::DirectWrite { from, durable, .. } => {
                (Action::Direct { kind: Kind::Write, durable }, Some(from))
            }
            Self::Zeroes { durable, .. } => (Action::Direct { kind: Kind::Zeroes, durable }, None),
            Self::Discard { .. } => (Action::Direct { kind: Kind::Discard, durable: plain }, None),
            Self::Flush => (Action::Flush, None),
        };
        (action, offset, bytes, data)
    }
}
