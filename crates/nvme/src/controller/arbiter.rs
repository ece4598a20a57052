//! Round robin with burst over the queues of a controller (NVMe Base 2.0 section 3.4.4.1; the UIO paper's poll list).
//!
//! In: queues. Out: their commands, at most `burst` in a row from one queue, then the next queue's. Invariant: a queue that
//! has commands is reached after at most `burst` commands of each other queue; fetching allocates nothing.

use crate::controller::queue::{Drain, Fetch, Fetched, IoQueue, QueueId};
use crate::controller::token::CommandToken;
use crate::queue_pair::Sleep;
use crate::ring::doorbell::Wake;
use crate::spec::status::Status;
use headwater_host::ring_memory::RingMemory;
use std::num::NonZeroU16;

/// Most I/O queue pairs of a controller.
pub const QUEUES_MAX: u16 = 1_024;

/// Why a queue could not be added or found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArbiterError {
    /// The number is 0 or above the limit.
    #[error("{0} is out of range; choose 1 to {QUEUES_MAX}")]
    OutOfRange(QueueId),
    /// The number is in use.
    #[error("{0} exists already; delete it first or choose another")]
    Taken(QueueId),
    /// No such queue.
    #[error("{0} does not exist; create it first")]
    Missing(QueueId),
}

impl ArbiterError {
    /// What a host is told (NVMe Base 2.0 sections 5.4 to 5.7).
    #[must_use]
    pub const fn status(self) -> Status {
        Status::INVALID_QUEUE_ID
    }
}

/// The poll list.
#[derive(Debug)]
pub struct Arbiter<M> {
    /// By queue number less one.
    queues: Vec<Option<IoQueue<M>>>,
    /// The circle, in the order of creation.
    order: Vec<QueueId>,
    /// Whose turn it is.
    turn: usize,
    /// Entries taken in this turn.
    taken: u16,
    burst: NonZeroU16,
}

impl<M: RingMemory> Arbiter<M> {
    /// No queues yet. `burst` is the most commands taken from one queue in its turn.
    #[must_use]
    pub fn new(burst: NonZeroU16) -> Self {
        Self { queues: Vec::new(), order: Vec::new(), turn: 0, taken: 0, burst }
    }

    /// Adds a queue at the end of the circle.
    ///
    /// # Errors
    /// [`ArbiterError::OutOfRange`] or [`ArbiterError::Taken`] by its number.
    pub fn add(&mut self, queue: IoQueue<M>) -> Result<(), ArbiterError> {
        let id = queue.id();
        let place = place(id)?;
        if self.queues.len() <= place {
            self.queues.resize_with(place + 1, || None);
        }
        let slot = &mut self.queues[place];
        if slot.is_some() {
            return Err(ArbiterError::Taken(id));
        }
        *slot = Some(queue);
        self.order.push(id);
        Ok(())
    }

    /// The next command by turns, or `None` when no queue has one to fetch. Looks at each queue at most once more than
    /// its burst, whatever hosts write meanwhile.
    #[inline]
    pub fn fetch(&mut self) -> Option<Fetched> {
        // The queue whose turn is running may be looked at again after all others.
        for _ in 0..=self.order.len() {
            let id = *self.order.get(self.turn)?;
            while self.taken < self.burst.get() {
                match self.queue_mut(id).map_or(Fetch::Empty, IoQueue::fetch) {
                    Fetch::Command(fetched) => {
                        self.taken += 1;
                        return Some(fetched);
                    }
                    Fetch::Answered => self.taken += 1,
                    Fetch::Empty => break,
                }
            }
            self.end_turn();
        }
        None
    }

    /// Answers a command. `result` is dword 0 of the completion. The host sees it at once and is woken by
    /// [`ring`](Self::ring).
    ///
    /// # Panics
    /// When the token's queue is gone: queues leave only when nothing of theirs is live.
    #[inline]
    pub fn complete(&mut self, token: CommandToken, result: u32, status: Status) {
        let id = token.queue();
        match self.queue_mut(id) {
            Ok(queue) => queue.complete(token, result, status),
            Err(error) => {
                token.abandon();
                panic!("a live command outlived its queue: {error}");
            }
        }
    }

    /// Posts answers that waited for room, then calls `wake` for each queue whose host sleeps and has new completions.
    /// Once for a batch of answers.
    pub fn ring(&mut self, mut wake: impl FnMut(QueueId)) {
        for queue in self.queues.iter_mut().flatten() {
            queue.post_waiting();
            if queue.ring() == Wake::Needed {
                wake(queue.id());
            }
        }
    }

    /// Begins to delete a queue; it leaves through [`remove_drained`](Self::remove_drained).
    ///
    /// # Errors
    /// [`ArbiterError::Missing`] for a queue that is not there.
    pub fn begin_delete(&mut self, id: QueueId) -> Result<(), ArbiterError> {
        self.queue_mut(id).map(IoQueue::begin_delete)
    }

    /// Gives up a queue whose host is gone; it leaves through [`remove_drained`](Self::remove_drained).
    ///
    /// # Errors
    /// [`ArbiterError::Missing`] for a queue that is not there.
    pub fn abandon(&mut self, id: QueueId) -> Result<(), ArbiterError> {
        self.queue_mut(id).map(IoQueue::abandon)
    }

    /// Moves the deletion of one queue on; when every command has its completion the queue is taken out of the circle
    /// and handed back (ring it once more before it goes).
    ///
    /// # Errors
    /// [`ArbiterError::Missing`] for a queue that is not there.
    pub fn remove_drained(&mut self, id: QueueId) -> Result<Option<IoQueue<M>>, ArbiterError> {
        let queue = self.queue_mut(id)?;
        if queue.is_serving() || queue.drain() != Drain::Done {
            return Ok(None);
        }
        if let Some(at) = self.order.iter().position(|&other| other == id) {
            self.order.remove(at);
            if at < self.turn {
                self.turn -= 1;
            } else if at == self.turn {
                self.taken = 0;
            }
            if self.turn >= self.order.len() {
                self.turn = 0;
            }
        }
        Ok(self.queues[place(id)?].take())
    }

    /// Asks every host for wake-ups and looks once more. [`Sleep::No`] means something came meanwhile; then nothing is
    /// armed.
    pub fn prepare_sleep(&mut self) -> Sleep {
        for queue in self.queues() {
            queue.arm();
        }
        if self.queues().any(IoQueue::has_work) {
            self.awake();
            return Sleep::No;
        }
        Sleep::Until
    }

    /// Says that this side is awake, so that commands cost their hosts no call into the kernel.
    pub fn awake(&self) {
        for queue in self.queues() {
            queue.disarm();
        }
    }

    /// A queue by its number.
    ///
    /// # Errors
    /// [`ArbiterError`] for a number out of range or a queue that is not there.
    pub fn queue(&self, id: QueueId) -> Result<&IoQueue<M>, ArbiterError> {
        let slot = self.queues.get(place(id)?);
        slot.and_then(Option::as_ref).ok_or(ArbiterError::Missing(id))
    }

    /// Every queue, by number.
    pub fn queues(&self) -> impl Iterator<Item = &IoQueue<M>> {
        self.queues.iter().flatten()
    }

    #[inline]
    fn queue_mut(&mut self, id: QueueId) -> Result<&mut IoQueue<M>, ArbiterError> {
        let slot = self.queues.get_mut(place(id)?);
        slot.and_then(Option::as_mut).ok_or(ArbiterError::Missing(id))
    }

    fn end_turn(&mut self) {
        self.taken = 0;
        self.turn += 1;
        if self.turn >= self.order.len() {
            self.turn = 0;
        }
    }
}

#[inline]
fn place(id: QueueId) -> Result<usize, ArbiterError> {
    match id.0 {
        1..=QUEUES_MAX => Ok(usize::from(id.0) - 1),
        _ => Err(ArbiterError::OutOfRange(id)),
    }
}
