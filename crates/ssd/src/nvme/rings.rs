//! The device's face for NVMe rings in this process.
//!
//! In: entries that clients wrote into their submission queues, true or not. Out: commands to the device, exactly one
//! completion for each entry, and a wake-up for each client that sleeps. Value bytes are copied once, between client
//! memory and the record; only keys and lists pass through here. Invariant: while a command is in flight its token lies
//! in one slot, whose number is the device's token, and client memory it names stays mapped.
//!
//! ```text
//!   arbiter --entry--> interpreter --addresses--> client's table --command--> device
//!      ^                   | refused                  | not mapped               | busy: held, nothing else is fetched
//!      +--- completion ----+--------------------------+-------- completion ------+
//! ```
//!
//! # What this does not do
//! It polls no device and sleeps nowhere: the core's loop calls [`RingFace::poll`] and the device in turns, and sleeps on
//! [`ClientRings::descriptor`] when [`ClientRings::prepare_sleep`] allows it. Clients and the life of their queues are
//! [`ClientRings`]' own.

mod client_rings;
mod clients;
pub mod rights;
mod slots;

use crate::command::{FaceId, SubmitError};
use crate::engine::Device;
use crate::media::Media;
use crate::namespace::Namespace;
use crate::nvme::interpreter::decode;
use crate::nvme::request::{Keys, Places, Request};
use headwater_host::ring_memory::{RingMemory, SharedWords};
use headwater_host::wake::{WakeDescriptor, WakeError};
use headwater_nvme::controller::{ArbiterError, Fetched, QueueId};
use headwater_nvme::queue_pair::{QueuePair, QueuePairError};
use headwater_nvme::spec::status::Status;
use slots::{Pending, Slots};
use std::collections::VecDeque;

pub use client_rings::ClientRings;
pub use clients::{Bell, Client, ClientId};

/// Entries taken in one poll, so that clients who are refused all the time do not keep the device from its work.
const FETCHES_MAX: usize = 1_024;

/// Why a client or queue could not be made or found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// No such client.
    #[error("{0} does not exist; add a client first")]
    NoClient(ClientId),
    /// The face is being drained.
    #[error("the face takes no more queues because it is being drained; connect to another device")]
    Draining,
    /// The queue pair cannot be made.
    #[error(transparent)]
    QueuePair(#[from] QueuePairError),
    /// The controller has no room for the queue, or does not have it.
    #[error(transparent)]
    Arbiter(#[from] ArbiterError),
    /// No descriptor to wake the client with.
    #[error(transparent)]
    Wake(#[from] WakeError),
}

/// A client's half of a new queue pair, ready to go to the client's thread.
#[derive(Debug)]
pub struct ClientQueue {
    /// What the device calls it.
    pub id: QueueId,
    /// The rings.
    pub pair: QueuePair<SharedWords>,
    /// What the client sleeps on.
    pub bell: WakeDescriptor,
    /// What the client rings when the rings say that the device must be woken.
    pub device: WakeDescriptor,
}

/// Numbers a face keeps; all monotonic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingStats {
    /// Entries answered, whatever the answer.
    pub answered: u64,
    /// Of these, entries that never became a command of the device.
    pub refused: u64,
    /// Sleeping clients woken.
    pub wakes: u64,
    /// Wake-ups that the kernel refused.
    pub wakes_failed: u64,
}

/// Rings of one device, all in one kind of ring memory.
#[derive(Debug)]
pub struct RingFace<W: RingMemory = SharedWords> {
    /// Clients and their queues.
    pub rings: ClientRings<W>,
    face: FaceId,
    slots: Slots,
    keys: Keys,
    places: Places,
    /// Fetched when the device was busy.
    held: Option<Fetched>,
    /// Slots of commands that go on: lists that want more keys, reads whose flush is over.
    lists: VecDeque<usize>,
}

impl<W: RingMemory> RingFace<W> {
    /// A face without clients, which the device knows as `face`.
    ///
    /// # Errors
    /// [`WakeError`] when the system has no descriptor left.
    pub fn new(face: FaceId) -> Result<Self, WakeError> {
        Ok(Self {
            rings: ClientRings::new()?,
            face,
            slots: Slots::default(),
            keys: Keys::default(),
            places: Places::default(),
            held: None,
            lists: VecDeque::new(),
        })
    }

    /// Posts what the device has answered, then takes new commands as far as the device goes, then wakes clients. Never
    /// blocks. Returns whether anything moved.
    pub fn poll<M: Media>(&mut self, device: &mut Device<M>) -> bool {
        self.rings.awake();
        let mut moved = self.post(device);
        moved |= self.fetch(device);
        moved | self.rings.finish()
    }

    /// Posts the device's completions.
    fn post<M: Media>(&mut self, device: &mut Device<M>) -> bool {
        let mut moved = false;
        while let Some(completion) = device.next_completion(self.face) {
            moved = true;
            let Ok(at) = usize::try_from(completion.token) else {
                continue;
            };
            if let Some(answer) = self.slots.answer_mut(at)
                && answer.wants_more_than(&completion)
            {
                self.lists.push_back(at);
                continue;
            }
            // The device answers each accepted command once, so the slot is there.
            if let Some(pending) = self.slots.remove(at) {
                let closed = pending.answer.close(completion);
                self.rings.complete(pending.token, closed.result, closed.status);
            }
        }
        moved
    }

    /// Goes on with lists, then takes entries in turn until there are none, the device is busy, or it was enough.
    fn fetch<M: Media>(&mut self, device: &mut Device<M>) -> bool {
        let mut moved = false;
        while let Some(&at) = self.lists.front() {
            if !self.go_on(device, at) {
                return moved;
            }
            self.lists.pop_front();
            moved = true;
        }
        for _ in 0..FETCHES_MAX {
            let Some(fetched) = self.held.take().or_else(|| self.rings.fetch()) else {
                return moved;
            };
            if let Err(held) = self.start(device, fetched) {
                self.held = Some(held);
                return moved;
            }
            moved = true;
        }
        moved
    }

    /// Makes an entry a command of the device, or answers it. Gives it back when the device is busy.
    fn start<M: Media>(&mut self, device: &mut Device<M>, fetched: Fetched) -> Result<(), Fetched> {
        // A client in this process may begin a key space, as RESP clients do.
        let namespace = |id| device.namespace(id).or(Some(Namespace::IMPLICIT));
        let request = decode(&fetched.entry, fetched.kind, namespace).and_then(|command| {
            let client = self.rings.client_of(fetched.token.queue());
            let client = client.ok_or(Status::DATA_TRANSFER_ERROR)?;
            let data = self.places.find(&command, &fetched.entry, &client.memory, client.addresses)?;
            let request = Request::new(&command, data, &mut self.keys, device)?;
            let facts = || device.namespace(request.namespace);
            client.rights.check(request.namespace, request.judged(), facts)?;
            Ok(request)
        });
        let result = request.and_then(|request| {
            let token = self.slots.next() as u64;
            match device.submit(self.face, request.namespace, token, request.command) {
                Ok(()) => Ok(Some(request.answer)),
                Err(SubmitError::Busy(_)) => Ok(None),
                Err(SubmitError::Refused(status)) => Err(status),
            }
        });
        match result {
            Ok(Some(answer)) => {
                self.slots.insert(Pending { token: fetched.token, answer });
                Ok(())
            }
            // The command is made anew from the same copy of the entry when the device has room.
            Ok(None) => Err(fetched),
            Err(status) => {
                self.rings.refuse(fetched.token, status);
                Ok(())
            }
        }
    }

    /// Asks the device for more keys of a list. False when the device is busy.
    fn go_on<M: Media>(&mut self, device: &mut Device<M>, at: usize) -> bool {
        let next = self.slots.answer_mut(at).and_then(|answer| answer.next_command());
        let Some((namespace, command)) = next else {
            return true;
        };
        match device.submit(self.face, namespace, at as u64, command) {
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

impl<W: RingMemory> Drop for RingFace<W> {
    /// The device goes down: nobody is there to read answers.
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            held.token.abandon();
        }
        self.slots.abandon();
    }
}
