//! An eventfd by which one thread or process ends another's sleep.
//!
//! Input: wake-ups, from any thread. Output: the end of a wait. Invariant: a wake-up that comes before the wait ends it
//! too; several wake-ups count as one.

use crate::clock::Nanos;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The error that a system call on a wake descriptor failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("wake descriptor: {call} failed with {errno}; check the limit of open files (ulimit -n)")]
pub struct WakeError {
    /// The system call.
    pub call: &'static str,
    /// The kernel's error.
    pub errno: Errno,
}

/// The outcome of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    /// A wake-up was received; it is consumed.
    Signalled,
    /// The timeout expired, or a signal came.
    NotSignalled,
}

/// The eventfd of one sleeper. A clone is another handle to the same one.
#[derive(Clone, Debug)]
pub struct WakeDescriptor {
    descriptor: Arc<OwnedFd>,
}

impl WakeDescriptor {
    /// Creates an eventfd without a pending wake-up.
    ///
    /// # Errors
    /// [`WakeError`] when the process or the system has no descriptor left.
    pub fn new() -> Result<Self, WakeError> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| WakeError { call: "eventfd", errno })?;
        Ok(Self { descriptor: Arc::new(descriptor) })
    }

    /// Takes over an eventfd that came from another process.
    ///
    /// Both processes share one open file. It is made non-blocking here, but the other process could undo that and must
    /// be trusted not to (compare [`wake_line`](crate::wake_line)).
    ///
    /// # Errors
    /// [`WakeError`] for a descriptor that is no eventfd, or when the kernel refuses.
    pub fn adopt(descriptor: OwnedFd) -> Result<Self, WakeError> {
        let name = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        let kind =
            rustix::fs::readlink(name, Vec::new()).map_err(|errno| WakeError { call: "readlink", errno })?;
        if kind.as_bytes() != b"anon_inode:[eventfd]" {
            return Err(WakeError { call: "eventfd", errno: Errno::INVAL });
        }
        rustix::io::ioctl_fionbio(&descriptor, true).map_err(|errno| WakeError { call: "ioctl", errno })?;
        Ok(Self { descriptor: Arc::new(descriptor) })
    }

    /// Ends the sleeper's current or next wait.
    ///
    /// # Errors
    /// [`WakeError`] when the kernel refuses the write.
    pub fn wake(&self) -> Result<(), WakeError> {
        loop {
            // Any count but zero and all ones is a wake-up, in either byte order.
            match rustix::io::write(&*self.descriptor, &1_u64.to_le_bytes()) {
                // A full counter already holds a pending wake-up.
                Ok(_) | Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(WakeError { call: "write", errno }),
            }
        }
    }

    /// Consumes all pending wake-ups and returns whether there was one.
    ///
    /// # Errors
    /// [`WakeError`] when the kernel refuses the read.
    pub fn take(&self) -> Result<WaitOutcome, WakeError> {
        let mut counter = [0_u8; 8];
        loop {
            match rustix::io::read(&*self.descriptor, &mut counter) {
                Ok(_) => return Ok(WaitOutcome::Signalled),
                Err(Errno::AGAIN) => return Ok(WaitOutcome::NotSignalled),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(WakeError { call: "read", errno }),
            }
        }
    }

    /// Sleeps until a wake-up, at most for `longest`; without a limit if that is `None`.
    ///
    /// # Errors
    /// [`WakeError`] when the kernel refuses to wait.
    pub fn wait(&self, longest: Option<Nanos>) -> Result<WaitOutcome, WakeError> {
        let timeout = longest.map(Nanos::to_timespec);
        let mut descriptors = [PollFd::new(&*self.descriptor, PollFlags::IN)];
        match poll(&mut descriptors, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => self.take(),
            Err(errno) => Err(WakeError { call: "poll", errno }),
        }
    }
}

impl AsFd for WakeDescriptor {
    /// Returns the descriptor, readable while a wake-up is pending, for a loop that polls several descriptors.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wake_up_before_wait_is_kept_and_consumed_once() {
        let descriptor = WakeDescriptor::new().unwrap();
        let other = descriptor.clone();
        other.wake().unwrap();
        other.wake().unwrap();
        assert_eq!(descriptor.wait(None), Ok(WaitOutcome::Signalled));
        assert_eq!(descriptor.take(), Ok(WaitOutcome::NotSignalled));
        assert_eq!(descriptor.wait(Some(Nanos::from_micros(1))), Ok(WaitOutcome::NotSignalled));
    }

    #[test]
    fn adopted_eventfd_shares_wake_ups_and_other_files_are_refused() {
        let descriptor = WakeDescriptor::new().unwrap();
        let adopted = WakeDescriptor::adopt(descriptor.as_fd().try_clone_to_owned().unwrap()).unwrap();
        adopted.wake().unwrap();
        assert_eq!(descriptor.take(), Ok(WaitOutcome::Signalled));
        assert!(WakeDescriptor::adopt(tempfile::tempfile().unwrap().into()).is_err());
        let (reader, _writer) = std::io::pipe().unwrap();
        assert!(WakeDescriptor::adopt(reader.into()).is_err());
    }

    #[test]
    fn sleeper_on_another_thread_is_woken() {
        let descriptor = WakeDescriptor::new().unwrap();
        let sleeper = descriptor.clone();
        let thread = std::thread::spawn(move || sleeper.wait(None));
        descriptor.wake().unwrap();
        assert_eq!(thread.join().unwrap(), Ok(WaitOutcome::Signalled));
    }
}
