//! The pause of a listener while the process or the system has no descriptor left.
//!
//! Input: a listener, errors of `accept`, the time. Output: whether the listener ends sleeps. Invariant: between two
//! failed calls of `accept` at one listener lie [`PAUSE`].
//!
//! A listener with a waiting client stays readable, and `accept` leaves the client in the kernel's queue when no
//! descriptor is left. Without the pause the core loop would never sleep. Clients that are connected are served on; those
//! that wait are accepted after the pause that follows the release of a descriptor.

use crate::counters::FrontEndCounters;
use headwater_host::clock::Nanos;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};

/// Time for which a listener is not polled after a failed call.
const PAUSE: Nanos = Nanos::from_millis(100);
/// Minimum time between two log lines of one listener.
const LOG_INTERVAL: Nanos = Nanos::from_millis(10_000);

/// The state of one listener that an epoll descriptor watches.
#[derive(Debug)]
pub(crate) struct AcceptPause {
    /// The data of its events.
    data: u64,
    /// End of the pause; `None` while the listener is watched.
    resume_at: Option<Nanos>,
    pauses: u64,
    logged_at: Option<Nanos>,
}

impl AcceptPause {
    /// Begins to watch a listener.
    ///
    /// # Errors
    /// The kernel refuses to watch it.
    pub(crate) fn watch(epoll: impl AsFd, listener: impl AsFd, data: u64) -> Result<Self, Errno> {
        epoll::add(epoll, listener, EventData::new_u64(data), EventFlags::IN)?;
        Ok(Self { data, resume_at: None, pauses: 0, logged_at: None })
    }

    /// Begins a pause if `error` of `accept` says that no descriptor or memory is left for a socket.
    pub(crate) fn handle_error(
        &mut self,
        epoll: BorrowedFd<'_>,
        listener: BorrowedFd<'_>,
        error: &std::io::Error,
        now: Nanos,
    ) {
        let errno = Errno::from_io_error(error);
        if !matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) {
            return;
        }
        assert!(self.resume_at.is_none(), "the listener is asked for a client during its pause");
        self.pauses += 1;
        self.resume_at = Some(now.after(PAUSE));
        // Changing the events of a watched descriptor needs no memory; if it fails, the loop is awake and still serves.
        let _ = epoll::modify(epoll, listener, EventData::new_u64(self.data), EventFlags::empty());
        if self.logged_at.is_none_or(|at| now.since(at) >= LOG_INTERVAL) {
            self.logged_at = Some(now);
            tracing::warn!(
                %error,
                pauses = self.pauses,
                "no new client can be accepted; raise the limit of open files (ulimit -n, LimitNOFILE=) or disconnect \
                 clients"
            );
        }
    }

    /// Ends the pause once its time has passed. Returns true while the listener must not be polled.
    pub(crate) fn is_paused(&mut self, epoll: BorrowedFd<'_>, listener: BorrowedFd<'_>, now: Nanos) -> bool {
        match self.resume_at {
            None => false,
            Some(at) if now < at => true,
            Some(_) => {
                let resumed = epoll::modify(epoll, listener, EventData::new_u64(self.data), EventFlags::IN);
                self.resume_at = resumed.err().map(|_| now.after(PAUSE));
                self.resume_at.is_some()
            }
        }
    }

    /// Returns the end of the pause.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        self.resume_at
    }

    /// Adds its pauses to `into`.
    pub(crate) fn count(&self, into: &mut FrontEndCounters) {
        into.accept_pauses += self.pauses;
    }
}
