//! Interrupt vectors: the eventfds that a hypervisor waits for.
//!
//! Input: descriptors, by vector; vectors to signal. Output: signals to the descriptors. Invariant: a vector without a
//! descriptor is never signalled, and no signal blocks, whatever the hypervisor does with its descriptor.

use super::layout::VECTORS;
use headwater_host::client_eventfd::ClientEventfd;
use headwater_host::width::narrow;
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// All vectors of the function.
#[derive(Debug, Default)]
pub struct GuestVectors {
    eventfds: Vec<Option<ClientEventfd>>,
    failed: u64,
}

impl GuestVectors {
    /// Assigns `count` vectors from `start` on; without descriptors they are disabled.
    ///
    /// # Errors
    /// [`Errno::INVAL`] for vectors that do not exist, a different number of descriptors, or a descriptor that is no
    /// eventfd. Nothing changes.
    pub fn assign(&mut self, start: u32, count: u32, descriptors: Vec<OwnedFd>) -> Result<(), Errno> {
        let range = range(start, count)?;
        if !descriptors.is_empty() && descriptors.len() != range.len() {
            return Err(Errno::INVAL);
        }
        let eventfds: Result<Vec<ClientEventfd>, Errno> = descriptors
            .into_iter()
            .map(|descriptor| ClientEventfd::adopt(descriptor).map_err(|_| Errno::INVAL))
            .collect();
        let mut eventfds = eventfds?.into_iter();
        self.eventfds.resize_with(usize::from(VECTORS), || None);
        for eventfd in &mut self.eventfds[range] {
            *eventfd = eventfds.next();
        }
        Ok(())
    }

    /// Disables every vector.
    pub fn disable(&mut self) {
        self.eventfds.clear();
    }

    /// Signals `count` vectors from `start` on.
    ///
    /// # Errors
    /// [`Errno::INVAL`] for vectors that do not exist.
    pub fn trigger(&mut self, start: u32, count: u32) -> Result<(), Errno> {
        for vector in range(start, count)? {
            self.signal(narrow(vector));
        }
        Ok(())
    }

    /// Signals one vector; has no effect if it is disabled or does not exist.
    pub fn signal(&mut self, vector: u16) {
        if let Some(Some(eventfd)) = self.eventfds.get(usize::from(vector))
            && eventfd.signal().is_err()
        {
            self.failed += 1;
        }
    }

    /// Returns the number of signals that the kernel refused.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.failed
    }
}

fn range(start: u32, count: u32) -> Result<std::ops::Range<usize>, Errno> {
    let end = start.checked_add(count).filter(|&end| end <= u32::from(VECTORS)).ok_or(Errno::INVAL)?;
    let (start, end) = (usize::try_from(start), usize::try_from(end));
    Ok(start.map_err(|_| Errno::INVAL)?..end.map_err(|_| Errno::INVAL)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_host::wake::{WaitOutcome, WakeDescriptor};
    use std::os::fd::AsFd as _;

    fn eventfd() -> (WakeDescriptor, OwnedFd) {
        let eventfd = WakeDescriptor::new().unwrap();
        let theirs = eventfd.as_fd().try_clone_to_owned().unwrap();
        (eventfd, theirs)
    }

    #[test]
    fn a_vector_signals_its_own_descriptor_until_it_is_disabled() {
        let mut vectors = GuestVectors::default();
        let (first, first_sent) = eventfd();
        let (second, second_sent) = eventfd();
        vectors.assign(3, 2, vec![first_sent, second_sent]).unwrap();
        vectors.signal(4);
        vectors.signal(5);
        vectors.signal(u16::MAX);
        assert_eq!(first.take(), Ok(WaitOutcome::NotSignalled));
        assert_eq!(second.take(), Ok(WaitOutcome::Signalled));
        vectors.assign(4, 1, Vec::new()).unwrap();
        vectors.trigger(3, 2).unwrap();
        assert_eq!(first.take(), Ok(WaitOutcome::Signalled));
        assert_eq!(second.take(), Ok(WaitOutcome::NotSignalled));
        vectors.disable();
        vectors.signal(3);
        assert_eq!(first.take(), Ok(WaitOutcome::NotSignalled));
    }

    #[test]
    fn invalid_assignments_change_nothing() {
        let mut vectors = GuestVectors::default();
        let (ours, sent) = eventfd();
        vectors.assign(0, 1, vec![sent]).unwrap();
        let file: OwnedFd = tempfile::tempfile().unwrap().into();
        assert_eq!(vectors.assign(0, 1, vec![file]), Err(Errno::INVAL));
        assert_eq!(vectors.assign(0, 2, vec![eventfd().1]), Err(Errno::INVAL));
        assert_eq!(vectors.assign(u32::from(VECTORS), 1, Vec::new()), Err(Errno::INVAL));
        assert_eq!(vectors.assign(1, u32::MAX, Vec::new()), Err(Errno::INVAL));
        vectors.signal(0);
        assert_eq!(ours.take(), Ok(WaitOutcome::Signalled));
    }
}
