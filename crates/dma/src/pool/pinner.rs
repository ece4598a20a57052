//! Pinners, which make memory visible to a device and revoke that.
//!
//! Input: chunks of committed memory. Output: [`PinToken`]s. Invariant: a chunk is pinned once, before its first buffer
//! is handed out, and unpinned once, after its last buffer is returned; no buffer is ever in unpinned memory.

use super::placement::NodeId;
use headwater_host::clock::Nanos;
use headwater_host::pinning::{self, MemlockBudget};
use headwater_host::width::to_usize;
use std::fmt;
use std::os::fd::BorrowedFd;

#[cfg(not(loom))]
pub use gpu::GpuPinner;
pub use mlock::MlockPinner;
pub use shared::{SharedPinner, SharedRange};
pub use simulated::{SimulatedCosts, SimulatedPinner, UnpinFailure};
pub use uring::UringPinner;
pub use vfio::VfioPinner;

#[cfg(not(loom))]
mod gpu;
mod mlock;
mod shared;
mod simulated;
mod uring;
mod vfio;

/// The reason why memory could not be pinned or unpinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// EPERM: the process may not pin memory.
    #[error(
        "this process may not pin {bytes} bytes (EPERM): raise RLIMIT_MEMLOCK above 0 or grant CAP_IPC_LOCK"
    )]
    NotPermitted {
        /// Bytes to be pinned.
        bytes: usize,
    },
    /// ENOMEM: a limit, or addresses without memory.
    #[error(
        "pinning {bytes} bytes exceeds the limit of locked memory (ENOMEM): \
         raise RLIMIT_MEMLOCK (ulimit -l), or lower the cap of the pool"
    )]
    LimitReached {
        /// Bytes to be pinned.
        bytes: usize,
    },
    /// EAGAIN: the kernel could not lock all of it now.
    #[error(
        "the kernel could not pin {bytes} bytes now (EAGAIN): free memory and retry, or use a smaller chunk"
    )]
    Again {
        /// Bytes to be pinned.
        bytes: usize,
    },
    /// EEXIST: the device maps other memory at these addresses. Never retried: the owner of that is unknown.
    #[error(
        "{bytes} bytes are already mapped for the device (EEXIST): unmap them, or give the pool a container of its own"
    )]
    Exists {
        /// Bytes to be pinned.
        bytes: usize,
    },
    /// ENOSPC, ENFILE: every slot of the ring's table, or every mapping of the device's container, is in use.
    #[error(
        "{bytes} bytes cannot be pinned, no mapping is free (error {errno}): \
         use larger chunks, or open a larger table or container"
    )]
    TableFull {
        /// Bytes to be pinned.
        bytes: usize,
        /// The kernel's error number.
        errno: i32,
    },
    /// EOVERFLOW: one registration cannot be this long.
    #[error("{bytes} bytes exceed the limit of one registration: use smaller chunks, and smaller requests")]
    TooLong {
        /// Bytes to be pinned.
        bytes: usize,
    },
    /// ENOSYS, ENOTTY, EOPNOTSUPP: not supported here, or not for this memory.
    #[error("this pinner is not supported for {bytes} bytes here (error {errno}): choose another pinner")]
    Unsupported {
        /// Bytes to be pinned.
        bytes: usize,
        /// The kernel's error number.
        errno: i32,
    },
    /// Memory of a shared region is not shared.
    #[error("the pool's memory has no descriptor: open the pool with Sharing::Shared")]
    NotShared,
    /// Fewer bytes were unpinned than had been pinned.
    #[error(
        "{unpinned} of {bytes} bytes were unpinned: a device may still access the rest, which stays in use permanently"
    )]
    Short {
        /// Bytes to be unpinned.
        bytes: usize,
        /// Bytes unpinned.
        unpinned: usize,
    },
    /// Any other error of the kernel.
    #[error("the kernel refused to pin {bytes} bytes (error {errno})")]
    Refused {
        /// Bytes to be pinned.
        bytes: usize,
        /// The kernel's error number.
        errno: i32,
    },
    /// The driver of a GPU did not register or unregister memory.
    #[error(
        "the driver of the GPU refused {bytes} bytes (its error {code}): free memory, or serve without the GPU"
    )]
    Gpu {
        /// Bytes of the range.
        bytes: usize,
        /// The driver's error.
        code: i32,
    },
    /// The pool would pin more than this process may; found before pinning.
    #[error(
        "{bytes} bytes are to be pinned, the limit is {limit}: \
         run `ulimit -l {}` (kB) or more, or lower the cap of the pool",
        bytes.div_ceil(1_024)
    )]
    Preflight {
        /// Maximum that the pool pins.
        bytes: usize,
        /// Limit of this process.
        limit: usize,
    },
}

impl PinError {
    /// Returns the error for an error number of the kernel (asm-generic/errno-base.h).
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

/// Checks that the process may lock `bytes` more bytes within its limit of locked memory.
fn within_memlock(bytes: usize) -> Result<(), PinError> {
    within_budget(MemlockBudget::read(), bytes)
}

/// Checks that the process may lock `bytes` more bytes within a budget.
fn within_budget(budget: MemlockBudget, bytes: usize) -> Result<(), PinError> {
    let checked = budget.check(bytes as u64);
    let room = |over: pinning::OverBudget| to_usize(over.limit.saturating_sub(over.locked));
    checked.map_err(|over| PinError::Preflight { bytes, limit: room(over) })
}

/// The address range of a node of the pool. All memory pinned for the node lies in it.
#[derive(Clone, Copy, Debug)]
pub struct NodeRange<'a> {
    /// The node.
    pub node: NodeId,
    /// First address in this process.
    pub address: usize,
    /// Length in bytes.
    pub bytes: usize,
    /// Descriptor by which other processes map it from its start, if it is shared.
    pub descriptor: Option<BorrowedFd<'a>>,
}

/// The identity of a pinned range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PinToken {
    /// First address in this process.
    pub address: usize,
    /// Length in bytes.
    pub bytes: usize,
    /// Device address of the first byte, for devices with their own address space.
    pub iova: Option<u64>,
    /// Number of the range among a ring's registered buffers, for io_uring.
    pub slot: Option<u32>,
}

impl PinToken {
    /// Returns the token of a range that the device accesses at the process's own addresses, or not by address at all.
    #[must_use]
    pub const fn at(address: usize, bytes: usize) -> Self {
        Self { address, bytes, iova: None, slot: None }
    }
}

/// A method to pin memory.
pub trait MemoryPinner: Send + Sync + fmt::Debug {
    /// Returns its name in statistics: `mlock`, `vfio`.
    fn name(&self) -> &'static str;

    /// Checks that `bytes` can be pinned in total, before any are.
    ///
    /// # Errors
    /// [`PinError::Preflight`] with what to change.
    fn preflight(&self, bytes: usize) -> Result<(), PinError> {
        let _ = bytes;
        Ok(())
    }

    /// Prepares a node's address range for pinning. Called once for each node, when the pool is opened.
    ///
    /// # Errors
    /// No part of the memory can be pinned by this pinner; the pool is not opened.
    fn prepare_node(&self, grounds: NodeRange<'_>) -> Result<(), PinError> {
        let _ = grounds;
        Ok(())
    }

    /// Pins a range. All of its pages are present and unused.
    ///
    /// # Errors
    /// The reason of the refusal; nothing is pinned.
    fn pin(&self, address: usize, bytes: usize) -> Result<PinToken, PinError>;

    /// Returns true if two adjacent ranges can be used as one: a device that addresses ranges by number cannot cross
    /// from one into the next.
    fn can_merge(&self) -> bool {
        true
    }

    /// Unpins a range that [`pin`](Self::pin) pinned, as a whole.
    ///
    /// # Errors
    /// The range counts as permanently pinned and is never reused.
    fn unpin(&self, token: PinToken) -> Result<(), PinError>;
}

/// A pinner that pins nothing: for memory that only processors and the kernel's own copies access.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoPinning;

impl MemoryPinner for NoPinning {
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

/// The clock of a pool, for decay, deadlines and the histogram of pinning.
pub trait PoolClock: Send + Sync + fmt::Debug {
    /// Returns the monotonic time.
    fn now(&self) -> Nanos;
}

impl PoolClock for headwater_host::clock::Clock {
    fn now(&self) -> Nanos {
        Self::now(self)
    }
}
