//! A line between two processes that do not trust each other, by which each ends the other's sleep: a pair of sockets.
//!
//! In: wake-ups from either end. Out: the end of a wait at the other, and the news that the other end is gone. Invariant:
//! no call here ever waits for the other end, whatever it does with its half.
//!
//! Why no eventfd: its two users share one open file. Either of them can take the non-blocking flag off it and fill or
//! empty the counter, and the next write or read of the other one blocks for ever. Of a socket pair each end has a file of
//! its own, and each call says for itself that it does not wait.

use crate::clock::Nanos;
use crate::wake::WakeError;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// What came over a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// A wake-up; it is used up.
    Called,
    /// Nothing.
    Quiet,
    /// The other end is closed, or its process is gone.
    HungUp,
}

/// One end of a line. A clone is another handle to the same end.
#[derive(Clone, Debug)]
pub struct WakeLine {
    socket: Arc<OwnedFd>,
}

impl WakeLine {
    /// Both ends of a new line.
    ///
    /// # Errors
    /// [`WakeError`] when the process or the system has no descriptor left.
    pub fn pair() -> Result<(Self, Self), WakeError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(|errno| WakeError { call: "socketpair", errno })?;
        Ok((Self::from(one), Self::from(other)))
    }

    /// Ends the other side's wait, the present one or the next.
    ///
    /// # Errors
    /// [`WakeError`] when the other end is closed or the kernel refuses.
    pub fn wake(&self) -> Result<(), WakeError> {
        loop {
            match send(&*self.socket, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                // A line that is full holds wake-ups that nobody has taken yet.
                Ok(_) | Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(WakeError { call: "send", errno }),
            }
        }
    }

    /// Takes wake-ups that have come, as many as one call brings.
    #[must_use]
    pub fn take(&self) -> Line {
        let mut calls = [0; 64];
        loop {
            match recv(&*self.socket, &mut calls[..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Line::HungUp,
                Ok(_) => return Line::Called,
                Err(Errno::AGAIN) => return Line::Quiet,
                Err(Errno::INTR) => {}
                Err(_) => return Line::HungUp,
            }
        }
    }

    /// Sleeps until a wake-up or the end of the other side, at most for `longest`; without one for as long as it takes.
    ///
    /// # Errors
    /// [`WakeError`] when the kernel refuses to wait.
    pub fn wait(&self, longest: Option<Nanos>) -> Result<Line, WakeError> {
        let timeout = longest.map(Nanos::to_timespec);
        let mut descriptors = [PollFd::new(&*self.socket, PollFlags::IN)];
        match poll(&mut descriptors, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(self.take()),
            Err(errno) => Err(WakeError { call: "poll", errno }),
        }
    }
}

impl From<OwnedFd> for WakeLine {
    /// An end that another process handed over.
    fn from(socket: OwnedFd) -> Self {
        Self { socket: Arc::new(socket) }
    }
}

impl AsFd for WakeLine {
    /// Readable while a wake-up waits and when the other side is gone.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_wakes_the_other_and_a_wake_up_is_used_once() {
        let (one, other) = WakeLine::pair().unwrap();
        for (from, to) in [(&one, &other), (&other, &one)] {
            from.wake().unwrap();
            from.wake().unwrap();
            assert_eq!(to.wait(None), Ok(Line::Called));
            assert_eq!(to.take(), Line::Quiet);
            assert_eq!(to.wait(Some(Nanos::from_micros(1))), Ok(Line::Quiet));
        }
    }

    #[test]
    fn an_end_that_never_takes_makes_nobody_wait() {
        let (one, other) = WakeLine::pair().unwrap();
        for _ in 0..100_000 {
            one.wake().unwrap();
        }
        // What the other end does to its own file changes nothing here.
        rustix::io::ioctl_fionbio(other.as_fd(), false).unwrap();
        assert_eq!(one.take(), Line::Quiet);
        one.wake().unwrap();
    }

    #[test]
    fn a_closed_end_is_news_at_the_other() {
        let (one, other) = WakeLine::pair().unwrap();
        other.wake().unwrap();
        drop(other);
        assert_eq!(one.take(), Line::Called);
        assert_eq!(one.wait(None), Ok(Line::HungUp));
        assert!(one.wake().is_err());
    }
}
