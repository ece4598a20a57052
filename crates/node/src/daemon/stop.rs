//! Being asked to stop: Ctrl-C and SIGTERM, once to drain and twice to leave at once.
//!
//! In: signals. Out: a descriptor that becomes readable and a flag. Invariant: nothing but the flag and one byte is
//! touched inside the signal handler.

use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit code of a process that was told to stop a second time.
const SECOND_SIGNAL_EXIT: i32 = 1;

/// Whether the process was asked to stop.
#[derive(Debug)]
pub struct Stop {
    asked: Arc<AtomicBool>,
    wake: UnixStream,
}

/// Asks a [`Stop`] from inside the process.
#[derive(Debug)]
pub struct StopHandle {
    asked: Arc<AtomicBool>,
    wake: UnixStream,
}

impl Stop {
    /// Listens for SIGINT and SIGTERM.
    ///
    /// # Errors
    /// When the system refuses a descriptor or a handler.
    pub fn on_signals() -> std::io::Result<Self> {
        let (stop, handle) = Self::by_hand()?;
        for signal in [SIGINT, SIGTERM] {
            // Order matters: at the first signal the flag is still down, so the conditional shutdown passes it on.
            signal_hook::flag::register_conditional_shutdown(
                signal,
                SECOND_SIGNAL_EXIT,
                Arc::clone(&stop.asked),
            )?;
            signal_hook::flag::register(signal, Arc::clone(&stop.asked))?;
            signal_hook::low_level::pipe::register(signal, handle.wake.try_clone()?)?;
        }
        Ok(stop)
    }

    /// A stop that only its handle can ask for.
    ///
    /// # Errors
    /// When the system refuses a descriptor.
    pub fn by_hand() -> std::io::Result<(Self, StopHandle)> {
        let (wake, sender) = UnixStream::pair()?;
        let asked = Arc::new(AtomicBool::new(false));
        Ok((Self { asked: Arc::clone(&asked), wake }, StopHandle { asked, wake: sender }))
    }

    /// Whether the process was asked to stop.
    #[must_use]
    #[inline]
    pub fn asked(&self) -> bool {
        // The flag guards no other memory.
        self.asked.load(Ordering::Relaxed)
    }
}

impl StopHandle {
    /// Asks.
    pub fn ask(&mut self) {
        self.asked.store(true, Ordering::Relaxed);
        // A full pipe is readable, which is all that is wanted.
        let _ = self.wake.write(b"x");
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
