//! Making memory visible to a device, and hiding it again.
//!
//! In: chunks of committed memory. Out: [`PinToken`]s. Invariant: a chunk is pinned once, before its first buffer is given
//! out, and unpinned once, after its last one is back; no buffer is ever in memory that is not pinned.

use headwater_host::clock::Nanos;
use std::fmt;

pub use simulated::{SimulatedCosts, SimulatedPinner, Stuck};

mod simulated;

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
            _ => Self::Refused { bytes, errno },
        }
    }
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
