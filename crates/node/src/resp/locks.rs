//! Keys that a read-modify-write has read and not yet written.
//!
//! In: a key and the connection that works on it. Out: who waits for it, when it is free again. Only commands of this face
//! know these locks; against other faces a store's sequence condition decides. Invariant: a key has one owner at a time, and
//! whoever waited is told exactly once.

use super::limits::DATABASES;
use bytes::Bytes;
use headwater_converged::command::NamespaceId;
use std::collections::BTreeMap;

/// Place of a connection in the face's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ClientIndex(pub(crate) u16);

#[derive(Debug)]
struct Held {
    owner: ClientIndex,
    waiters: Vec<ClientIndex>,
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

    /// Takes a key, unless somebody has it.
    pub(crate) fn acquire(&mut self, namespace: NamespaceId, key: &Bytes, owner: ClientIndex) -> bool {
        let held = &mut self.held[namespace.index()];
        if held.contains_key(key) {
            return false;
        }
        held.insert(
            key.clone(),
            Held {
                owner,
                waiters: Vec::new(),
            },
        );
        self.count += 1;
        true
    }

    /// Who has a key.
    pub(crate) fn owner(&self, namespace: NamespaceId, key: &[u8]) -> Option<ClientIndex> {
        self.held[namespace.index()].get(key).map(|held| held.owner)
    }

    /// Asks to be told when a key is free.
    pub(crate) fn wait(&mut self, namespace: NamespaceId, key: &[u8], waiter: ClientIndex) {
        if let Some(held) = self.held[namespace.index()].get_mut(key)
            && held.waiters.last() != Some(&waiter)
        {
            held.waiters.push(waiter);
        }
    }

    /// Frees a key; those who waited, in the order they came.
    pub(crate) fn release(&mut self, namespace: NamespaceId, key: &[u8]) -> Vec<ClientIndex> {
        match self.held[namespace.index()].remove(key) {
            Some(held) => {
                self.count -= 1;
                held.waiters
            }
            None => Vec::new(),
        }
    }
}
