//! The device's front end for NVMe rings in this process.
//!
//! Input: untrusted entries that clients wrote into their SQs. Output: commands to the device, exactly one completion
//! for each entry, and a wake-up for each sleeping client. Value bytes are copied once, between client memory and the
//! record; only keys and lists pass through this front end. Invariant: while a command is in flight its token is in one
//! slot, whose number is the device's token, and the client memory that it names stays mapped.
//!
//! ```text
//!   arbiter --entry--> interpreter --addresses--> client's table --command--> device
//!      ^                   | refused                  | not mapped               | busy: held, nothing else is fetched
//!      +--- completion ----+--------------------------+-------- completion ------+
//! ```
//!
//! # What this does not do
//! It neither polls the device nor sleeps: the core's loop polls [`RingFrontEnd::poll`] and the device in turns, and sleeps
//! on [`ClientRings::wakeup_descriptor`] if [`ClientRings::prepare_sleep`] permits it. [`ClientRings`] owns the clients and
//! their queues.

mod client_rings;
mod clients;
mod pending_commands;
pub mod rights;

use crate::command::{FrontEndId, SubmitError};
use crate::engine::SsdDevice;
use crate::media::Media;
use crate::namespace::Namespace;
use crate::nvme::decoder::decode;
use crate::nvme::request::{AddressResolver, DeviceRequest, KeyBuffer};
use headwater_host::ring_memory::{HeapWords, RingMemory};
use headwater_host::wake::{WakeDescriptor, WakeError};
use headwater_nvme::controller::{ArbiterError, FetchedCommand, QueueId};
use headwater_nvme::queue_pair::{QueuePair, QueuePairError};
use headwater_nvme::spec::status::Status;
use pending_commands::{PendingRingCommand, PendingRingCommands};
use std::collections::VecDeque;

pub use client_rings::ClientRings;
pub use clients::{ClientId, ClientWakeup, RingClient};

/// Maximum of entries fetched in one poll, so that a client whose entries are all refused cannot starve the device.
const FETCHES_MAX: usize = 1_024;

/// The reason why a client or queue could not be created or found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// The client does not exist.
    #[error("{0} does not exist; add a client first")]
    NoClient(ClientId),
    /// The front end is being drained.
    #[error("no queue can be added: the front end is being drained; connect to another device")]
    Draining,
    /// The queue pair cannot be created.
    #[error(transparent)]
    QueuePair(#[from] QueuePairError),
    /// The controller has no room for the queue, or has no such queue.
    #[error(transparent)]
    Arbiter(#[from] ArbiterError),
    /// The system has no descriptor left to wake the client with.
    #[error(transparent)]
    Wake(#[from] WakeError),
}

/// The client's half of a new queue pair, ready to move to the client's thread.
#[derive(Debug)]
pub struct ClientQueue {
    /// The queue's number at the device.
    pub id: QueueId,
    /// The rings.
    pub pair: QueuePair<HeapWords>,
    /// The descriptor that the client sleeps on.
    pub wakeup: WakeDescriptor,
    /// The descriptor with which the client wakes the device when the rings require it.
    pub device_wakeup: WakeDescriptor,
}

/// Counters of a front end; all monotonic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingStats {
    /// Entries completed, with any status.
    pub completed: u64,
    /// Completed entries that were never submitted to the device.
    pub refused: u64,
    /// Wake-ups of sleeping clients.
    pub wakes: u64,
    /// Wake-ups that failed in the kernel.
    pub wakes_failed: u64,
}

/// The front end for the rings of one device, all in one kind of ring memory.
#[derive(Debug)]
pub struct RingFrontEnd<W: RingMemory = HeapWords> {
    /// Clients and their queues.
    pub rings: ClientRings<W>,
    front_end: FrontEndId,
    slots: PendingRingCommands,
    keys: KeyBuffer,
    addresses: AddressResolver,
    /// An entry fetched while the device was busy.
    deferred_entry: Option<FetchedCommand>,
    /// Slots whose next command must be submitted: lists that need more keys, reads whose flush is done.
    continued_slots: VecDeque<usize>,
}

impl<W: RingMemory> RingFrontEnd<W> {
    /// Creates a front end without clients, with the front end number `front_end` at the device.
    ///
    /// # Errors
    /// [`WakeError`] if the system has no descriptor left.
    pub fn new(front_end: FrontEndId) -> Result<Self, WakeError> {
        Ok(Self {
            rings: ClientRings::new()?,
            front_end,
            slots: PendingRingCommands::default(),
            keys: KeyBuffer::default(),
            addresses: AddressResolver::default(),
            deferred_entry: None,
            continued_slots: VecDeque::new(),
        })
    }

    /// Posts the device's completions, then submits new commands until the device is busy, then wakes clients. Never
    /// blocks. Returns true if any state changed.
    pub fn poll<M: Media>(&mut self, device: &mut SsdDevice<M>) -> bool {
        self.rings.cancel_sleep();
        let mut moved = self.post(device);
        moved |= self.fetch(device);
        moved | self.rings.finish_turn()
    }

    /// Posts the device's completions.
    fn post<M: Media>(&mut self, device: &mut SsdDevice<M>) -> bool {
        let mut moved = false;
        while let Some(completion) = device.next_completion(self.front_end) {
            moved = true;
            let Ok(at) = usize::try_from(completion.token) else {
                continue;
            };
            if let Some(answer) = self.slots.answer_mut(at)
                && answer.needs_more(&completion)
            {
                self.continued_slots.push_back(at);
                continue;
            }
            // The device completes each accepted command exactly once, so the slot is taken.
            if let Some(pending) = self.slots.remove(at) {
                let closed = pending.answer.build(completion);
                self.rings.complete(pending.token, closed.result, closed.status);
            }
        }
        moved
    }

    /// Continues commands of several steps, then fetches entries until there are none, the device is busy, or
    /// [`FETCHES_MAX`] is reached.
    fn fetch<M: Media>(&mut self, device: &mut SsdDevice<M>) -> bool {
        let mut moved = false;
        while let Some(&at) = self.continued_slots.front() {
            if !self.submit_next(device, at) {
                return moved;
            }
            self.continued_slots.pop_front();
            moved = true;
        }
        for _ in 0..FETCHES_MAX {
            let Some(fetched) = self.deferred_entry.take().or_else(|| self.rings.fetch()) else {
                return moved;
            };
            if let Err(held) = self.submit_entry(device, fetched) {
                self.deferred_entry = Some(held);
                return moved;
            }
            moved = true;
        }
        moved
    }

    /// Submits an entry's command to the device, or completes the entry with an error. Returns the entry if the device
    /// is busy.
    fn submit_entry<M: Media>(
        &mut self,
        device_wakeup: &mut SsdDevice<M>,
        fetched: FetchedCommand,
    ) -> Result<(), FetchedCommand> {
        // A client in this process may create a key space by its first use, as RESP clients do.
        let namespace = |id| device_wakeup.namespace(id).or(Some(Namespace::IMPLICIT));
        let request = decode(&fetched.entry, fetched.kind, namespace).and_then(|command| {
            let client = self.rings.client_of(fetched.token.queue());
            let client = client.ok_or(Status::DATA_TRANSFER_ERROR)?;
            let data =
                self.addresses.resolve(&command, &fetched.entry, &client.memory, client.address_mode)?;
            let request = DeviceRequest::new(&command, data, &mut self.keys, device_wakeup)?;
            let facts = || device_wakeup.namespace(request.namespace);
            client.rights.check(request.namespace, request.data_command(), facts)?;
            Ok(request)
        });
        let result = request.and_then(|request| {
            let token = self.slots.next_slot() as u64;
            match device_wakeup.submit(self.front_end, request.namespace, token, request.command) {
                Ok(()) => Ok(Some(request.completion)),
                Err(SubmitError::Busy(_)) => Ok(None),
                Err(SubmitError::Refused(status)) => Err(status),
            }
        });
        match result {
            Ok(Some(answer)) => {
                self.slots.insert(PendingRingCommand { token: fetched.token, answer });
                Ok(())
            }
            // The command is decoded again from the same copy of the entry when the device has room.
            Ok(None) => Err(fetched),
            Err(status) => {
                self.rings.complete_refused(fetched.token, status);
                Ok(())
            }
        }
    }

    /// Submits the next command of a list or of a flushed read. Returns false if the device is busy.
    fn submit_next<M: Media>(&mut self, device: &mut SsdDevice<M>, at: usize) -> bool {
        let next = self.slots.answer_mut(at).and_then(|answer| answer.next_command());
        let Some((namespace, command)) = next else {
            return true;
        };
        match device.submit(self.front_end, namespace, at as u64, command) {
            Ok(()) => {}
            Err(SubmitError::Busy(_)) => return false,
            Err(SubmitError::Refused(status)) => {
                if let Some(pending) = self.slots.remove(at) {
                    self.rings.complete(pending.token, 0, status);
                }
            }
        }
        true
    }
}

impl<W: RingMemory> Drop for RingFrontEnd<W> {
    /// Abandons all commands in flight without completions: their clients are gone with the device.
    fn drop(&mut self) {
        if let Some(held) = self.deferred_entry.take() {
            held.token.abandon();
        }
        self.slots.abandon();
    }
}
