//! Stop requests: Ctrl-C and SIGTERM. The first signal drains the node, the second ends the process at once.
//!
//! Input: signals. Output: a descriptor that becomes readable, and a flag. Invariant: the signal handler only sets the
//! flag and writes one byte.

use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit code of a process that received a second stop signal.
const SECOND_SIGNAL_EXIT: i32 = 1;

/// A stop request of the process that can be waited for.
#[derive(Debug)]
pub struct StopSignal {
    requested: Arc<AtomicBool>,
    wake: UnixStream,
}

/// A handle that requests a [`StopSignal`] from inside the process.
#[derive(Debug)]
pub struct StopTrigger {
    requested: Arc<AtomicBool>,
    wake: UnixStream,
}

impl StopSignal {
    /// Returns a stop request that SIGINT and SIGTERM set.
    ///
    /// # Errors
    /// When the system refuses a descriptor or a handler.
    pub fn on_signals() -> std::io::Result<Self> {
        let (stop, handle) = Self::manual()?;
        for signal in [SIGINT, SIGTERM] {
            // Order matters: at the first signal the flag is still clear, so the conditional shutdown does nothing and
            // the next handler sets the flag.
            signal_hook::flag::register_conditional_shutdown(
                signal,
                SECOND_SIGNAL_EXIT,
                Arc::clone(&stop.requested),
            )?;
            signal_hook::flag::register(signal, Arc::clone(&stop.requested))?;
            signal_hook::low_level::pipe::register(signal, handle.wake.try_clone()?)?;
        }
        // Without a handler a write above the limit of file sizes ends the process instead of failing.
        signal_hook::flag::register(SIGXFSZ, Arc::default())?;
        Ok(stop)
    }

    /// Returns a stop request that only the returned handle sets.
    ///
    /// # Errors
    /// When the system refuses a descriptor.
    pub fn manual() -> std::io::Result<(Self, StopTrigger)> {
        let (wake, sender) = UnixStream::pair()?;
        let asked = Arc::new(AtomicBool::new(false));
        Ok((Self { requested: Arc::clone(&asked), wake }, StopTrigger { requested: asked, wake: sender }))
    }

    /// Returns true if a stop was requested.
    #[must_use]
    #[inline]
    pub fn is_requested(&self) -> bool {
        // The flag guards no other memory.
        self.requested.load(Ordering::Relaxed)
    }
}

impl StopTrigger {
    /// Sets the stop request.
    pub fn request(&mut self) {
        self.requested.store(true, Ordering::Relaxed);
        // An error is harmless: a full socket buffer is readable already.
        let _ = self.wake.write(b"x");
    }
}

impl AsFd for StopSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
