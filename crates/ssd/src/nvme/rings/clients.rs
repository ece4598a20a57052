//! The clients of a ring front end: their memory tables, and the owner of each queue.
//!
//! Input: additions and removals of clients and queues. Output: the memory table in which the addresses of a queue's
//! commands are resolved, and the wakeup of its client. Invariant: a queue belongs to one client for its whole life, so a
//! command can name only the memory of the client that sent it.

use super::rights::ClientRights;
use crate::nvme::request::AddressMode;
use headwater_dma::iova::ClientMemory;
use headwater_host::wake::{WakeDescriptor, WakeError};
use headwater_host::wake_line::WakeLine;
use headwater_host::width::narrow;
use headwater_nvme::controller::QueueId;
use std::collections::BTreeMap;
use std::fmt;

/// The number of a client of a ring front end; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(u64);

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {}", self.0)
    }
}

/// The means to wake a queue's client.
#[derive(Clone, Debug)]
pub enum ClientWakeup {
    /// A descriptor; only a client trusted not to tamper with it may share it.
    Descriptor(WakeDescriptor),
    /// This side's end of a wake line.
    Line(WakeLine),
}

impl ClientWakeup {
    pub(super) fn wake(&self) -> Result<(), WakeError> {
        match self {
            Self::Descriptor(descriptor) => descriptor.wake(),
            Self::Line(line) => line.wake(),
        }
    }
}

#[derive(Debug)]
struct RingQueueOwner {
    client: ClientId,
    wakeup: ClientWakeup,
}

/// One client of a ring front end.
#[derive(Debug)]
pub struct RingClient {
    /// Its memory table.
    pub memory: ClientMemory,
    /// Its access rights.
    pub rights: ClientRights,
    /// The kind of data pointers in its commands.
    pub address_mode: AddressMode,
}

/// The clients and the owners of queues.
#[derive(Debug, Default)]
pub(super) struct RingClients {
    clients: BTreeMap<ClientId, RingClient>,
    next: u64,
    /// Owner by queue number minus one.
    owners: Vec<Option<RingQueueOwner>>,
}

impl RingClients {
    pub(super) fn add(&mut self, rights: ClientRights) -> ClientId {
        let id = ClientId(self.next);
        self.next += 1;
        let addresses = AddressMode::default();
        self.clients.insert(id, RingClient { memory: ClientMemory::new(), rights, address_mode: addresses });
        id
    }

    /// Removes a client and its memory table; returns the queues that it still owns.
    pub(super) fn remove(&mut self, client: ClientId) -> Vec<QueueId> {
        self.clients.remove(&client);
        (1..)
            .map(QueueId)
            .zip(&self.owners)
            .filter(|(_, owner)| owner.as_ref().is_some_and(|owner| owner.client == client))
            .map(|(queue, _)| queue)
            .collect()
    }

    pub(super) fn get(&self, client: ClientId) -> Option<&RingClient> {
        self.clients.get(&client)
    }

    pub(super) fn get_mut(&mut self, client: ClientId) -> Option<&mut RingClient> {
        self.clients.get_mut(&client)
    }

    /// Returns the client that owns a queue; `None` once the client is removed.
    #[inline]
    pub(super) fn client_of_queue(&self, queue: QueueId) -> Option<&RingClient> {
        self.clients.get(&self.owner(queue)?.client)
    }

    #[inline]
    pub(super) fn wakeup_of(&self, queue: QueueId) -> Option<&ClientWakeup> {
        self.owner(queue).map(|owner| &owner.wakeup)
    }

    /// Returns the lowest free queue number; it exceeds the controller's limit if all are taken.
    pub(super) fn free_queue(&self) -> QueueId {
        let taken = self.owners.iter().take_while(|owner| owner.is_some()).count();
        QueueId(narrow(taken + 1))
    }

    pub(super) fn set_owner(&mut self, queue: QueueId, client: ClientId, wakeup: ClientWakeup) {
        let index = usize::from(queue.0).saturating_sub(1);
        if self.owners.len() <= index {
            self.owners.resize_with(index + 1, || None);
        }
        self.owners[index] = Some(RingQueueOwner { client, wakeup });
    }

    pub(super) fn clear_owner(&mut self, queue: QueueId) {
        if let Some(owner) = self.owners.get_mut(usize::from(queue.0).wrapping_sub(1)) {
            *owner = None;
        }
    }

    #[inline]
    fn owner(&self, queue: QueueId) -> Option<&RingQueueOwner> {
        self.owners.get(usize::from(queue.0).wrapping_sub(1))?.as_ref()
    }
}
