//! Queues of clients, whatever carries out what is in them.
//!
//! In: clients with their memory tables and rights, and rings that they write, true or not. Out: entries by turns, each with
//! whom it is from, and for each answer a completion in the ring that it came from. Invariant: a queue leaves only when
//! each of its entries is answered or its client is gone; a client that sleeps is woken for what was posted.
//!
//! ```text
//!   add_queue -> serving --delete_queue--> answers what was rung for --finish--> gone
//!                   +------abandon_queue, remove_client--> answers nobody ----------^
//! ```
//!
//! # What this does not do
//! It looks into no entry and moves no data: [`RingFace`](super::RingFace) does for the device of this crate.

use super::clients::{Bell, Client, ClientId, Clients};
use super::rights::Rights;
use super::{ClientQueue, RingError, RingStats};
use crate::nvme::request::AddressMode;
use headwater_dma::iova::ClientMemory;
use headwater_host::ring_memory::{RingMemory, SharedWords};
use headwater_host::wake::{WakeDescriptor, WakeError};
use headwater_nvme::controller::{
    Arbiter, ArbiterError, CommandToken, Fetched, IoQueue, QueueId, QueueKind, QueueState,
};
use headwater_nvme::queue_pair::{DeviceEnd, QueuePair, Sleep};
use headwater_nvme::ring::Wake;
use headwater_nvme::spec::status::Status;
use std::num::NonZeroU16;

/// Commands taken from one queue before the next queue has its turn.
const BURST: NonZeroU16 = NonZeroU16::new(32).expect("32 is not zero");

/// Clients and their queues, all in one kind of ring memory.
#[derive(Debug)]
pub struct ClientRings<W: RingMemory = SharedWords> {
    arbiter: Arbiter<W>,
    clients: Clients,
    leaving: Vec<QueueId>,
    bell: WakeDescriptor,
    armed: bool,
    draining: bool,
    /// Entries fetched and not answered.
    in_flight: usize,
    stats: RingStats,
}

impl<W: RingMemory> ClientRings<W> {
    /// No clients yet.
    ///
    /// # Errors
    /// [`WakeError`] when the system has no descriptor left.
    pub fn new() -> Result<Self, WakeError> {
        Ok(Self {
            arbiter: Arbiter::new(BURST),
            clients: Clients::default(),
            leaving: Vec::new(),
            bell: WakeDescriptor::new()?,
            armed: false,
            draining: false,
            in_flight: 0,
            stats: RingStats::default(),
        })
    }

    /// A client with no memory and no queues, which may do everything.
    pub fn add_client(&mut self) -> ClientId {
        self.clients.add(Rights::all())
    }

    /// A client with no memory and no queues, and these rights.
    pub fn add_client_with(&mut self, rights: Rights) -> ClientId {
        self.clients.add(rights)
    }

    /// Changes what a client may do, from its next command on. Commands under way are finished.
    ///
    /// # Errors
    /// [`RingError::NoClient`].
    pub fn set_rights(&mut self, client: ClientId, rights: Rights) -> Result<(), RingError> {
        self.clients.get_mut(client).ok_or(RingError::NoClient(client))?.rights = rights;
        Ok(())
    }

    /// Says what the data pointers of a client's commands are, from its next command on. Flat addresses unless said.
    ///
    /// # Errors
    /// [`RingError::NoClient`].
    pub fn set_addresses(&mut self, client: ClientId, mode: AddressMode) -> Result<(), RingError> {
        self.clients.get_mut(client).ok_or(RingError::NoClient(client))?.addresses = mode;
        Ok(())
    }

    /// The memory table of a client, to register and revoke regions.
    pub fn memory(&mut self, client: ClientId) -> Option<&mut ClientMemory> {
        self.clients.get_mut(client).map(|client| &mut client.memory)
    }

    /// Adds the device's half of a queue pair, whose other half is the client's already.
    ///
    /// # Errors
    /// [`RingError`] for a client that is not there, rings that are drained, or a controller without room.
    pub fn add_queue(
        &mut self,
        client: ClientId,
        end: DeviceEnd<W>,
        kind: QueueKind,
        bell: Bell,
    ) -> Result<QueueId, RingError> {
        if self.draining {
            return Err(RingError::Draining);
        }
        if self.clients.get(client).is_none() {
            return Err(RingError::NoClient(client));
        }
        let id = self.clients.free_queue();
        self.arbiter.add(IoQueue::new(id, kind, end))?;
        self.clients.own(id, client, bell);
        Ok(id)
    }

    /// Begins to delete a queue. Every command its client rang for is answered; then, in a later turn, it is gone.
    ///
    /// # Errors
    /// [`ArbiterError`] for a queue that is not there.
    pub fn delete_queue(&mut self, queue: QueueId) -> Result<(), ArbiterError> {
        self.arbiter.begin_delete(queue)?;
        self.leave(queue);
        Ok(())
    }

    /// Gives up a queue whose client has left it. Answers still under way go nowhere.
    pub fn abandon_queue(&mut self, queue: QueueId) {
        if self.arbiter.abandon(queue).is_ok() {
            self.leave(queue);
        }
    }

    /// Forgets a client that is gone, with its memory table and queues. Answers still under way go nowhere; regions stay
    /// mapped until nothing in flight names them.
    pub fn remove_client(&mut self, client: ClientId) {
        for queue in self.clients.remove(client) {
            self.abandon_queue(queue);
        }
    }

    /// Whose queue it is, while the client is there.
    #[inline]
    #[must_use]
    pub fn client_of(&self, queue: QueueId) -> Option<&Client> {
        self.clients.of_queue(queue)
    }

    /// The next entry by turns, and the duty to [`complete`](Self::complete) it.
    #[inline]
    pub fn fetch(&mut self) -> Option<Fetched> {
        let fetched = self.arbiter.fetch();
        self.in_flight += usize::from(fetched.is_some());
        fetched
    }

    /// Answers an entry. `result` is dword 0 of the completion. Its client is woken by [`finish`](Self::finish).
    #[inline]
    pub fn complete(&mut self, token: CommandToken, result: u32, status: Status) {
        self.arbiter.complete(token, result, status);
        self.in_flight -= 1;
        self.stats.answered += 1;
    }

    /// Answers an entry that was not carried out.
    pub fn refuse(&mut self, token: CommandToken, status: Status) {
        self.complete(token, 0, status);
        self.stats.refused += 1;
    }

    /// The end of a turn: wakes clients that sleep and have answers, and lets queues go that have none to wait for.
    /// Returns whether a queue is gone.
    pub fn finish(&mut self) -> bool {
        self.ring();
        self.let_go()
    }

    fn ring(&mut self) {
        let Self { arbiter, clients, stats, .. } = self;
        arbiter.ring(|queue| {
            let Some(bell) = clients.bell(queue) else {
                return;
            };
            match bell.wake() {
                Ok(()) => stats.wakes += 1,
                Err(_) => stats.wakes_failed += 1,
            }
        });
    }

    fn leave(&mut self, queue: QueueId) {
        if !self.leaving.contains(&queue) {
            self.leaving.push(queue);
        }
    }

    fn let_go(&mut self) -> bool {
        let before = self.leaving.len();
        let Self { arbiter, clients, leaving, stats, .. } = self;
        leaving.retain(|&queue| {
            let Ok(gone) = arbiter.remove_drained(queue) else {
                return false;
            };
            if let Some(mut gone) = gone {
                // The last answers may have been posted just now, and its client may sleep.
                if gone.ring() == Wake::Needed
                    && let Some(bell) = clients.bell(queue)
                    && bell.wake().is_ok()
                {
                    stats.wakes += 1;
                }
                clients.disown(queue);
                return false;
            }
            true
        });
        self.leaving.len() < before
    }

    /// Answers of a queue that find no room, because its client does not reap. A client that keeps to its depth has none.
    #[must_use]
    pub fn unposted(&self, queue: QueueId) -> usize {
        self.arbiter.queue(queue).map_or(0, |queue| queue.unposted())
    }

    /// Where a queue is in its life, `None` when it is gone.
    #[must_use]
    pub fn queue_state(&self, queue: QueueId) -> Option<QueueState> {
        self.arbiter.queue(queue).ok().map(|queue| queue.state())
    }

    /// Commands taken and not yet answered.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// The numbers.
    #[must_use]
    pub fn stats(&self) -> RingStats {
        self.stats
    }

    /// Asks every client to wake this side by [`descriptor`](Self::descriptor). [`Sleep::No`] means that something came
    /// meanwhile: look again. [`awake`](Self::awake) takes the wish back.
    pub fn prepare_sleep(&mut self) -> Sleep {
        let sleep = self.arbiter.prepare_sleep();
        self.armed = sleep == Sleep::Until;
        sleep
    }

    /// Says that this side is awake; costs nothing when it did not go to sleep.
    pub fn awake(&mut self) {
        if std::mem::take(&mut self.armed) {
            self.arbiter.awake();
            // A wake-up that stays behind would only end the next sleep early.
            let _ = self.bell.take();
        }
    }

    /// What clients ring: readable when there are entries while this side sleeps.
    #[must_use]
    pub fn descriptor(&self) -> &WakeDescriptor {
        &self.bell
    }

    /// Takes no more queues and no more commands; all that clients have rung for is answered.
    pub fn drain(&mut self) {
        self.draining = true;
        let queues: Vec<QueueId> = self.arbiter.queues().map(|queue| queue.id()).collect();
        for queue in queues {
            // It is there: it was listed just now.
            let _ = self.delete_queue(queue);
        }
    }

    /// Whether, after [`drain`](Self::drain), every command has its completion in its client's queue.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.draining && self.leaving.is_empty() && self.in_flight == 0
    }
}

impl ClientRings<SharedWords> {
    /// A queue pair of a client, for up to `depth` commands in flight.
    ///
    /// # Errors
    /// [`RingError`] for a client that is not there, an impossible depth, or a system without descriptors or room.
    pub fn create_queue_pair(
        &mut self,
        client: ClientId,
        depth: u32,
        kind: QueueKind,
    ) -> Result<ClientQueue, RingError> {
        self.pair_up(client, QueuePair::new(depth)?, kind)
    }

    /// A queue pair in ring memory that the caller has, zero where it was never used as this pair.
    ///
    /// # Errors
    /// As [`create_queue_pair`](Self::create_queue_pair), and for too little memory.
    pub fn create_queue_pair_in(
        &mut self,
        client: ClientId,
        memory: SharedWords,
        depth: u32,
        kind: QueueKind,
    ) -> Result<ClientQueue, RingError> {
        self.pair_up(client, QueuePair::over(memory, depth)?, kind)
    }

    fn pair_up(
        &mut self,
        client: ClientId,
        (pair, end): (QueuePair<SharedWords>, DeviceEnd<SharedWords>),
        kind: QueueKind,
    ) -> Result<ClientQueue, RingError> {
        let bell = WakeDescriptor::new()?;
        let id = self.add_queue(client, end, kind, Bell::Descriptor(bell.clone()))?;
        Ok(ClientQueue { id, pair, bell, device: self.bell.clone() })
    }
}
