//! The memory that clients make the front end hold, and its limit.
//!
//! Input: the bytes that each client holds: received and not parsed, in commands that are not answered, and in replies
//! that are not sent. Output: the verdict on more. Invariant: a client within its own allowance is never refused for
//! what other clients hold, so one client cannot take the memory of all.

use super::limits::CLIENT_ALLOWANCE_BYTES;

/// The account of all clients of a front end.
#[derive(Debug)]
pub(crate) struct ClientMemory {
    held: usize,
    max: usize,
}

impl ClientMemory {
    /// Creates an account with a limit in bytes.
    pub(crate) fn new(max: usize) -> Self {
        Self { held: 0, max }
    }

    /// Replaces the bytes that one client held at its last account.
    ///
    /// # Panics
    /// The client held more than all clients together.
    pub(crate) fn account(&mut self, before: &mut usize, now: usize) {
        let rest = self.held.checked_sub(*before).expect("a client held more than all clients together");
        self.held = rest + now;
        *before = now;
    }

    /// Returns the bytes that all clients hold.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Returns true if a client that holds `own` bytes may hold this many more.
    #[inline]
    pub(crate) fn admits(&self, own: usize, more: usize) -> bool {
        own + more <= CLIENT_ALLOWANCE_BYTES || self.held + more <= self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_within_its_allowance_is_admitted_whatever_other_clients_hold() {
        let mut memory = ClientMemory::new(4 * CLIENT_ALLOWANCE_BYTES);
        let (mut hog, mut modest) = (0, 0);
        assert!(memory.admits(hog, 4 * CLIENT_ALLOWANCE_BYTES));
        memory.account(&mut hog, 4 * CLIENT_ALLOWANCE_BYTES);
        assert!(!memory.admits(hog, 1));
        assert!(memory.admits(modest, CLIENT_ALLOWANCE_BYTES));
        memory.account(&mut modest, CLIENT_ALLOWANCE_BYTES);
        assert!(!memory.admits(modest, 1));
        memory.account(&mut hog, 0);
        assert!(memory.admits(modest, 1));
        assert_eq!((hog, modest, memory.held), (0, CLIENT_ALLOWANCE_BYTES, CLIENT_ALLOWANCE_BYTES));
    }
}
