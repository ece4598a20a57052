//! Locks of keys that a read-modify-write has read and not yet written.
//!
//! Input: a key and the connection that edits it. Output: the connection that owns the key next. Only commands of this
//! front end use these locks; a store's sequence condition detects writes of other front ends. Invariant: a key has one
//! owner at a time, and waiters become its owner one by one, in order of arrival, so that a contended key wakes each
//! waiter once. A pipeline keeps its key for a bounded number of edits in a row, so that its replies are sent together.

use super::limits::DATABASES;
use bytes::Bytes;
use headwater_ssd::command::NamespaceId;
use std::collections::{BTreeMap, VecDeque};

/// The maximum number of times in a row that a key passes back to its owner while other connections wait for it.
const OWNER_RUN_MAX: u32 = 31;

/// The index of a connection in the front end's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClientIndex(pub(crate) u16);

/// The state of an owner's lock: in use, or promised to a waiter that has not run since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LockState {
    Working,
    Promised,
}

#[derive(Debug)]
struct KeyLock {
    owner: ClientIndex,
    hold: LockState,
    /// Number of times in a row that the key passed back to the same owner.
    run: u32,
    waiters: VecDeque<ClientIndex>,
}

/// The state of a key's lock, as one connection sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockView {
    /// The key is not locked.
    Free,
    /// The key is promised to this connection.
    Promised,
    /// This connection has locked the key.
    Own,
    /// Another connection owns the key.
    Taken,
}

/// The kind of access of a single device command to its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyAccess {
    /// Reads the key.
    Read,
    /// Changes the key.
    Write,
}

/// The key locks of all namespaces.
#[derive(Debug, Default)]
pub(crate) struct KeyLocks {
    held: [BTreeMap<Bytes, KeyLock>; DATABASES],
    count: usize,
}

impl KeyLocks {
    /// Returns true if no key is locked; the fast check of the common case.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the state of a key's lock for a connection.
    pub(crate) fn view(&self, namespace: NamespaceId, key: &[u8], client: ClientIndex) -> LockView {
        match self.held[namespace.index()].get(key) {
            None => LockView::Free,
            Some(held) if held.owner != client => LockView::Taken,
            Some(held) if held.hold == LockState::Promised => LockView::Promised,
            Some(_) => LockView::Own,
        }
    }

    /// Locks a key that is free or promised to the connection. Returns false for any other key.
    pub(crate) fn acquire(&mut self, namespace: NamespaceId, key: &Bytes, client: ClientIndex) -> bool {
        match self.view(namespace, key, client) {
            LockView::Free => {
                let held =
                    KeyLock { owner: client, hold: LockState::Working, run: 0, waiters: VecDeque::new() };
                self.held[namespace.index()].insert(key.clone(), held);
                self.count += 1;
                true
            }
            LockView::Promised => {
                if let Some(held) = self.held[namespace.index()].get_mut(key) {
                    held.hold = LockState::Working;
                }
                true
            }
            LockView::Own | LockView::Taken => false,
        }
    }

    /// Appends a connection to the key's waiters. A connection waits for at most one key: that of its next command.
    pub(crate) fn add_waiter(&mut self, namespace: NamespaceId, key: &[u8], client: ClientIndex) {
        if let Some(held) = self.held[namespace.index()].get_mut(key)
            && !held.waiters.contains(&client)
        {
            held.waiters.push_back(client);
        }
    }

    /// Unlocks a key, or promises it to the next waiter. Returns that waiter, which the caller must run.
    pub(crate) fn release(&mut self, namespace: NamespaceId, key: &[u8]) -> Option<ClientIndex> {
        let Some(held) = self.held[namespace.index()].get_mut(key) else {
            unreachable!("a key of {namespace:?} is unlocked and was not locked");
        };
        let own = held.waiters.iter().position(|waiter| *waiter == held.owner);
        let next = match own {
            Some(at) if held.run < OWNER_RUN_MAX => held.waiters.remove(at),
            _ => held.waiters.pop_front(),
        };
        if let Some(next) = next {
            held.run = if next == held.owner { held.run + 1 } else { 0 };
            held.owner = next;
            held.hold = LockState::Promised;
            return Some(next);
        }
        self.held[namespace.index()].remove(key);
        self.count -= 1;
        None
    }

    /// Removes a connection from the key's waiters. If the key was promised to it, returns the next waiter, which the
    /// caller must run.
    pub(crate) fn remove_waiter(
        &mut self,
        namespace: NamespaceId,
        key: &[u8],
        client: ClientIndex,
    ) -> Option<ClientIndex> {
        if let Some(held) = self.held[namespace.index()].get_mut(key) {
            held.waiters.retain(|waiter| *waiter != client);
        }
        match self.view(namespace, key, client) {
            LockView::Promised => self.release(namespace, key),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPACE: NamespaceId = NamespaceId(1);

    #[test]
    fn a_released_key_passes_to_its_waiters_in_order_of_arrival() {
        let key = Bytes::from_static(b"k");
        let clients: Vec<ClientIndex> = (0..4).map(ClientIndex).collect();
        let mut locks = KeyLocks::default();
        assert!(locks.acquire(SPACE, &key, clients[0]));
        for &waiter in &clients[1..] {
            assert!(!locks.acquire(SPACE, &key, waiter));
            locks.add_waiter(SPACE, &key, waiter);
        }
        assert_eq!(locks.release(SPACE, &key), Some(clients[1]));
        assert!(!locks.acquire(SPACE, &key, clients[2]), "acquired a key promised to another client");
        assert!(locks.acquire(SPACE, &key, clients[1]));
        // One waiter disconnects before the key is promised to it, another one after.
        assert_eq!(locks.remove_waiter(SPACE, &key, clients[2]), None);
        assert_eq!(locks.release(SPACE, &key), Some(clients[3]));
        assert_eq!(locks.remove_waiter(SPACE, &key, clients[3]), None);
        assert!(locks.is_empty());
    }
}
