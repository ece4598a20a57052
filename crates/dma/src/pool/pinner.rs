//! Making memory visible to a device, and hiding it again.
//!
//! In: chunks of committed memory. Out: [`PinToken`]s. Invariant: a chunk is pinned once, before its first buffer is given
//! out, and unpinned once, after its last one is back; no buffer is ever in memory that is not pinned.

use super::placement::NodeId;
use headwater_host::clock::Nanos;
use headwater_host::pinning::{self, MemlockBudget};
use std::fmt;
use std::os::fd::BorrowedFd;

pub use mlock::Mlock;
pub use shared::{SharedRange, SharedRegion};
pub use simulated::{SimulatedCosts, SimulatedPinner, Stuck};
pub use uring::UringBuffers;
pub use vfio::VfioType1;

mod mlock;
mod shared;
mod simulated;
mod uring;
mod vfio;

/// Why memory could not be pinned or unpinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// EPERM: the process may not pin at all.
    #[error(
        "this process may not pin {bytes} bytes (EPERM): raise RLIMIT_MEMLOCK above 0 or grant CAP_IPC_LOCK"
    )]
    NotPermitted {
        /// How much was to be pinned.
        bytes: usize,
    },
    /// ENOMEM: a limit, or addresses without memory.
    #[error(
        "pinning {bytes} bytes passes the limit of locked memory (ENOMEM): raise RLIMIT_MEMLOCK (ulimit -l), or lower the cap of the pool"
    )]
    LimitReached {
        /// How much was to be pinned.
        bytes: usize,
    },
    /// EAGAIN: the kernel could not lock all of it now.
    #[error(
        "the kernel could not pin {bytes} bytes now (EAGAIN): free memory and retry, or use a smaller chunk"
    )]
    Again {
        /// How much was to be pinned.
        bytes: usize,
    },
    /// EEXIST: the device sees other memory at these addresses. Never retried: whose it is is unknown.
    #[error(
        "{bytes} bytes are mapped for the device already (EEXIST): unmap them, or give the pool a container of its own"
    )]
    Exists {
        /// How much was to be pinned.
        bytes: usize,
    },
    /// ENOSPC, ENFILE: every number of the ring's table, or every mapping of the device's container, is taken.
    #[error(
        "{bytes} bytes find no free mapping (error {errno}): use larger chunks, or open a larger table or container"
    )]
    TableFull {
        /// How much was to be pinned.
        bytes: usize,
        /// The kernel's number.
        errno: i32,
    },
    /// EOVERFLOW: one registration does not take so much.
    #[error("{bytes} bytes are more than can be pinned as one: use smaller chunks, and smaller requests")]
    TooLong {
        /// How much was to be pinned.
        bytes: usize,
    },
    /// ENOSYS, ENOTTY, EOPNOTSUPP: not offered here, or not for this memory.
    #[error(
        "this way of pinning is not offered for {bytes} bytes here (error {errno}): choose another pinner"
    )]
    Unsupported {
        /// How much was to be pinned.
        bytes: usize,
        /// The kernel's number.
        errno: i32,
    },
    /// A shared region was to be made of memory that is not shared.
    #[error("the pool's memory has no descriptor: open the pool with Sharing::Shared")]
    NotShared,
    /// Less was unpinned than had been pinned.
    #[error(
        "{unpinned} of {bytes} bytes were unpinned: a device may still reach the rest, which stays in use for good"
    )]
    Short {
        /// How much was to be unpinned.
        bytes: usize,
        /// How much was.
        unpinned: usize,
    },
    /// Anything else that the kernel says.
    #[error("the kernel would not pin {bytes} bytes (error {errno})")]
    Refused {
        /// How much was to be pinned.
        bytes: usize,
        /// The kernel's number.
        errno: i32,
    },
    /// More would be pinned than this process may, found out before trying.
    #[error(
        "{bytes} bytes are to be pinned and {limit} may be: run `ulimit -l {}` (kB) or more, or lower the cap of the pool",
        bytes.div_ceil(1_024)
    )]
    Preflight {
        /// What the pool may come to.
        bytes: usize,
        /// What the process may pin.
        limit: usize,
    },
}

impl PinError {
    /// The error for a number of the kernel's (asm-generic/errno-base.h).
    #[must_use]
    pub const fn from_errno(bytes: usize, errno: i32) -> Self {
        match errno {
            1 => Self::NotPermitted { bytes },
            11 => Self::Again { bytes },
            12 => Self::LimitReached { bytes },
            17 => Self::Exists { bytes },
            23 | 28 => Self::TableFull { bytes, errno },
            25 | 38 | 95 => Self::Unsupported { bytes, errno },
            75 => Self::TooLong { bytes },
            _ => Self::Refused { bytes, errno },
        }
    }
}

impl From<pinning::PinError> for PinError {
    fn from(error: pinning::PinError) -> Self {
        Self::from_errno(error.bytes, error.errno)
    }
}

/// Whether the process may lock so many bytes more, by its limit on locked memory.
fn within_memlock(bytes: usize) -> Result<(), PinError> {
    let asked = u64::try_from(bytes).unwrap_or(u64::MAX);
    let room = |over: pinning::OverBudget| usize::try_from(over.limit.saturating_sub(over.locked));
    let checked = MemlockBudget::read().check(asked);
    checked.map_err(|over| PinError::Preflight { bytes, limit: room(over).unwrap_or(usize::MAX) })
}

/// The addresses of a node of the pool, in which all that will be pinned for it lies.
#[derive(Clone, Copy, Debug)]
pub struct Grounds<'a> {
    /// The node.
    pub node: NodeId,
    /// First address in this process.
    pub address: usize,
    /// Length in bytes.
    pub bytes: usize,
    /// What others map it by from its start, if it is shared.
    pub descriptor: Option<BorrowedFd<'a>>,
}

/// What a pinned range is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinToken {
    /// First address in this process.
    pub address: usize,
    /// Length in bytes.
    pub bytes: usize,
    /// Where the device finds the first byte, for devices that have addresses of their own.
    pub iova: Option<u64>,
    /// The number under which a ring knows the range, for io_uring's registered buffers.
    pub slot: Option<u32>,
}

impl PinToken {
    /// A range that a device finds at the process's own addresses, or not by address at all.
    #[must_use]
    pub const fn at(address: usize, bytes: usize) -> Self {
        Self { address, bytes, iova: None, slot: None }
    }
}

/// One way to pin.
pub trait Pinner: Send + Sync + fmt::Debug {
    /// What it is called in statistics: `mlock`, `vfio`.
    fn name(&self) -> &'static str;

    /// Whether `bytes` can be pinned in all, before any are.
    ///
    /// # Errors
    /// [`PinError::Preflight`] with what to change.
    fn preflight(&self, bytes: usize) -> Result<(), PinError> {
        let _ = bytes;
        Ok(())
    }

    /// Learns where the pool's memory will be. Called once for each node, when the pool is opened.
    ///
    /// # Errors
    /// The memory cannot be pinned this way, whichever part; the pool is not opened.
    fn settle(&self, grounds: Grounds<'_>) -> Result<(), PinError> {
        let _ = grounds;
        Ok(())
    }

    /// Pins a range. All of its pages are present, and nobody uses them yet.
    ///
    /// # Errors
    /// Nothing is pinned.
    fn pin(&self, address: usize, bytes: usize) -> Result<PinToken, PinError>;

    /// Whether two ranges that touch can be used as one: a device that knows ranges by number cannot cross from one into
    /// the next.
    fn joins(&self) -> bool {
        true
    }

    /// Unpins what [`pin`](Self::pin) pinned, as a whole.
    ///
    /// # Errors
    /// The range counts as pinned for good: it is never used again.
    fn unpin(&self, token: PinToken) -> Result<(), PinError>;
}

/// Pins nothing: memory that only processors and the kernel's own copies touch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unpinned;

impl Pinner for Unpinned {
    fn name(&self) -> &'static str {
        "unpinned"
    }

    fn pin(&self, address: usize, bytes: usize) -> Result<PinToken, PinError> {
        Ok(PinToken::at(address, bytes))
    }

    fn unpin(&self, _token: PinToken) -> Result<(), PinError> {
        Ok(())
    }
}

/// Where a pool reads the time, for decay, deadlines and the histogram of pinning.
pub trait Time: Send + Sync + fmt::Debug {
    /// Monotonic time.
    fn now(&self) -> Nanos;
}

impl Time for headwater_host::clock::Clock {
    fn now(&self) -> Nanos {
        Self::now(self)
    }
}
