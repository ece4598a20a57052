//! Errors between an application and its device.

mod cache;
mod request;

pub use cache::CacheError;
pub use request::RequestError;

use crate::command::Command;
use headwater_dma::pool::PoolError;
use headwater_host::shared_memory::{MapDescriptorError, MapError, OutOfRegion};
use headwater_host::wake::WakeError;
use headwater_nvme::queue_pair::{ControllerFault, QueuePairError};
use headwater_nvme::spec::status::Status;

/// An error of a call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IoError {
    /// The device completed the command with a failure status.
    #[error("the device reports: {0}")]
    Status(Status),
    /// A key that the command set cannot carry.
    #[error("the key has {bytes} bytes; NVMe KV keys have 1 to 16")]
    Key {
        /// The key's length in bytes.
        bytes: usize,
    },
    /// More data than one command moves.
    #[error("{bytes} bytes in one command; send at most {max}")]
    TransferTooLong {
        /// The bytes given.
        bytes: usize,
        /// The most bytes.
        max: usize,
    },
    /// A length that is not a whole number of blocks.
    #[error("{bytes} bytes are not a whole number of blocks of {block_bytes} bytes; pass whole blocks")]
    PartialBlocks {
        /// The bytes given.
        bytes: usize,
        /// The bytes of a block.
        block_bytes: usize,
    },
    /// Blocks beyond the end of a namespace, a partition or a command.
    #[error("{blocks} blocks from block {first} on exceed the limit of {size} blocks; stay inside it")]
    BlocksOutOfRange {
        /// The first block.
        first: u64,
        /// The number of blocks.
        blocks: u64,
        /// The number of blocks that exist or that one command covers.
        size: u64,
    },
    /// A namespace that does not exist, or holds another kind of data.
    #[error("namespace {namespace} {what}")]
    Namespace {
        /// The namespace's number.
        namespace: u32,
        /// The problem.
        what: &'static str,
    },
    /// A range outside a buffer.
    #[error(transparent)]
    OutOfBuffer(#[from] OutOfRegion),
    /// A command that its queue did not accept.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// A request that a handle did not accept.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// An allocation that the device's pool cannot satisfy.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A queue that cannot be created.
    #[error(transparent)]
    QueuePair(#[from] QueuePairError),
    /// A protocol violation by the device.
    #[error(transparent)]
    Controller(#[from] ControllerFault),
    /// A refusal by the cache.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// A mapping that the kernel refused.
    #[error(transparent)]
    MapFailed(#[from] MapError),
    /// Shared memory that cannot be used.
    #[error(transparent)]
    SharedMemory(#[from] MapDescriptorError),
    /// A failure to wait or to wake.
    #[error(transparent)]
    WakeFailed(#[from] WakeError),
    /// A request that this backend, device or build cannot serve.
    #[error("{reason}")]
    Unsupported {
        /// The reason, and what to do.
        reason: String,
    },
    /// A limit that is reached: of a depth, of queues, of memory, of interrupt vectors.
    #[error("{reason}")]
    Limit {
        /// The limit, and what to do.
        reason: String,
    },
    /// A request that a policy, a right, a key or the kernel's permissions forbid.
    #[error("{reason}")]
    Denied {
        /// The reason, and what to do.
        reason: String,
    },
    /// A refusal by the attach daemon: by policy, by a limit, or for a malformed request.
    #[error("the daemon refused: {reason}")]
    Daemon {
        /// The daemon's reason.
        reason: String,
    },
    /// The daemon is gone and did not return in time.
    #[error("{what}: no daemon answers: {reason}; start it, or pass its socket")]
    Gone {
        /// The socket.
        what: String,
        /// The last error.
        reason: String,
    },
    /// A reply of the daemon that does not match the request.
    #[error("the daemon sent a malformed reply: {reason}; use the same version of client and daemon")]
    Protocol {
        /// The violation.
        reason: String,
    },
    /// The device cannot be opened, or is gone.
    #[error("{reason}")]
    Device {
        /// The reason.
        reason: String,
    },
}

impl IoError {
    /// Returns the status of a command that the device failed.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Status(status) => Some(*status),
            _ => None,
        }
    }
}

/// A command that was not accepted: it had no effect, and no completion follows.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct RejectedCommand {
    /// The command with its buffers.
    pub command: Command,
    /// The reason.
    pub reason: SubmitError,
}

impl From<RejectedCommand> for IoError {
    fn from(rejected: RejectedCommand) -> Self {
        match rejected.reason {
            SubmitError::BlocksOutOfRange { first, blocks, size } => {
                Self::BlocksOutOfRange { first, blocks, size }
            }
            reason => Self::Submit(reason),
        }
    }
}

/// The reason why a command was not accepted: it had no effect, and no completion follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The queue has as many commands in flight as it accepts.
    #[error("the queue is full; poll for completions, then submit again")]
    Full,
    /// The device is permanently gone.
    #[error("the device is gone; open it again")]
    Gone,
    /// Blocks beyond the end of a namespace or a partition.
    #[error("{blocks} blocks from block {first} on exceed the limit of {size} blocks; stay inside it")]
    BlocksOutOfRange {
        /// The first block.
        first: u64,
        /// The number of blocks.
        blocks: u64,
        /// The number of blocks that exist.
        size: u64,
    },
    /// The system refused the thread that a polled queue needs for the command.
    #[error(
        "cannot start a thread for the command, error {errno}; raise the limits on descriptors or threads"
    )]
    NoThread {
        /// The system's error number.
        errno: i32,
    },
    /// A command that the backend does not support.
    #[error("{what}")]
    Unsupported {
        /// The reason, and what to do.
        what: &'static str,
    },
}

impl SubmitError {
    /// Data in more buffers than commands of the queue take.
    pub(crate) const TOO_MANY_BUFFERS: Self =
        Self::Unsupported { what: "more buffers than the queue's segments_max; send several commands" };

    /// Data in several buffers, of a command that takes one.
    pub(crate) const SINGLE_BUFFER_ONLY: Self =
        Self::Unsupported { what: "this queue takes data in one piece; send a command for each buffer" };
}
