//! Why a handle does not accept a request: told before anything reaches a device, with the numbers.

use super::request::Request;
use crate::error::{IoError, SubmitError};

/// What is wrong with a request, or why it cannot be taken now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The range does not begin or end on a block.
    #[error(
        "{bytes} bytes from {offset} on are no whole blocks of {block_bytes} bytes; align both, or use a cache"
    )]
    Misaligned {
        /// First byte.
        offset: u64,
        /// How many.
        bytes: u64,
        /// Bytes of a block.
        block_bytes: u32,
    },
    /// The range is empty.
    #[error("a request for no bytes, at {offset}; name at least one block")]
    Empty {
        /// First byte.
        offset: u64,
    },
    /// The range leaves what this handle may touch.
    #[error("{bytes} bytes from {offset} on leave the {end} bytes that this handle may touch")]
    OutOfRange {
        /// First byte.
        offset: u64,
        /// How many.
        bytes: u64,
        /// One past the last byte that it may touch.
        end: u64,
    },
    /// A buffer is shorter than what it is for.
    #[error("a buffer of {given} bytes where {needed} are needed")]
    Short {
        /// What was given.
        given: u64,
        /// What is needed.
        needed: u64,
    },
    /// A buffer lies where the device cannot reach it.
    #[error(
        "a buffer at {address:#x}; the device takes multiples of {align} bytes; take buffers from its pool"
    )]
    Unreachable {
        /// Its address.
        address: u64,
        /// What it must be a multiple of.
        align: usize,
    },
    /// A change through a handle that may only read.
    #[error("namespace {namespace} is read-only for this client")]
    ReadOnly {
        /// Its number.
        namespace: u32,
    },
    /// The handle has as many requests as it takes.
    #[error("{unanswered} requests are not answered, and {most} is the most; poll, and submit again")]
    Full {
        /// Accepted and not answered.
        unanswered: u32,
        /// The most.
        most: u32,
    },
    /// There is no queue of that name.
    #[error("queue {answer} was chosen, but it is not one of the handle's {queues}; attach it first")]
    NoSuchQueue {
        /// What the selector answered.
        answer: u32,
        /// How many there are.
        queues: u32,
    },
    /// The handle is being closed, or its last queue was taken.
    #[error("the handle has no queue; attach one")]
    Closed,
    /// The way to the device takes no such command.
    #[error("{what}")]
    Unfit {
        /// What is wrong with it, and what to do.
        what: &'static str,
    },
    /// The device is gone for good.
    #[error("the device is gone; open it again")]
    Gone,
}

impl From<SubmitError> for RequestError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Full => Self::Full { unanswered: 0, most: 0 },
            SubmitError::Gone => Self::Gone,
            SubmitError::Range { .. } => {
                Self::Unfit { what: "the range leaves the partition of this client" }
            }
            SubmitError::Unfit { what } => Self::Unfit { what },
        }
    }
}

/// A request that was not accepted: nothing happened, and no answer will follow.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Refused {
    /// The request, its buffers included.
    pub request: Request,
    /// Why.
    pub error: RequestError,
}

impl From<Refused> for IoError {
    fn from(refused: Refused) -> Self {
        Self::Request(refused.error)
    }
}
