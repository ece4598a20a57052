//! The table of connections.
//!
//! Input: connections. Output: a slot for each, its [`ClientIndex`]. A connection is taken out of its slot while it
//! runs, so that its commands can read the table of the other connections.

use super::connection::RespConnection;
use super::limits::CLIENTS_CEILING;
use super::locks::ClientIndex;
use std::ops::Range;

/// The table of all connections, by [`ClientIndex`].
#[derive(Debug, Default)]
pub(crate) struct ClientTable {
    slots: Vec<Option<Box<RespConnection>>>,
    free: Vec<u16>,
    open: usize,
}

impl ClientTable {
    /// Returns the number of slots in use, including connections that are closing.
    pub(crate) fn len(&self) -> usize {
        self.open
    }

    /// Reserves a free slot; `None` if the table has [`CLIENTS_CEILING`] slots and all are in use.
    pub(crate) fn reserve(&mut self) -> Option<ClientIndex> {
        if let Some(slot) = self.free.pop() {
            return Some(ClientIndex(slot));
        }
        let slot = u16::try_from(self.slots.len()).ok()?;
        if usize::from(slot) >= CLIENTS_CEILING {
            return None;
        }
        self.slots.push(None);
        Some(ClientIndex(slot))
    }

    /// Returns a reserved slot that was never filled.
    pub(crate) fn cancel_reservation(&mut self, index: ClientIndex) {
        self.free.push(index.0);
    }

    /// Stores a new connection in its reserved slot.
    pub(crate) fn insert(&mut self, connection: Box<RespConnection>) {
        self.open += 1;
        self.put_back(connection);
    }

    /// Takes a connection out of its slot to run it.
    #[inline]
    pub(crate) fn take(&mut self, index: ClientIndex) -> Option<Box<RespConnection>> {
        self.slots.get_mut(usize::from(index.0))?.take()
    }

    /// Puts a connection back into its slot.
    #[inline]
    pub(crate) fn put_back(&mut self, connection: Box<RespConnection>) {
        let slot = usize::from(connection.index.0);
        let other = self.slots[slot].replace(connection);
        assert!(other.is_none(), "two connections share slot {slot}");
    }

    /// Frees the slot of a connection that was taken out.
    pub(crate) fn release_slot(&mut self, index: ClientIndex) {
        assert!(self.slots[usize::from(index.0)].is_none(), "{index:?} is released and in the table");
        self.open -= 1;
        self.free.push(index.0);
    }

    /// Returns a connection in its slot; `None` if the slot is free or the connection is taken out.
    #[inline]
    pub(crate) fn get_mut(&mut self, index: ClientIndex) -> Option<&mut RespConnection> {
        self.slots.get_mut(usize::from(index.0))?.as_deref_mut()
    }

    /// Returns the number of slots, in use or not.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Iterates over the connections in these slots that are not taken out.
    pub(crate) fn part(&self, slots: Range<usize>) -> impl Iterator<Item = &RespConnection> {
        let slots = self.slots.get(slots.start..slots.end.min(self.slots.len())).unwrap_or_default();
        slots.iter().flatten().map(AsRef::as_ref)
    }

    /// Iterates over the connections that are not taken out.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &RespConnection> {
        self.slots.iter().flatten().map(AsRef::as_ref)
    }

    /// Iterates over the connections that are not taken out.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut RespConnection> {
        self.slots.iter_mut().flatten().map(AsMut::as_mut)
    }
}
