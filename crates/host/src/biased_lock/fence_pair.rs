//! An asymmetric pair of fences: the light one is nearly free because the heavy one does the work of both.
//!
//! Input: the kernel's `membarrier`, if it has one. Output: a light and a heavy fence. Invariant: of two threads that
//! each store, pass one of the two fences and then load what the other stored, at least one loads the other's store, if
//! one passed the heavy fence.

use crate::sync::{Ordering, fence};

/// The implementation of the two fences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FencePair {
    /// The heavy fence makes every running thread of the process pass a fence; the light one restrains the compiler
    /// only.
    #[cfg(not(loom))]
    Membarrier,
    /// Both are full fences.
    Fences,
}

/// The error that the kernel no longer provides the heavy fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "membarrier failed (error {errno}), although it worked when the process started: do not change the \
     system call filter of a running process"
)]
pub struct MembarrierError {
    /// The kernel's error number.
    pub errno: i32,
}

impl FencePair {
    /// Returns the fastest pair that works on this kernel, chosen once for the process.
    #[cfg(not(loom))]
    pub(super) fn best() -> Self {
        static BEST: std::sync::OnceLock<FencePair> = std::sync::OnceLock::new();
        *BEST.get_or_init(|| match register().and_then(|()| expedited()) {
            Ok(()) => Self::Membarrier,
            Err(_) => Self::Fences,
        })
    }

    /// Returns full fences: loom has no membarrier, and a full fence on both sides has the same effect.
    #[cfg(loom)]
    pub(super) fn best() -> Self {
        Self::Fences
    }

    /// Executes the owner thread's fence.
    #[inline]
    pub(super) fn light(self) {
        match self {
            // The compiler keeps the order of what it emits; the processor's is kept by the other side, whose call
            // makes this thread pass a fence wherever it is: before the store, after the load, or in between.
            #[cfg(not(loom))]
            Self::Membarrier => std::sync::atomic::compiler_fence(Ordering::SeqCst),
            Self::Fences => fence(Ordering::SeqCst),
        }
    }

    /// Executes the other threads' fence.
    pub(super) fn heavy(self) -> Result<(), MembarrierError> {
        match self {
            #[cfg(not(loom))]
            Self::Membarrier => {
                fence(Ordering::SeqCst);
                // A forked process may have to register again.
                let refused =
                    |error: std::io::Error| MembarrierError { errno: error.raw_os_error().unwrap_or(0) };
                expedited().or_else(|_| register().and_then(|()| expedited())).map_err(refused)?;
                fence(Ordering::SeqCst);
            }
            Self::Fences => fence(Ordering::SeqCst),
        }
        Ok(())
    }
}

#[cfg(not(loom))]
fn register() -> std::io::Result<()> {
    membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
}

#[cfg(not(loom))]
fn expedited() -> std::io::Result<()> {
    membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
}

#[cfg(not(loom))]
fn membarrier(command: libc::c_int) -> std::io::Result<()> {
    // SAFETY: the call takes numbers only and touches no memory of ours.
    let answer = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    if answer == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
