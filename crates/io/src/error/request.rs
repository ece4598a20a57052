//! Errors of requests that a handle does not accept, with their numbers.

use super::SubmitError;
use headwater_nvme::spec::status::Status;

/// An invalid request, or the reason why it cannot be accepted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The range does not start or end at a block boundary.
    #[error(
        "{bytes} bytes at offset {offset} are not whole {block_bytes}-byte blocks; align both, or use a cache"
    )]
    Misaligned {
        /// The first byte.
        offset: u64,
        /// The length in bytes.
        bytes: u64,
        /// Bytes of a block.
        block_bytes: u32,
    },
    /// The range is empty.
    #[error("the request at offset {offset} has no bytes; request at least one block")]
    Empty {
        /// The first byte.
        offset: u64,
    },
    /// The range exceeds what this handle may access.
    #[error("{bytes} bytes at offset {offset} leave the handle's range, which ends at {end}; stay inside it")]
    OutOfRange {
        /// The first byte.
        offset: u64,
        /// The length in bytes.
        bytes: u64,
        /// The end of the accessible range, one past its last byte.
        end: u64,
    },
    /// A buffer that is shorter than the request needs.
    #[error("the buffer has {given} bytes and the request needs {needed}; pass a longer one")]
    BufferTooShort {
        /// The bytes given.
        given: u64,
        /// The bytes needed.
        needed: u64,
    },
    /// A buffer at an address that the device cannot access.
    #[error(
        "the buffer at {address:#x} is not aligned to the device's {align} bytes; use buffers of its pool"
    )]
    Unreachable {
        /// The buffer's address.
        address: u64,
        /// The alignment that the device requires.
        align: usize,
    },
    /// A change through a read-only handle.
    #[error("namespace {namespace} is read-only for this client")]
    ReadOnly {
        /// The namespace's number.
        namespace: u32,
    },
    /// The handle holds as many requests as it accepts.
    #[error(
        "{outstanding} requests are outstanding and the handle holds at most {max}; poll, then submit again"
    )]
    Full {
        /// The requests that are accepted and not completed.
        outstanding: u32,
        /// The most that the handle accepts.
        max: u32,
    },
    /// A queue name that the handle does not have.
    #[error("queue {name} is not one of the handle's {queues} queues; attach it first")]
    NoSuchQueue {
        /// The name that the selector or the caller gave.
        name: u32,
        /// The number of queues.
        queues: u32,
    },
    /// The handle has no queue: none was attached, or its last one was detached.
    #[error("the handle has no queue; attach one")]
    NoQueue,
    /// A command that the backend does not support.
    #[error("{what}")]
    Unsupported {
        /// The reason, and what to do.
        what: &'static str,
    },
    /// The system refused the thread that a polled queue needs for the command.
    #[error(
        "cannot start a thread for the command, error {errno}; raise the limits on descriptors or threads"
    )]
    NoThread {
        /// The system's error number.
        errno: i32,
    },
    /// A page that a cache acknowledged could not be written back. The request had no effect, and each user of the cache is
    /// told once.
    #[error(
        "an earlier write is not on the device, its write-back failed: {status}; the page stays in the cache and is \
         retried, so submit this request again"
    )]
    WriteBackFailed {
        /// The status of the write-back.
        status: Status,
    },
    /// The device is permanently gone.
    #[error("the device is gone; open it again")]
    Gone,
}

impl From<SubmitError> for RequestError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Full => Self::Full { outstanding: 0, max: 0 },
            SubmitError::Gone => Self::Gone,
            SubmitError::NoThread { errno } => Self::NoThread { errno },
            SubmitError::BlocksOutOfRange { .. } => {
                Self::Unsupported { what: "the range exceeds this client's partition; stay inside it" }
            }
            SubmitError::Unsupported { what } => Self::Unsupported { what },
        }
    }
}
