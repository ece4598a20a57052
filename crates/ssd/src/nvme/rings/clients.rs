//! Who the clients are: their memory tables, and which queue is whose.
//!
//! In: clients and queues as they come and go. Out: the table that the addresses of a queue's commands are looked up in,
//! and the bell of its client. Invariant: a queue belongs to one client for its whole life, so a command can only ever
//! name the memory of the client that sent it.

use super::rights::Rights;
use crate::nvme::request::AddressMode;
use headwater_dma::iova::ClientMemory;
use headwater_host::wake::{WakeDescriptor, WakeError};
use headwater_host::wake_line::WakeLine;
use headwater_nvme::controller::QueueId;
use std::collections::BTreeMap;
use std::fmt;

/// Names a client of a ring face; never given out twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(u64);

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {}", self.0)
    }
}

/// How a queue's client is woken.
#[derive(Clone, Debug)]
pub enum Bell {
    /// By a descriptor, which only a client that is trusted to leave it as it is may share.
    Descriptor(WakeDescriptor),
    /// By this side's end of a line.
    Line(WakeLine),
}

impl Bell {
    pub(super) fn wake(&self) -> Result<(), WakeError> {
        match self {
            Self::Descriptor(descriptor) => descriptor.wake(),
            Self::Line(line) => line.wake(),
        }
    }
}

#[derive(Debug)]
struct Owner {
    client: ClientId,
    bell: Bell,
}

/// One client, as what carries out its commands sees it.
#[derive(Debug)]
pub struct Client {
    /// Its memory table.
    pub memory: ClientMemory,
    /// What it may do.
    pub rights: Rights,
    /// What the data pointers of its commands are.
    pub addresses: AddressMode,
}

/// Clients and the owners of queues.
#[derive(Debug, Default)]
pub(super) struct Clients {
    clients: BTreeMap<ClientId, Client>,
    next: u64,
    /// By queue number less one.
    owners: Vec<Option<Owner>>,
}

impl Clients {
    pub(super) fn add(&mut self, rights: Rights) -> ClientId {
        let id = ClientId(self.next);
        self.next += 1;
        let addresses = AddressMode::default();
        self.clients.insert(id, Client { memory: ClientMemory::new(), rights, addresses });
        id
    }

    /// Forgets a client's memory table; returns the queues it still has.
    pub(super) fn remove(&mut self, client: ClientId) -> Vec<QueueId> {
        self.clients.remove(&client);
        (1..)
            .map(QueueId)
            .zip(&self.owners)
            .filter(|(_, owner)| owner.as_ref().is_some_and(|owner| owner.client == client))
            .map(|(queue, _)| queue)
            .collect()
    }

    pub(super) fn get(&self, client: ClientId) -> Option<&Client> {
        self.clients.get(&client)
    }

    pub(super) fn get_mut(&mut self, client: ClientId) -> Option<&mut Client> {
        self.clients.get_mut(&client)
    }

    /// Whose queue it is, while the client is there.
    #[inline]
    pub(super) fn of_queue(&self, queue: QueueId) -> Option<&Client> {
        self.clients.get(&self.owner(queue)?.client)
    }

    #[inline]
    pub(super) fn bell(&self, queue: QueueId) -> Option<&Bell> {
        self.owner(queue).map(|owner| &owner.bell)
    }

    /// The lowest number that no queue has; above the controller's limit when all are taken.
    pub(super) fn free_queue(&self) -> QueueId {
        let taken = self.owners.iter().take_while(|owner| owner.is_some()).count();
        QueueId(u16::try_from(taken + 1).unwrap_or(u16::MAX))
    }

    pub(super) fn own(&mut self, queue: QueueId, client: ClientId, bell: Bell) {
        let place = usize::from(queue.0).saturating_sub(1);
        if self.owners.len() <= place {
            self.owners.resize_with(place + 1, || None);
        }
        self.owners[place] = Some(Owner { client, bell });
    }

    pub(super) fn disown(&mut self, queue: QueueId) {
        if let Some(owner) = self.owners.get_mut(usize::from(queue.0).wrapping_sub(1)) {
            *owner = None;
        }
    }

    #[inline]
    fn owner(&self, queue: QueueId) -> Option<&Owner> {
        self.owners.get(usize::from(queue.0).wrapping_sub(1))?.as_ref()
    }
}
