//! Why a call failed, before it becomes a code and a sentence.
//!
//! In: the pool's errors, and what callers hand in. Out: a [`Fault`]. Invariant: its sentence says what to change.

use crate::code::Code;
use headwater_dma::pool::PoolError;
use headwater_dma::pool::calibration::NotBorders;
use headwater_host::reservation::AdoptError;

/// Why a call failed.
#[derive(Clone, Debug, thiserror::Error)]
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
}

impl Fault {
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::Null(_) => Code::Null,
            Self::Misaligned(_) | Self::Flags(_) | Self::Length { .. } => Code::Argument,
            Self::Handle => Code::Handle,
            Self::Choice { .. } | Self::Preset | Self::Borders(_) => Code::Config,
            Self::Unavailable(_) => Code::Unavailable,
            Self::TooManyPools(_) => Code::TooManyPools,
            Self::NoThread(_) => Code::NoThread,
            Self::Pool(error) => code_of(error),
        }
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
