//! A pair of fences of which one is nearly free because the other does the work of both.
//!
//! In: the kernel's `membarrier`, if it has one. Out: a light and a heavy fence. Invariant: of two threads that each store,
//! pass one of the two fences and then load what the other stored, at least one loads the other's store, if one passed
//! the heavy fence.

use crate::sync::{Ordering, fence};

/// Which fences are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Barrier {
    /// The heavy one makes every running thread of the process pass a fence; the light one holds the compiler only.
    #[cfg(not(loom))]
    Membarrier,
    /// Both are full fences.
    Fences,
}

/// The kernel has no heavy fence any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the kernel refuses membarrier (error {errno}), which it allowed when the process started: do not change the \
     system call filter of a running process"
)]
pub struct BarrierRefused {
    /// The kernel's number.
    pub errno: i32,
}

impl Barrier {
    /// The fastest pair that works here, decided once for the process.
    #[cfg(not(loom))]
    pub(super) fn best() -> Self {
        static BEST: std::sync::OnceLock<Barrier> = std::sync::OnceLock::new();
        *BEST.get_or_init(|| match register().and_then(|()| expedited()) {
            Ok(()) => Self::Membarrier,
            Err(_) => Self::Fences,
        })
    }

    /// Loom knows no membarrier; a full fence on both sides is what it amounts to.
    #[cfg(loom)]
    pub(super) fn best() -> Self {
        Self::Fences
    }

    /// The owner's side.
    #[inline]
    pub(super) fn light(self) {
        match self {
            // The compiler keeps the order of what it emits; the processor's is kept by the other side, whose call makes
            // this thread pass a fence wherever it is: before the store, after the load, or in between.
            #[cfg(not(loom))]
            Self::Membarrier => std::sync::atomic::compiler_fence(Ordering::SeqCst),
            Self::Fences => fence(Ordering::SeqCst),
        }
    }

    /// The strangers' side.
    pub(super) fn heavy(self) -> Result<(), BarrierRefused> {
        match self {
            #[cfg(not(loom))]
            Self::Membarrier => {
                fence(Ordering::SeqCst);
                // A process that was forked may have to register anew.
                let refused =
                    |error: std::io::Error| BarrierRefused { errno: error.raw_os_error().unwrap_or(0) };
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
