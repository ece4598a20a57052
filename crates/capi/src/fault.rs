//! The reason for which a call failed, before it becomes a code and a message.
//!
//! Input: the errors of pools, devices and handles, and the arguments of callers. Output: a [`Fault`]. Invariant: its
//! message says what to change.

use crate::code::Code;
use headwater::io::handle::RequestError;
use headwater::{IoError, SubmitError};
use headwater_dma::pool::PoolError;
use headwater_dma::pool::calibration::InvalidThresholds;
use headwater_host::reservation::AdoptError;
use headwater_host::shared_memory::OutOfRegion;

/// The reason for which a call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("{0} is null: pass a valid address")]
    Null(&'static str),
    #[error("{0} is not aligned for its type: pass the address of a variable of that type")]
    Misaligned(&'static str),
    #[error("the pool handle is not open: pass the one that hw_pool_open wrote, before its pool is closed")]
    Handle,
    #[error("flags {0:#x} are undefined: combine the HW_ALLOC_ or HW_QUEUE_ constants of the header")]
    Flags(u32),
    #[error(
        "the struct has {got} bytes, in this library {want}: use the header of the library that is linked"
    )]
    Length { got: usize, want: usize },
    #[error("{field} is {value}: choose {choice}")]
    Choice { field: &'static str, value: u64, choice: &'static str },
    #[error(
        "unknown preset: choose \"calibrated\", \"paper-4.1\", \"paper-5.2\", \"SMALL:LARGE\" in bytes, or null"
    )]
    Preset,
    #[error("{0} pools are open, the maximum: close one, and free its buffers")]
    TooManyPools(usize),
    #[error("pinning {0}: choose HW_PINNING_NONE or HW_PINNING_LOCKED, or open the pool from Rust")]
    Unavailable(&'static str),
    #[error("{0}")]
    Borders(InvalidThresholds),
    #[error(
        "could not start a thread (errno {0}): raise the process limit, or set ticker to 0 and call hw_pool_tick"
    )]
    NoThread(i32),
    #[error("{0}")]
    Pool(#[from] PoolError),
    #[error("the {0} is not open: pass what its open or create call wrote, before it is closed or destroyed")]
    Gone(&'static str),
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
    Url,
    #[error("no buffer of the device contains the whole range: pass memory of hw_get_buffer")]
    BufferForeign,
    #[error("the address lies inside a buffer: pass the address that hw_get_buffer wrote")]
    BufferInterior,
    #[error("{bytes} bytes from {from} lie outside the {end} bytes that the handle may access")]
    Seek { from: u64, bytes: i64, end: u64 },
    #[error("the request is merged with further ones, or its device cannot cancel: wait for its event")]
    TooLate,
    #[error("requests are in flight: take their events before adding or removing the cache")]
    OnTheWay,
    #[error("no request with this tag is in flight")]
    Tag,
    #[error("{0}")]
    Request(#[from] RequestError),
    #[error("{0}")]
    Io(IoError),
}

impl From<IoError> for Fault {
    fn from(error: IoError) -> Self {
        match error {
            IoError::Request(error) => Self::Request(error),
            IoError::Pool(error) => Self::Pool(error),
            error => Self::Io(error),
        }
    }
}

impl From<OutOfRegion> for Fault {
    fn from(error: OutOfRegion) -> Self {
        Self::Io(error.into())
    }
}

impl Fault {
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::Null(_) => Code::Null,
            Self::Misaligned(_) | Self::Flags(_) | Self::Length { .. } => Code::Argument,
            Self::Handle => Code::Handle,
            Self::Choice { .. } | Self::Preset | Self::Borders(_) => Code::Config,
            Self::Unavailable(_) => Code::Unavailable,
            Self::TooManyPools(_) | Self::TooMany { .. } => Code::TooManyPools,
            Self::Gone(_) => Code::Handle,
            Self::Inherited(_) => Code::Forked,
            Self::Busy(_) | Self::QueueTaken | Self::OnTheWay => Code::Busy,
            Self::OtherDevice | Self::Url => Code::Argument,
            Self::BufferForeign => Code::Foreign,
            Self::BufferInterior => Code::Interior,
            Self::Seek { .. } => Code::OutOfRange,
            Self::TooLate => Code::TooLate,
            Self::Tag => Code::Unknown,
            Self::Request(error) => code_of_request(error),
            Self::Io(error) => code_of_io(error),
            Self::NoThread(_) => Code::NoThread,
            Self::Pool(error) => code_of(error),
        }
    }
}

fn code_of_request(error: &RequestError) -> Code {
    match error {
        RequestError::Misaligned { .. } | RequestError::Empty { .. } => Code::Misaligned,
        RequestError::OutOfRange { .. } => Code::OutOfRange,
        RequestError::Unreachable { .. } => Code::Align,
        RequestError::ReadOnly { .. } => Code::ReadOnly,
        RequestError::Full { .. } => Code::WouldBlock,
        RequestError::Unfit { .. } => Code::Unsupported,
        RequestError::Gone => Code::Gone,
        RequestError::Closed => Code::Closed,
        _ => Code::Argument,
    }
}

fn code_of_io(error: &IoError) -> Code {
    match error {
        IoError::Status(_) => Code::Status,
        IoError::Blocks { .. } => Code::Misaligned,
        IoError::Range { .. } => Code::OutOfRange,
        IoError::Submit(SubmitError::Full) => Code::WouldBlock,
        IoError::Submit(SubmitError::Gone) | IoError::Gone { .. } => Code::Gone,
        IoError::Submit(_) => Code::Unsupported,
        IoError::Refused { .. } => Code::Refused,
        IoError::Device { .. } | IoError::Controller(_) | IoError::Protocol { .. } => Code::Device,
        IoError::Namespace { .. } | IoError::OutOfBuffer(_) | IoError::QueuePair(_) => Code::Argument,
        IoError::Map(_) | IoError::Take(_) => Code::NoMemory,
        _ => Code::Other,
    }
}

fn code_of(error: &PoolError) -> Code {
    match error {
        PoolError::Zero => Code::Zero,
        PoolError::Overflow { .. } => Code::Overflow,
        PoolError::Align { .. } => Code::Align,
        PoolError::NoSegments => Code::NoSegments,
        PoolError::OverCap { .. } => Code::OverCap,
        PoolError::CapTooHigh { .. } => Code::CapTooHigh,
        PoolError::NoSuchNode { .. } => Code::NoSuchNode,
        PoolError::WouldBlock { .. } => Code::WouldBlock,
        PoolError::Timeout { .. } => Code::Timeout,
        PoolError::Pin(_) => Code::Pin,
        PoolError::Commit(_) | PoolError::Reserve(_) | PoolError::Place(_) | PoolError::Bind(_) => {
            Code::NoMemory
        }
        PoolError::Adopt(AdoptError::Outside) => Code::Foreign,
        PoolError::Adopt(AdoptError::Interior) => Code::Interior,
        PoolError::Adopt(AdoptError::DoubleFree) => Code::DoubleFree,
        PoolError::Adopt(AdoptError::NotLeaked) => Code::NotRaw,
        PoolError::Config(_) => Code::Config,
        PoolError::Forked => Code::Forked,
        PoolError::Closed => Code::Closed,
        _ => Code::Other,
    }
}
