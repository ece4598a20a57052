//! The reason for which a call failed, before it becomes a code and a message.
//!
//! Input: the errors of pools, devices and handles, and the arguments of callers. Output: a [`CallError`]. Invariant: its
//! message says what to change.

use crate::code::ResultCode;
use crate::move_error::MoveCallError;
use headwater::io::error::{CacheError, RequestError};
use headwater::{IoError, SubmitError};
use headwater_dma::pool::{NodeError, PoolError};
use headwater_host::reservation::AdoptError;
use headwater_host::shared_memory::OutOfRegion;

/// The reason for which a call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("{0} is null: pass a valid address")]
    Null(&'static str),
    #[error("{0} is not aligned for its type: pass the address of a variable of that type")]
    Misaligned(&'static str),
    #[error("the pool handle is not open: pass the one that hw_pool_open wrote, before its pool is closed")]
    PoolNotOpen,
    #[error(
        "flags {0:#x} are undefined: combine the HW_ALLOC_, HW_QUEUE_ or HW_JOB_ constants of the header"
    )]
    Flags(u32),
    #[error(
        "the struct has {got} bytes, in this library {want}: use the header of the library that is linked"
    )]
    StructLength { got: usize, want: usize },
    #[error("{field} is {value}: choose {choice}")]
    InvalidValue { field: &'static str, value: u64, choice: &'static str },
    #[error("{field} is {value}: choose {choice}")]
    InvalidSigned { field: &'static str, value: i64, choice: &'static str },
    #[error(
        "unknown preset: choose \"calibrated\", \"paper-4.1\", \"paper-5.2\", \"SMALL:LARGE\" in bytes, or null"
    )]
    Preset,
    #[error("{0} pools are open, the maximum: close one, and free its buffers")]
    TooManyPools(usize),
    #[error("pinning {0}: choose HW_PINNING_NONE or HW_PINNING_LOCKED, or open the pool from Rust")]
    Unavailable(&'static str),
    #[error("{0}")]
    Node(NodeError),
    #[error(
        "could not start a thread (errno {0}): raise the process limit, or set ticker to 0 and call hw_pool_tick"
    )]
    NoThread(i32),
    #[error("{0}")]
    Pool(#[from] PoolError),
    #[error("the {0} is not open: pass what its open or create call wrote, before it is closed or destroyed")]
    NotOpen(&'static str),
    #[error("the {0} belongs to the parent of this process: open one in this process")]
    Inherited(&'static str),
    #[error("another thread is using the {0}: give each thread its own")]
    Busy(&'static str),
    #[error("{most} {what}s are open, the maximum: close or destroy a {what} first")]
    TooMany { what: &'static str, most: usize },
    #[error("a handle uses the queue: destroy the handle first, or create the queue with HW_QUEUE_SHARED")]
    QueueTaken,
    #[error("the queues belong to different devices: pass queues of one device")]
    OtherDevice,
    #[error("the URL is not UTF-8 text")]
    UrlNotUtf8,
    #[error("no buffer of the device contains the whole range: pass memory of hw_get_buffer")]
    BufferForeign,
    #[error("the address lies inside a buffer: pass the address that hw_get_buffer wrote")]
    BufferInterior,
    #[error("{bytes} bytes at {address:#x} are not whole pages of 4,096 bytes: align them, or copy")]
    ImportMisaligned { address: usize, bytes: usize },
    #[error("a part of the memory is a buffer already: release that first, or import all of it at once")]
    ImportOverlaps,
    #[error(
        "a command in flight, or a move job, has the imported memory: wait for it, or clear the job, then release"
    )]
    ImportInUse,
    #[error("{bytes} bytes from {from} lie outside the {end} bytes that the handle may access")]
    Seek { from: u64, bytes: i64, end: u64 },
    #[error("the request is merged with further ones, or its device cannot cancel: wait for its event")]
    TooLate,
    #[error("requests are in flight: take their events before adding or removing the cache")]
    RequestsInFlight,
    #[error("no request with this tag is in flight")]
    UnknownTag,
    #[error("the request for memory was cancelled: make another one")]
    RequestCancelled,
    #[error("{0}")]
    Move(#[from] MoveCallError),
    #[error("{0}")]
    Request(#[from] RequestError),
    #[error("{0}")]
    Io(IoError),
}

impl From<IoError> for CallError {
    fn from(error: IoError) -> Self {
        match error {
            IoError::Request(error) => Self::Request(error),
            IoError::Pool(error) => Self::Pool(error),
            error => Self::Io(error),
        }
    }
}

impl From<OutOfRegion> for CallError {
    fn from(error: OutOfRegion) -> Self {
        Self::Io(error.into())
    }
}

impl CallError {
    pub(crate) fn code(&self) -> ResultCode {
        match self {
            Self::Null(_) => ResultCode::Null,
            Self::Misaligned(_) | Self::Flags(_) | Self::StructLength { .. } => ResultCode::Argument,
            Self::PoolNotOpen => ResultCode::Handle,
            Self::InvalidValue { .. } | Self::InvalidSigned { .. } | Self::Preset => ResultCode::Config,
            Self::Node(_) => ResultCode::NoSuchNode,
            Self::Unavailable(_) => ResultCode::Unavailable,
            Self::TooManyPools(_) | Self::TooMany { .. } => ResultCode::TooManyPools,
            Self::NotOpen(_) => ResultCode::Handle,
            Self::Inherited(_) => ResultCode::Forked,
            Self::Busy(_)
            | Self::QueueTaken
            | Self::RequestsInFlight
            | Self::ImportOverlaps
            | Self::ImportInUse => ResultCode::Busy,
            Self::ImportMisaligned { .. } => ResultCode::Align,
            Self::OtherDevice | Self::UrlNotUtf8 => ResultCode::Argument,
            Self::BufferForeign => ResultCode::Foreign,
            Self::BufferInterior => ResultCode::Interior,
            Self::Seek { .. } => ResultCode::OutOfRange,
            Self::TooLate => ResultCode::TooLate,
            Self::UnknownTag => ResultCode::Unknown,
            Self::RequestCancelled => ResultCode::Cancelled,
            Self::Move(error) => error.code(),
            Self::Request(error) => code_of_request(error),
            Self::Io(error) => code_of_io(error),
            Self::NoThread(_) => ResultCode::NoThread,
            Self::Pool(error) => code_of_pool(error),
        }
    }
}

fn code_of_request(error: &RequestError) -> ResultCode {
    match error {
        RequestError::Misaligned { .. } | RequestError::Empty { .. } => ResultCode::Misaligned,
        RequestError::OutOfRange { .. } => ResultCode::OutOfRange,
        RequestError::Unreachable { .. } => ResultCode::Align,
        RequestError::ReadOnly { .. } => ResultCode::ReadOnly,
        RequestError::Full { .. } => ResultCode::WouldBlock,
        RequestError::Unsupported { .. } => ResultCode::Unsupported,
        RequestError::WriteBackFailed { .. } => ResultCode::Status,
        RequestError::Gone => ResultCode::Gone,
        RequestError::NoThread { .. } => ResultCode::NoThread,
        RequestError::NoQueue => ResultCode::Closed,
        _ => ResultCode::Argument,
    }
}

fn code_of_io(error: &IoError) -> ResultCode {
    match error {
        IoError::Status(_) => ResultCode::Status,
        IoError::PartialBlocks { .. } => ResultCode::Misaligned,
        IoError::BlocksOutOfRange { .. } => ResultCode::OutOfRange,
        IoError::Submit(SubmitError::Full) => ResultCode::WouldBlock,
        IoError::Submit(SubmitError::Gone) | IoError::Gone { .. } => ResultCode::Gone,
        IoError::Submit(SubmitError::NoThread { .. }) => ResultCode::NoThread,
        IoError::Submit(_) => ResultCode::Unsupported,
        IoError::Unsupported { .. }
        | IoError::Limit { .. }
        | IoError::Denied { .. }
        | IoError::Daemon { .. }
        | IoError::Cache(CacheError::InUse) => ResultCode::Refused,
        IoError::Cache(CacheError::CloseTimeout { .. }) => ResultCode::Timeout,
        IoError::Cache(CacheError::Pages { .. } | CacheError::Dirty { .. }) => ResultCode::Config,
        IoError::Cache(CacheError::OtherRange { .. }) => ResultCode::Argument,
        IoError::Device { .. } | IoError::Controller(_) | IoError::Protocol { .. } => ResultCode::Device,
        IoError::Namespace { .. } | IoError::OutOfBuffer(_) | IoError::QueuePair(_) => ResultCode::Argument,
        IoError::MapFailed(_) | IoError::SharedMemory(_) => ResultCode::NoMemory,
        _ => ResultCode::Other,
    }
}

fn code_of_pool(error: &PoolError) -> ResultCode {
    match error {
        PoolError::Zero => ResultCode::Zero,
        PoolError::Overflow { .. } => ResultCode::Overflow,
        PoolError::Align { .. } => ResultCode::Align,
        PoolError::NoSegments => ResultCode::NoSegments,
        PoolError::OverCap { .. } => ResultCode::OverCap,
        PoolError::CapTooHigh { .. } => ResultCode::CapTooHigh,
        PoolError::NoSuchNode { .. } => ResultCode::NoSuchNode,
        PoolError::WouldBlock { .. } => ResultCode::WouldBlock,
        PoolError::Timeout { .. } => ResultCode::Timeout,
        PoolError::Pin(_) => ResultCode::Pin,
        PoolError::Commit(_) | PoolError::Reserve(_) | PoolError::Place(_) | PoolError::Bind(_) => {
            ResultCode::NoMemory
        }
        PoolError::Adopt(AdoptError::Outside) => ResultCode::Foreign,
        PoolError::Adopt(AdoptError::Interior) => ResultCode::Interior,
        PoolError::Adopt(AdoptError::DoubleFree) => ResultCode::DoubleFree,
        PoolError::Adopt(AdoptError::NotLeaked) => ResultCode::NotRaw,
        PoolError::Config(_) => ResultCode::Config,
        PoolError::Forked => ResultCode::Forked,
        PoolError::Closed => ResultCode::Closed,
        _ => ResultCode::Other,
    }
}
