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
//! [`RingFace::descriptor`] when [`RingFace::prepare_sleep`] allows it.

mod clients;
pub mod rights;
mod slots;

use crate::command::{FaceId, SubmitError};
use crate::device::Device;
use crate::interpreter::decode;
use crate::media::Media;
use crate::namespace::Namespace;
use crate::request::{AddressMode, Keys, Places, Request};
use clients::Clients;
use headwater_dma::iova::ClientMemory;
use headwater_host::ring_memory::{RingMemory, SharedWords};
use headwater_host::wake::{WakeDescriptor, WakeError};
use headwater_nvme::controller::{Arbiter, ArbiterError, Fetched, IoQueue, QueueId, QueueKind, QueueState};
use headwater_nvme::queue_pair::{DeviceEnd, QueuePair, QueuePairError, Sleep};
use headwater_nvme::ring::Wake;
use headwater_nvme::spec::status::Status;
use rights::Rights;
use slots::{Pending, Slots};
use std::collections::VecDeque;
use std::num::NonZeroU16;

pub use clients::{Bell, ClientId};

/// Commands taken from one queue before the next queue has its turn.
const BURST: NonZeroU16 = NonZeroU16::new(32).expect("32 is not zero");
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
    face: FaceId,
    arbiter: Arbiter<W>,
    clients: Clients,
    slots: Slots,
    keys: Keys,
    places: Places,
    /// Fetched when the device was busy.
    held: Option<Fetched>,
    /// Slots of commands that go on: lists that want more keys, reads whose flush is over.
    lists: VecDeque<usize>,
    leaving: Vec<QueueId>,
    bell: WakeDescriptor,
    armed: bool,
    draining: bool,
    stats: RingStats,
}

impl<W: RingMemory> RingFace<W> {
    /// A face without clients, which the device knows as `face`.
    ///
    /// # Errors
    /// [`WakeError`] when the system has no descriptor left.
    pub fn new(face: FaceId) -> Result<Self, WakeError> {
        Ok(Self {
            face,
            arbiter: Arbiter::new(BURST),
            clients: Clients::default(),
            slots: Slots::default(),
            keys: Keys::default(),
            places: Places::default(),
            held: None,
            lists: VecDeque::new(),
            leaving: Vec::new(),
            bell: WakeDescriptor::new()?,
            armed: false,
            draining: false,
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
    /// [`RingError`] for a client that is not there, a face that drains, or a controller without room.
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

    /// Begins to delete a queue. Every command its client rang for is answered; then, in a later poll, it is gone.
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
            if self.arbiter.abandon(queue).is_ok() {
                self.leave(queue);
            }
        }
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
        self.slots.len() + usize::from(self.held.is_some())
    }

    /// The numbers.
    #[must_use]
    pub fn stats(&self) -> RingStats {
        self.stats
    }

    /// Posts what the device has answered, then takes new commands as far as the device goes, then wakes clients. Never
    /// blocks. Returns whether anything moved.
    pub fn poll<M: Media>(&mut self, device: &mut Device<M>) -> bool {
        self.awake();
        let mut moved = self.post(device);
        moved |= self.fetch(device);
        self.ring();
        moved | self.let_go()
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
                self.arbiter.complete(pending.token, closed.result, closed.status);
                self.stats.answered += 1;
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
            let Some(fetched) = self.held.take().or_else(|| self.arbiter.fetch()) else {
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
            let client = self.clients.of_queue(fetched.token.queue());
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
                self.arbiter.complete(fetched.token, 0, status);
                self.stats.answered += 1;
                self.stats.refused += 1;
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
                    self.arbiter.complete(pending.token, 0, status);
                    self.stats.answered += 1;
                }
            }
        }
        true
    }

    /// Wakes clients that sleep and have answers.
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

    /// Moves deletions on. Returns whether a queue is gone.
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

    /// Asks every client to wake this side by [`descriptor`](Self::descriptor). [`Sleep::No`] means that something came
    /// meanwhile: poll again. The next poll takes the wish back.
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

    /// What clients ring: readable when the face has work that no device completion announces.
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
        self.draining && self.leaving.is_empty() && self.in_flight() == 0
    }
}

impl RingFace<SharedWords> {
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

impl<W: RingMemory> Drop for RingFace<W> {
    /// The device goes down: nobody is there to read answers.
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            held.token.abandon();
        }
        self.slots.abandon();
    }
}
