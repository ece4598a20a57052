//! The descriptors that give the core loop work: those of the front ends, of the device, and of the stop signal.
//!
//! Input: descriptors, each registered once. Output: the front ends that have work, or the end of a sleep. Invariant: one
//! system call says which front ends have work, however many there are; after an error all of them have.

use rustix::event::Timespec;
use rustix::event::epoll;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The event data of the descriptors that belong to no front end.
const NO_FRONT_END: u64 = u64::MAX;
/// Events that one call returns at most; the next call returns the rest.
const EVENTS_MAX: usize = 16;

/// The front ends that have work, by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReadyFrontEnds(u64);

impl ReadyFrontEnds {
    /// No front end.
    pub(super) const NONE: Self = Self(0);
    /// Every front end.
    pub(super) const ALL: Self = Self(u64::MAX);

    /// Returns true if a front end has work. Those above 63 always have.
    pub(super) const fn contains(self, front_end: usize) -> bool {
        front_end >= 64 || self.0 & 1 << front_end != 0
    }
}

/// An epoll descriptor with everything that can give work.
#[derive(Debug)]
pub(super) struct WaitSet {
    epoll: OwnedFd,
}

impl WaitSet {
    /// Creates a set of the descriptors of the front ends, by index, of the device, and of the stop signal.
    pub(super) fn new<'d>(
        front_ends: impl Iterator<Item = BorrowedFd<'d>>,
        device: impl Iterator<Item = BorrowedFd<'d>>,
        stop: BorrowedFd<'_>,
    ) -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let add =
            |descriptor, data, flags| epoll::add(&epoll, descriptor, epoll::EventData::new_u64(data), flags);
        for (number, descriptor) in (0..).zip(front_ends) {
            add(descriptor, number, epoll::EventFlags::IN)?;
        }
        for device in device {
            add(device, NO_FRONT_END, epoll::EventFlags::IN)?;
        }
        // Edge-triggered: the byte is never read, and a draining loop must still be able to sleep.
        add(stop, NO_FRONT_END, epoll::EventFlags::IN | epoll::EventFlags::ET)?;
        Ok(Self { epoll })
    }

    /// Returns the front ends whose descriptor is readable now.
    pub(super) fn ready(&self) -> ReadyFrontEnds {
        self.wait(Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap_or(ReadyFrontEnds::ALL)
    }

    /// Waits until a descriptor is readable, or for a span. Returns the front ends with a readable descriptor.
    pub(super) fn wait(&self, span: Option<&Timespec>) -> Result<ReadyFrontEnds, Errno> {
        let nothing = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [nothing; EVENTS_MAX];
        match epoll::wait(self.epoll.as_fd(), &mut events, span) {
            // More may be ready than there is room for.
            Ok(EVENTS_MAX) => Ok(ReadyFrontEnds::ALL),
            Ok(count) => {
                let numbers = events[..count].iter().map(|event| event.data.u64());
                Ok(ReadyFrontEnds(
                    numbers.filter(|&number| number < 64).fold(0, |all, number| all | 1 << number),
                ))
            }
            Err(Errno::INTR) => Ok(ReadyFrontEnds::ALL),
            Err(errno) => Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    #[test]
    fn set_names_the_front_ends_that_have_work() {
        let pairs: Vec<_> = (0..3).map(|_| UnixStream::pair().unwrap()).collect();
        let (mut stop, stopped) = UnixStream::pair().unwrap();
        let descriptors = pairs[..2].iter().map(|(_, ours)| ours.as_fd());
        let set = WaitSet::new(descriptors, std::iter::once(pairs[2].1.as_fd()), stopped.as_fd()).unwrap();
        assert_eq!(set.ready(), ReadyFrontEnds::NONE);
        (&pairs[1].0).write_all(b"x").unwrap();
        (&pairs[2].0).write_all(b"x").unwrap();
        stop.write_all(b"x").unwrap();
        let ready = set.ready();
        assert!(!ready.contains(0) && ready.contains(1) && !ready.contains(2));
        assert_eq!(set.ready(), ready, "work that is not taken is named again");
    }
}
