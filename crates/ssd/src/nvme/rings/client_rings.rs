//! The queues of ring clients, independent of the executor of their commands.
//!
//! Input: clients with their memory tables and rights, and untrusted rings that they write. Output: entries in
//! round-robin order, each with its queue, and for each answer a completion in the CQ of its queue. Invariant: a queue
//! is removed only when all its entries are completed or its client is gone; a sleeping client is woken by completions.
//!
//! ```text
//!   add_queue -> serving --delete_queue--> completes what was rung for --finish--> gone
//!                   +------abandon_queue, remove_client--> drops completions --------^
//! ```
//!
//! # What this does not do
//! It decodes no entry and moves no data: [`RingFrontEnd`](super::RingFrontEnd) does both for the device of this crate.

use super::clients::{ClientId, ClientWakeup, RingClient, RingClients};
use super::rights::ClientRights;
use super::{ClientQueue, RingError, RingStats};
use crate::nvme::request::AddressMode;
use headwater_dma::iova::ClientMemory;
use headwater_host::ring_memory::{HeapWords, RingMemory};
use headwater_host::wake::{WakeDescriptor, WakeError};
use headwater_nvme::controller::{
    ArbiterError, CommandToken, ControllerQueuePair, FetchedCommand, QueueArbiter, QueueId, QueueKind,
    QueueState,
};
use headwater_nvme::queue_pair::{ControllerEnd, QueuePair, SleepDecision};
use headwater_nvme::ring::WakeDecision;
use headwater_nvme::spec::status::Status;
use std::num::NonZeroU16;

/// Maximum of commands fetched from one queue before the next queue is served.
const BURST: NonZeroU16 = NonZeroU16::new(32).expect("32 is not zero");

/// Clients and their queues, all in one kind of ring memory.
#[derive(Debug)]
pub struct ClientRings<W: RingMemory = HeapWords> {
    arbiter: QueueArbiter<W>,
    clients: RingClients,
    leaving_queues: Vec<QueueId>,
    wakeup: WakeDescriptor,
    armed: bool,
    draining: bool,
    /// Entries fetched and not completed.
    in_flight: usize,
    stats: RingStats,
}

impl<W: RingMemory> ClientRings<W> {
    /// Creates rings without clients.
    ///
    /// # Errors
    /// [`WakeError`] if the system has no descriptor left.
    pub fn new() -> Result<Self, WakeError> {
        Ok(Self {
            arbiter: QueueArbiter::new(BURST),
            clients: RingClients::default(),
            leaving_queues: Vec::new(),
            wakeup: WakeDescriptor::new()?,
            armed: false,
            draining: false,
            in_flight: 0,
            stats: RingStats::default(),
        })
    }

    /// Adds a client without memory and queues, with all rights.
    pub fn add_client(&mut self) -> ClientId {
        self.clients.add(ClientRights::all())
    }

    /// Adds a client without memory and queues, with these rights.
    pub fn add_client_with(&mut self, rights: ClientRights) -> ClientId {
        self.clients.add(rights)
    }

    /// Changes the rights of a client, from its next command on. Commands in flight complete as usual.
    ///
    /// # Errors
    /// [`RingError::NoClient`].
    pub fn set_rights(&mut self, client: ClientId, rights: ClientRights) -> Result<(), RingError> {
        self.clients.get_mut(client).ok_or(RingError::NoClient(client))?.rights = rights;
        Ok(())
    }

    /// Sets the kind of data pointers of a client's commands, from its next command on. The default is flat addresses.
    ///
    /// # Errors
    /// [`RingError::NoClient`].
    pub fn set_address_mode(&mut self, client: ClientId, mode: AddressMode) -> Result<(), RingError> {
        self.clients.get_mut(client).ok_or(RingError::NoClient(client))?.address_mode = mode;
        Ok(())
    }

    /// Returns the memory table of a client, to register and revoke regions.
    pub fn memory(&mut self, client: ClientId) -> Option<&mut ClientMemory> {
        self.clients.get_mut(client).map(|client| &mut client.memory)
    }

    /// Adds the device's half of a queue pair whose other half the client already has.
    ///
    /// # Errors
    /// [`RingError`] for a client that does not exist, rings that are drained, or a controller without room.
    pub fn add_queue(
        &mut self,
        client: ClientId,
        end: ControllerEnd<W>,
        kind: QueueKind,
        wakeup: ClientWakeup,
    ) -> Result<QueueId, RingError> {
        if self.draining {
            return Err(RingError::Draining);
        }
        if self.clients.get(client).is_none() {
            return Err(RingError::NoClient(client));
        }
        let id = self.clients.free_queue();
        self.arbiter.add(ControllerQueuePair::new(id, kind, end))?;
        self.clients.set_owner(id, client, wakeup);
        Ok(id)
    }

    /// Begins to delete a queue. Every command that its client rang for is completed before a later turn removes it.
    ///
    /// # Errors
    /// [`ArbiterError`] for a queue that does not exist.
    pub fn delete_queue(&mut self, queue: QueueId) -> Result<(), ArbiterError> {
        self.arbiter.begin_delete(queue)?;
        self.mark_leaving(queue);
        Ok(())
    }

    /// Abandons a queue that its client no longer uses. Completions of its commands in flight are dropped.
    pub fn abandon_queue(&mut self, queue: QueueId) {
        if self.arbiter.abandon(queue).is_ok() {
            self.mark_leaving(queue);
        }
    }

    /// Removes a client that is gone, with its memory table and queues. Completions of its commands in flight are
    /// dropped; regions stay mapped until no command in flight names them.
    pub fn remove_client(&mut self, client: ClientId) {
        for queue in self.clients.remove(client) {
            self.abandon_queue(queue);
        }
    }

    /// Returns the client that owns a queue; `None` once the client is removed.
    #[inline]
    #[must_use]
    pub fn client_of(&self, queue: QueueId) -> Option<&RingClient> {
        self.clients.client_of_queue(queue)
    }

    /// Fetches the next entry in round-robin order. The caller must [`complete`](Self::complete) it.
    #[inline]
    pub fn fetch(&mut self) -> Option<FetchedCommand> {
        let fetched = self.arbiter.fetch();
        self.in_flight += usize::from(fetched.is_some());
        fetched
    }

    /// Completes an entry. `result` is dword 0 of the completion. [`finish_turn`](Self::finish_turn) wakes its client.
    #[inline]
    pub fn complete(&mut self, token: CommandToken, result: u32, status: Status) {
        self.arbiter.complete(token, result, status);
        self.in_flight -= 1;
        self.stats.completed += 1;
    }

    /// Completes an entry that was not executed.
    pub fn complete_refused(&mut self, token: CommandToken, status: Status) {
        self.complete(token, 0, status);
        self.stats.refused += 1;
    }

    /// Ends a turn: wakes sleeping clients with new completions, and removes leaving queues that are drained. Returns
    /// true if a queue was removed.
    pub fn finish_turn(&mut self) -> bool {
        self.wake_clients();
        self.remove_drained_queues()
    }

    fn wake_clients(&mut self) {
        let Self { arbiter, clients, stats, .. } = self;
        arbiter.ring(|queue| {
            let Some(wakeup) = clients.wakeup_of(queue) else {
                return;
            };
            match wakeup.wake() {
                Ok(()) => stats.wakes += 1,
                Err(_) => stats.wakes_failed += 1,
            }
        });
    }

    fn mark_leaving(&mut self, queue: QueueId) {
        if !self.leaving_queues.contains(&queue) {
            self.leaving_queues.push(queue);
        }
    }

    fn remove_drained_queues(&mut self) -> bool {
        let before = self.leaving_queues.len();
        let Self { arbiter, clients, leaving_queues: leaving, stats, .. } = self;
        leaving.retain(|&queue| {
            let Ok(gone) = arbiter.remove_drained(queue) else {
                return false;
            };
            if let Some(mut gone) = gone {
                // The last completions may have been posted just now, and its client may sleep.
                if gone.ring() == WakeDecision::Needed
                    && let Some(wakeup) = clients.wakeup_of(queue)
                    && wakeup.wake().is_ok()
                {
                    stats.wakes += 1;
                }
                clients.clear_owner(queue);
                return false;
            }
            true
        });
        self.leaving_queues.len() < before
    }

    /// Returns the number of completions that have no room in a queue because its client does not reap. It is 0 for a
    /// client that keeps to its depth.
    #[must_use]
    pub fn unposted(&self, queue: QueueId) -> usize {
        self.arbiter.queue(queue).map_or(0, |queue| queue.unposted())
    }

    /// Returns the state of a queue; `None` if it was removed.
    #[must_use]
    pub fn queue_state(&self, queue: QueueId) -> Option<QueueState> {
        self.arbiter.queue(queue).ok().map(|queue| queue.state())
    }

    /// Returns the number of commands fetched and not yet completed.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> RingStats {
        self.stats
    }

    /// Arms a wake-up from every client by [`wakeup_descriptor`](Self::wakeup_descriptor). [`SleepDecision::WorkPending`] means that an entry has
    /// arrived and the caller must poll again. [`cancel_sleep`](Self::cancel_sleep) disarms the wake-up.
    pub fn prepare_sleep(&mut self) -> SleepDecision {
        let sleep = self.arbiter.prepare_sleep();
        self.armed = sleep == SleepDecision::UntilWoken;
        sleep
    }

    /// Disarms the wake-up of [`prepare_sleep`](Self::prepare_sleep); costs nothing if none was armed.
    pub fn cancel_sleep(&mut self) {
        if std::mem::take(&mut self.armed) {
            self.arbiter.disarm();
            // A wake-up left over would only end the next sleep early.
            let _ = self.wakeup.take();
        }
    }

    /// Returns the descriptor that clients ring: it becomes readable when entries arrive while this side sleeps.
    #[must_use]
    pub fn wakeup_descriptor(&self) -> &WakeDescriptor {
        &self.wakeup
    }

    /// Stops accepting queues and new commands; all commands that clients have rung for are completed.
    pub fn drain(&mut self) {
        self.draining = true;
        let queues: Vec<QueueId> = self.arbiter.queues().map(|queue| queue.id()).collect();
        for queue in queues {
            // It cannot fail: the queue was listed just now.
            let _ = self.delete_queue(queue);
        }
    }

    /// Returns true if, after [`drain`](Self::drain), every command has its completion in its client's queue.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.draining && self.leaving_queues.is_empty() && self.in_flight == 0
    }
}

impl ClientRings<HeapWords> {
    /// Creates a queue pair of a client, for up to `depth` commands in flight.
    ///
    /// # Errors
    /// [`RingError`] for a client that does not exist, an invalid depth, or a system without descriptors or room.
    pub fn create_queue_pair(
        &mut self,
        client: ClientId,
        depth: u32,
        kind: QueueKind,
    ) -> Result<ClientQueue, RingError> {
        self.add_queue_pair(client, QueuePair::new(depth)?, kind)
    }

    /// Creates a queue pair in ring memory of the caller, which is zero unless it held this pair before.
    ///
    /// # Errors
    /// Those of [`create_queue_pair`](Self::create_queue_pair), and [`RingError`] for too little memory.
    pub fn create_queue_pair_in(
        &mut self,
        client: ClientId,
        memory: HeapWords,
        depth: u32,
        kind: QueueKind,
    ) -> Result<ClientQueue, RingError> {
        self.add_queue_pair(client, QueuePair::over(memory, depth)?, kind)
    }

    fn add_queue_pair(
        &mut self,
        client: ClientId,
        (pair, end): (QueuePair<HeapWords>, ControllerEnd<HeapWords>),
        kind: QueueKind,
    ) -> Result<ClientQueue, RingError> {
        let wakeup = WakeDescriptor::new()?;
        let id = self.add_queue(client, end, kind, ClientWakeup::Descriptor(wakeup.clone()))?;
        Ok(ClientQueue { id, pair, wakeup, device_wakeup: self.wakeup.clone() })
    }
}
