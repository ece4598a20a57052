//! What can go wrong between an application and its device.

use crate::command::Command;
use crate::handle::RequestError;
use headwater_dma::pool::PoolError;
use headwater_host::foreign::{MapError, OutOfRegion, TakeError};
use headwater_host::wake::WakeError;
use headwater_nvme::queue_pair::{ControllerFault, QueuePairError};
use headwater_nvme::spec::status::Status;

/// Why a call gave no answer, or the wrong one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IoError {
    /// The device answered with a failure.
    #[error("the device answered: {0}")]
    Status(Status),
    /// A key that the command set cannot carry.
    #[error("a key of {bytes} bytes; NVMe KV carries 1 to 16")]
    Key {
        /// Its length.
        bytes: usize,
    },
    /// More data than one command carries.
    #[error("{bytes} bytes in one command; send at most {most}")]
    Length {
        /// What was given.
        bytes: usize,
        /// The most.
        most: usize,
    },
    /// Bytes that are no whole number of blocks.
    #[error("{bytes} bytes are no whole number of blocks of {block_bytes} bytes")]
    Blocks {
        /// What was given.
        bytes: usize,
        /// Bytes of a block.
        block_bytes: usize,
    },
    /// Blocks beyond the end, of a namespace, a partition or a command.
    #[error("{blocks} blocks from {first} on do not lie in {size} blocks")]
    Range {
        /// First block.
        first: u64,
        /// How many.
        blocks: u64,
        /// How many there are.
        size: u64,
    },
    /// The namespace is not there, or holds another kind of data.
    #[error("namespace {namespace} {what}")]
    Namespace {
        /// Its number.
        namespace: u32,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A range outside a buffer.
    #[error(transparent)]
    OutOfBuffer(#[from] OutOfRegion),
    /// The queue takes no more; reap first.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// A handle does not accept the request.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The pool of the device has no memory for it.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The queue cannot be made so.
    #[error(transparent)]
    QueuePair(#[from] QueuePairError),
    /// The device broke the protocol.
    #[error(transparent)]
    Controller(#[from] ControllerFault),
    /// The cache refused.
    #[error(transparent)]
    Cache(#[from] crate::cache::CacheError),
    /// The kernel gave no memory.
    #[error(transparent)]
    Map(#[from] MapError),
    /// Shared memory could not be used.
    #[error(transparent)]
    Take(#[from] TakeError),
    /// The kernel refused to wait or to wake.
    #[error(transparent)]
    Wake(#[from] WakeError),
    /// The daemon refused: by policy, by a limit, or because it understood nothing.
    #[error("the daemon refused: {reason}")]
    Refused {
        /// Its reason.
        reason: String,
    },
    /// The daemon is gone and did not come back in time.
    #[error("{what}: no daemon answers: {reason}; start it, or give its socket")]
    Gone {
        /// Which socket.
        what: String,
        /// What happened last.
        reason: String,
    },
    /// The daemon answered something else than was asked.
    #[error("the daemon's answer makes no sense: {reason}; client and daemon may be of different versions")]
    Protocol {
        /// What is wrong.
        reason: String,
    },
    /// The device cannot be opened, or went away.
    #[error("{reason}")]
    Device {
        /// Why.
        reason: String,
    },
}

impl IoError {
    /// The status, when the device answered with one.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Status(status) => Some(*status),
            _ => None,
        }
    }
}

/// A command that was not accepted: nothing happened, and no completion will follow.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Rejected {
    /// The command, its buffers included.
    pub command: Command,
    /// Why.
    pub reason: SubmitError,
}

impl From<Rejected> for IoError {
    fn from(rejected: Rejected) -> Self {
        match rejected.reason {
            SubmitError::Range { first, blocks, size } => Self::Range { first, blocks, size },
            reason => Self::Submit(reason),
        }
    }
}

/// Why a command was not accepted: nothing happened, and no completion will follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// As many commands are in flight as the queue takes.
    #[error("the queue is full; take completions and submit again")]
    Full,
    /// The device is gone for good.
    #[error("the device is gone; open it again")]
    Gone,
    /// Blocks beyond the end, of a namespace or a partition.
    #[error("{blocks} blocks from {first} on do not lie in {size} blocks")]
    Range {
        /// First block.
        first: u64,
        /// How many.
        blocks: u64,
        /// How many there are.
        size: u64,
    },
    /// This way to a device takes no such command.
    #[error("{what}")]
    Unfit {
        /// What is wrong with it, and what to do.
        what: &'static str,
    },
}

impl SubmitError {
    /// Data in several buffers, on a queue whose commands name one.
    pub(crate) const IN_PIECES: Self =
        Self::Unfit { what: "this queue takes data in one piece; send a command for each buffer" };
}
