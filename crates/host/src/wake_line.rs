//! A socket pair by which two processes that do not trust each other end each other's sleep.
//!
//! Input: wake-ups from either end. Output: the end of a wait at the other, and the hang-up when the other end is
//! closed. Invariant: no call here blocks because of anything the other process does with its end.
//!
//! An eventfd does not fit: its two users share one open file. Either of them can clear the non-blocking flag and fill
//! or empty the counter, and the next write or read of the other blocks for ever. Each end of a socket pair has a file
//! of its own, and each call passes its own non-blocking flag.

use crate::clock::Nanos;
use crate::wake::WakeError;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The result of reading a wake line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeEvent {
    /// A wake-up; it is consumed.
    Woken,
    /// Nothing.
    Empty,
    /// The other end is closed, or its process is gone.
    HungUp,
}

/// One end of a wake line. A clone is another handle to the same end.
#[derive(Clone, Debug)]
pub struct WakeLine {
    socket: Arc<OwnedFd>,
}

impl WakeLine {
    /// Creates a line and returns both ends.
    ///
    /// # Errors
    /// [`WakeError`] when the process or the system has no descriptor left.
    pub fn pair() -> Result<(Self, Self), WakeError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(|errno| WakeError { call: "socketpair", errno })?;
        Ok((Self::from(one), Self::from(other)))
    }

    /// Ends the other side's current or next wait.
    ///
    /// # Errors
    /// [`WakeError`] when the other end is closed or the kernel refuses.
    pub fn wake(&self) -> Result<(), WakeError> {
        loop {
            match send(&*self.socket, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                // A full socket already holds pending wake-ups.
                Ok(_) | Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(WakeError { call: "send", errno }),
            }
        }
    }

    /// Consumes pending wake-ups, as many as one call returns.
    #[must_use]
    pub fn take(&self) -> WakeEvent {
        let mut calls = [0; 64];
        loop {
            match recv(&*self.socket, &mut calls[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return WakeEvent::HungUp,
                Ok(_) => return WakeEvent::Woken,
                Err(Errno::AGAIN) => return WakeEvent::Empty,
                Err(Errno::INTR) => {}
                Err(_) => return WakeEvent::HungUp,
            }
        }
    }

    /// Sleeps until a wake-up or a hang-up, at most for `longest`; without a limit if that is `None`.
    ///
    /// # Errors
    /// [`WakeError`] when the kernel refuses to wait.
    pub fn wait(&self, longest: Option<Nanos>) -> Result<WakeEvent, WakeError> {
        let timeout = longest.map(Nanos::to_timespec);
        let mut descriptors = [PollFd::new(&*self.socket, PollFlags::IN)];
        match poll(&mut descriptors, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(self.take()),
            Err(errno) => Err(WakeError { call: "poll", errno }),
        }
    }
}

impl From<OwnedFd> for WakeLine {
    /// Wraps an end that came from another process.
    fn from(socket: OwnedFd) -> Self {
        Self { socket: Arc::new(socket) }
    }
}

impl AsFd for WakeLine {
    /// Returns the descriptor, readable while a wake-up is pending and after a hang-up.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_wakes_the_other_and_wake_up_is_consumed_once() {
        let (one, other) = WakeLine::pair().unwrap();
        for (from, to) in [(&one, &other), (&other, &one)] {
            from.wake().unwrap();
            from.wake().unwrap();
            assert_eq!(to.wait(None), Ok(WakeEvent::Woken));
            assert_eq!(to.take(), WakeEvent::Empty);
            assert_eq!(to.wait(Some(Nanos::from_micros(1))), Ok(WakeEvent::Empty));
        }
    }

    #[test]
    fn end_that_never_reads_does_not_block_the_other() {
        let (one, other) = WakeLine::pair().unwrap();
        for _ in 0..100_000 {
            one.wake().unwrap();
        }
        // Clearing the non-blocking flag of the other end changes nothing here.
        rustix::io::ioctl_fionbio(other.as_fd(), false).unwrap();
        assert_eq!(one.take(), WakeEvent::Empty);
        one.wake().unwrap();
    }

    #[test]
    fn closed_end_is_a_hang_up_at_the_other() {
        let (one, other) = WakeLine::pair().unwrap();
        other.wake().unwrap();
        drop(other);
        assert_eq!(one.take(), WakeEvent::Woken);
        assert_eq!(one.wait(None), Ok(WakeEvent::HungUp));
        assert!(one.wake().is_err());
    }
}
