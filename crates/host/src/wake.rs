//! A descriptor that one thread or process writes to end another's sleep: an eventfd.
//!
//! In: wake-ups, from anywhere. Out: the end of a wait. Invariant: a wake-up that comes before the wait ends it too;
//! several are one.

use crate::clock::Nanos;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The kernel refused a descriptor or a call on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("wake descriptor: {call} failed with {errno}; check the limit of open files (ulimit -n)")]
pub struct WakeError {
    /// The system call.
    pub call: &'static str,
    /// The kernel's answer.
    pub errno: Errno,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// Somebody wrote the descriptor; the wake-up is used up.
    Called,
    /// The time was over, or a signal came.
    Unbidden,
}

/// One sleeper's bell. A clone is another handle to the same one.
#[derive(Clone, Debug)]
pub struct WakeDescriptor {
    descriptor: Arc<OwnedFd>,
}

impl WakeDescriptor {
    /// A new bell that nobody has rung.
    ///
    /// # Errors
    /// [`WakeError`] when the process or the system has no descriptor left.
    pub fn new() -> Result<Self, WakeError> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| WakeError { call: "eventfd", errno })?;
        Ok(Self { descriptor: Arc::new(descriptor) })
    }

    /// The bell of somebody else: an eventfd that came from another process.
    ///
    /// Both processes share one open file. It is made non-blocking here, but its owner could undo that; whoever hands us
    /// a bell must be trusted not to (compare [`wake_line`](crate::wake_line)).
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

    /// Ends the sleeper's wait, the present one or the next.
    ///
    /// # Errors
    /// [`WakeError`] when the kernel refuses the write.
    pub fn wake(&self) -> Result<(), WakeError> {
        loop {
            // Any number but zero and all ones counts as a wake-up, in either byte order.
            match rustix::io::write(&*self.descriptor, &1_u64.to_le_bytes()) {
                // A counter that is full is a wake-up that nobody has taken yet.
                Ok(_) | Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(WakeError { call: "write", errno }),
            }
        }
    }

    /// Takes all wake-ups so far; says whether there was one.
    ///
    /// # Errors
    /// [`WakeError`] when the kernel refuses the read.
    pub fn take(&self) -> Result<Woken, WakeError> {
        let mut counter = [0_u8; 8];
        loop {
            match rustix::io::read(&*self.descriptor, &mut counter) {
                Ok(_) => return Ok(Woken::Called),
                Err(Errno::AGAIN) => return Ok(Woken::Unbidden),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(WakeError { call: "read", errno }),
            }
        }
    }

    /// Sleeps until a wake-up, at most for `longest`; without one for as long as it takes.
    ///
    /// # Errors
    /// [`WakeError`] when the kernel refuses to wait.
    pub fn wait(&self, longest: Option<Nanos>) -> Result<Woken, WakeError> {
        let timeout = longest.map(Nanos::to_timespec);
        let mut descriptors = [PollFd::new(&*self.descriptor, PollFlags::IN)];
        match poll(&mut descriptors, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => self.take(),
            Err(errno) => Err(WakeError { call: "poll", errno }),
        }
    }
}

impl AsFd for WakeDescriptor {
    /// Readable while a wake-up waits, for a loop that sleeps on several descriptors.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_up_before_the_wait_is_kept_and_used_once() {
        let bell = WakeDescriptor::new().unwrap();
        let other = bell.clone();
        other.wake().unwrap();
        other.wake().unwrap();
        assert_eq!(bell.wait(None), Ok(Woken::Called));
        assert_eq!(bell.take(), Ok(Woken::Unbidden));
        assert_eq!(bell.wait(Some(Nanos::from_micros(1))), Ok(Woken::Unbidden));
    }

    #[test]
    fn an_adopted_bell_is_the_same_bell_and_other_files_are_none() {
        let bell = WakeDescriptor::new().unwrap();
        let adopted = WakeDescriptor::adopt(bell.as_fd().try_clone_to_owned().unwrap()).unwrap();
        adopted.wake().unwrap();
        assert_eq!(bell.take(), Ok(Woken::Called));
        assert!(WakeDescriptor::adopt(tempfile::tempfile().unwrap().into()).is_err());
        let (reader, _writer) = std::io::pipe().unwrap();
        assert!(WakeDescriptor::adopt(reader.into()).is_err());
    }

    #[test]
    fn a_sleeper_on_another_thread_is_woken() {
        let bell = WakeDescriptor::new().unwrap();
        let sleeper = bell.clone();
        let thread = std::thread::spawn(move || sleeper.wait(None));
        bell.wake().unwrap();
        assert_eq!(thread.join().unwrap(), Ok(Woken::Called));
    }
}
