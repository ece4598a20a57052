//! A set of descriptors that is readable while one of them is.
//!
//! Input: eventfds, and sets of them. Output: one descriptor; the end of a sleep. Invariant: the set is level-triggered: it
//! stays readable until the descriptors are not.

use headwater_host::clock::Nanos;
use headwater_host::wake::{WakeDescriptor, WakeError};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// An epoll descriptor.
#[derive(Debug)]
pub(crate) struct WakeSet {
    descriptor: OwnedFd,
}

impl WakeSet {
    /// Creates a set of descriptors, which stay open as long as it is used.
    pub(crate) fn of(members: &[BorrowedFd<'_>]) -> Result<Self, WakeError> {
        let descriptor = epoll::create(CreateFlags::CLOEXEC)
            .map_err(|errno| WakeError { call: "epoll_create1", errno })?;
        for member in members {
            epoll::add(&descriptor, member, EventData::new_u64(0), EventFlags::IN)
                .map_err(|errno| WakeError { call: "epoll_ctl", errno })?;
        }
        Ok(Self { descriptor })
    }

    /// Sleeps until the set or `own` is readable, at most for `longest`.
    pub(crate) fn sleep(&self, own: &WakeDescriptor, longest: Nanos) {
        let mut both = [PollFd::new(own, PollFlags::IN), PollFd::new(&self.descriptor, PollFlags::IN)];
        // An error is a signal, or a kernel without memory: the caller looks again.
        let _ = poll(&mut both, Some(&longest.to_timespec()));
    }
}

impl AsFd for WakeSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(set: &WakeSet) -> bool {
        poll(&mut [PollFd::new(set, PollFlags::IN)], Some(&Nanos::ZERO.to_timespec())).unwrap() == 1
    }

    #[test]
    fn set_of_a_set_is_readable_while_a_member_is() {
        let members = [WakeDescriptor::new().unwrap(), WakeDescriptor::new().unwrap()];
        let inner = WakeSet::of(&[members[0].as_fd(), members[1].as_fd()]).unwrap();
        let own = WakeDescriptor::new().unwrap();
        let outer = WakeSet::of(&[own.as_fd(), inner.as_fd()]).unwrap();
        assert!(!is_readable(&outer));
        for member in members.iter().chain([&own]) {
            member.wake().unwrap();
            assert!(is_readable(&outer) && is_readable(&outer));
            assert_eq!(is_readable(&inner), !std::ptr::eq(member, &raw const own));
            member.take().unwrap();
            assert!(!is_readable(&outer));
        }
    }

    #[test]
    fn sleep_is_ended_by_a_member_and_by_the_own_descriptor() {
        let (member, own) = (WakeDescriptor::new().unwrap(), WakeDescriptor::new().unwrap());
        let set = WakeSet::of(&[member.as_fd()]).unwrap();
        for wake in [&member, &own] {
            std::thread::scope(|scope| {
                scope.spawn(|| wake.wake().unwrap());
                // Without an end this would be for ever.
                set.sleep(&own, Nanos(u64::MAX));
            });
            wake.take().unwrap();
        }
        set.sleep(&own, Nanos(1));
    }
}
