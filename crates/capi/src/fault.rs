//! Why a call failed, before it becomes a code and a sentence.
//!
//! In: the errors of pools, devices and handles, and what callers hand in. Out: a [`Fault`]. Invariant: its sentence says what to change.

use crate::code::Code;
use headwater::io::handle::RequestError;
use headwater::{IoError, SubmitError};
use headwater_dma::pool::PoolError;
use headwater_dma::pool::calibration::NotBorders;
use headwater_host::foreign::OutOfRegion;
use headwater_host::reservation::AdoptError;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("{0} is null: pass the address of what is to be read or written")]
    Null(&'static str),
    #[error("{0} is not aligned for its type: pass the address of a variable of that type")]
    Misaligned(&'static str),
    #[error("this is no open pool: pass what hw_pool_open returned, and not after the pool is closed")]
    Handle,
    #[error("flags {0:#x} do not exist: combine the HW_ALLOC_ constants of the header")]
    Flags(u32),
    #[error(
        "a struct of {got} bytes, where this library has {want}: use the header of the library that is linked"
    )]
    Length { got: usize, want: usize },
    #[error("{field} is {value}: choose {choice}")]
    Choice { field: &'static str, value: u64, choice: &'static str },
    #[error(
        "the preset names no borders: \"calibrated\", \"paper-4.1\", \"paper-5.2\", \"SMALL:LARGE\", or null"
    )]
    Preset,
    #[error("{0} pools are open: close one, and free its buffers")]
    TooManyPools(usize),
    #[error("pinning {0}: choose HW_PINNING_NONE or HW_PINNING_LOCKED, or open the pool from Rust")]
    Unavailable(&'static str),
    #[error("{0}")]
    Borders(NotBorders),
    #[error(
        "the system would not start a thread (error {0}): raise the limit of processes, or call hw_pool_tick yourself"
    )]
    NoThread(i32),
    #[error("{0}")]
    Pool(#[from] PoolError),
    #[error("this is no {0} that is open: pass what made it returned, and not after it has ended")]
    Gone(&'static str),
    #[error("the {0} belongs to the parent of this process: open one here")]
    Inherited(&'static str),
    #[error("another thread is using the {0}: give each thread one of its own")]
    Busy(&'static str),
    #[error("{most} of these are open, the most there can be: end a {what} first")]
    TooMany { what: &'static str, most: usize },
    #[error("a handle has the queue: destroy that first, or make the queue with HW_QUEUE_SHARED")]
    QueueTaken,
    #[error("the queues are of different devices: a handle has queues of one")]
    OtherDevice,
    #[error("the URL is no UTF-8 text")]
    Url,
    #[error("the address is of no buffer of the device: pass memory of hw_get_buffer, and all of it inside")]
    BufferForeign,
    #[error("the address lies inside of a buffer: pass what hw_get_buffer gave")]
    BufferInterior,
    #[error("{from} and {bytes} bytes lead out of the {end} bytes that the handle may touch")]
    Seek { from: u64, bytes: i64, end: u64 },
    #[error("the request is one command with others, or its device takes none back: wait for its event")]
    TooLate,
    #[error("requests are on the way: take their events, then put the cache on or off")]
    OnTheWay,
    #[error("no request with this tag is on the way")]
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
        PoolError::Adopt(AdoptError::Foreign) => Code::Foreign,
        PoolError::Adopt(AdoptError::Interior) => Code::Interior,
        PoolError::Adopt(AdoptError::DoubleFree) => Code::DoubleFree,
        PoolError::Adopt(AdoptError::NotRaw) => Code::NotRaw,
        PoolError::Config(_) => Code::Config,
        PoolError::Forked => Code::Forked,
        PoolError::Closed => Code::Closed,
        _ => Code::Other,
    }
}
