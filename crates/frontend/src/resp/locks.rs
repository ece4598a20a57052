//! Keys that a read-modify-write has read and not yet written.
//!
//! In: a key and the connection that works on it. Out: whose turn it is when the key is free again. Only commands of this face
//! know these locks; against other faces a store's sequence condition decides. Invariant: a key has one owner at a time, and
//! those who wait for it become its owner one by one, in the order they came, so that a busy key costs each of them one look. A
//! pipeline keeps its key for a bounded run, so that its replies leave together.

use super::limits::DATABASES;
use bytes::Bytes;
use headwater_ssd::command::NamespaceId;
use std::collections::{BTreeMap, VecDeque};

/// Edits of a key that one connection makes in a row while others wait for it.
const RUN_MAX: u32 = 31;

/// Place of a connection in the face's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClientIndex(pub(crate) u16);

/// Whether an owner works on the key or has only been told that it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    Working,
    Promised,
}

#[derive(Debug)]
struct Held {
    owner: ClientIndex,
    hold: Hold,
    /// How often in a row the owner has had it.
    run: u32,
    waiters: VecDeque<ClientIndex>,
}

/// What a connection finds that asks for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nobody has it.
    Free,
    /// The connection's own turn has come.
    Promised,
    /// The connection itself has it.
    Own,
    /// Another connection has it.
    Taken,
}

/// The locks of all namespaces.
#[derive(Debug, Default)]
pub(crate) struct KeyLocks {
    held: [BTreeMap<Bytes, Held>; DATABASES],
    count: usize,
}

impl KeyLocks {
    /// Whether no key is locked; asked before anything else because it almost always holds.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// What a connection would find.
    pub(crate) fn look(&self, namespace: NamespaceId, key: &[u8], who: ClientIndex) -> Found {
        match self.held[namespace.index()].get(key) {
            None => Found::Free,
            Some(held) if held.owner != who => Found::Taken,
            Some(held) if held.hold == Hold::Promised => Found::Promised,
            Some(_) => Found::Own,
        }
    }

    /// Takes a key that is free or promised.
    pub(crate) fn acquire(&mut self, namespace: NamespaceId, key: &Bytes, who: ClientIndex) -> bool {
        match self.look(namespace, key, who) {
            Found::Free => {
                let held = Held { owner: who, hold: Hold::Working, run: 0, waiters: VecDeque::new() };
                self.held[namespace.index()].insert(key.clone(), held);
                self.count += 1;
                true
            }
            Found::Promised => {
                if let Some(held) = self.held[namespace.index()].get_mut(key) {
                    held.hold = Hold::Working;
                }
                true
            }
            Found::Own | Found::Taken => false,
        }
    }

    /// Asks for a turn. A connection waits in one place at a time: for its next command.
    pub(crate) fn wait(&mut self, namespace: NamespaceId, key: &[u8], who: ClientIndex) {
        if let Some(held) = self.held[namespace.index()].get_mut(key)
            && !held.waiters.contains(&who)
        {
            held.waiters.push_back(who);
        }
    }

    /// Frees a key, or promises it to who has waited longest and must now be looked at.
    pub(crate) fn release(&mut self, namespace: NamespaceId, key: &[u8]) -> Option<ClientIndex> {
        let held = self.held[namespace.index()].get_mut(key)?;
        let own = held.waiters.iter().position(|waiter| *waiter == held.owner);
        let next = match own {
            Some(place) if held.run < RUN_MAX => held.waiters.remove(place),
            _ => held.waiters.pop_front(),
        };
        if let Some(next) = next {
            held.run = if next == held.owner { held.run + 1 } else { 0 };
            held.owner = next;
            held.hold = Hold::Promised;
            return Some(next);
        }
        self.held[namespace.index()].remove(key);
        self.count -= 1;
        None
    }

    /// A connection that waited for a key is gone; who must be looked at instead, if its turn had come.
    pub(crate) fn abandon(
        &mut self,
        namespace: NamespaceId,
        key: &[u8],
        who: ClientIndex,
    ) -> Option<ClientIndex> {
        if let Some(held) = self.held[namespace.index()].get_mut(key) {
            held.waiters.retain(|waiter| *waiter != who);
        }
        match self.look(namespace, key, who) {
            Found::Promised => self.release(namespace, key),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPACE: NamespaceId = NamespaceId(1);

    #[test]
    fn a_key_goes_from_hand_to_hand_in_the_order_of_waiting() {
        let key = Bytes::from_static(b"k");
        let who: Vec<ClientIndex> = (0..4).map(ClientIndex).collect();
        let mut locks = KeyLocks::default();
        assert!(locks.acquire(SPACE, &key, who[0]));
        for &waiter in &who[1..] {
            assert!(!locks.acquire(SPACE, &key, waiter));
            locks.wait(SPACE, &key, waiter);
        }
        assert_eq!(locks.release(SPACE, &key), Some(who[1]));
        assert!(!locks.acquire(SPACE, &key, who[2]), "the turn was another one's");
        assert!(locks.acquire(SPACE, &key, who[1]));
        // The next in line goes away before and after its turn comes.
        assert_eq!(locks.abandon(SPACE, &key, who[2]), None);
        assert_eq!(locks.release(SPACE, &key), Some(who[3]));
        assert_eq!(locks.abandon(SPACE, &key, who[3]), None);
        assert!(locks.is_empty());
    }
}
