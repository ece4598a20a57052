//! The table of connections.
//!
//! Input: sockets. Output: an identifier for each: its slot in the low 16 bits, a serial number, never reused, above.

use super::connection::NvmeTcpConnection;
use super::limits::CONNECTIONS_MAX;
use headwater_host::clock::Nanos;
use headwater_host::width::{narrow, to_usize};
use headwater_nvme::fabrics::ConnectionId;
use headwater_nvme::tcp::secure::SecureStream;
use std::os::fd::OwnedFd;

/// Bits of a slot in an identifier.
const SLOT_BITS: u32 = 16;
const SLOT_MASK: u64 = (1 << SLOT_BITS) - 1;
const _: () = assert!(CONNECTIONS_MAX as u64 <= SLOT_MASK);

/// All connections, by slot. A connection is taken out of its slot while it is worked on.
#[derive(Debug, Default)]
pub(super) struct ConnectionTable {
    slots: Vec<Option<Box<NvmeTcpConnection>>>,
    free: Vec<u16>,
    serial: u64,
    open: usize,
}

impl ConnectionTable {
    pub(super) fn len(&self) -> usize {
        self.open
    }

    /// Returns the identifier for the next [`insert`](Self::insert), or `None` at the limit.
    pub(super) fn next_id(&mut self) -> Option<ConnectionId> {
        let place = match self.free.last() {
            Some(&place) => place,
            None if self.slots.len() < CONNECTIONS_MAX => {
                let place = u16::try_from(self.slots.len()).ok()?;
                self.slots.push(None);
                self.free.push(place);
                place
            }
            None => return None,
        };
        Some(ConnectionId((self.serial + 1) << SLOT_BITS | u64::from(place)))
    }

    pub(super) fn insert(
        &mut self,
        id: ConnectionId,
        socket: OwnedFd,
        secure: Option<Box<SecureStream>>,
        now: Nanos,
    ) {
        let slot = self.free.pop();
        assert!(
            slot.is_some_and(|slot| usize::from(slot) == slot_of(id)),
            "{id:?} is not the next identifier"
        );
        self.serial += 1;
        self.open += 1;
        self.put_back(Box::new(NvmeTcpConnection::new(id, socket, secure, now)));
    }

    #[inline]
    pub(super) fn take_out(&mut self, id: ConnectionId) -> Option<Box<NvmeTcpConnection>> {
        let place = self.slots.get_mut(slot_of(id))?;
        if place.as_ref()?.id != id {
            return None;
        }
        place.take()
    }

    #[inline]
    pub(super) fn put_back(&mut self, connection: Box<NvmeTcpConnection>) {
        let place = slot_of(connection.id);
        let other = self.slots[place].replace(connection);
        assert!(other.is_none(), "two connections share slot {place}");
    }

    /// Removes a connection that was taken out; its socket is closed.
    pub(super) fn remove(&mut self, connection: Box<NvmeTcpConnection>) {
        assert!(
            self.slots[slot_of(connection.id)].is_none(),
            "{:?} is removed and in the table",
            connection.id
        );
        self.open -= 1;
        self.free.push(narrow(connection.id.0 & SLOT_MASK));
        drop(connection);
    }

    /// Returns all connections that are not taken out.
    pub(super) fn iter(&self) -> impl Iterator<Item = &NvmeTcpConnection> {
        self.slots.iter().flatten().map(AsRef::as_ref)
    }
}

fn slot_of(id: ConnectionId) -> usize {
    to_usize(id.0 & SLOT_MASK)
}
