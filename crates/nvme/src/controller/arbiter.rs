//! The queues of a controller: their commands by turns, their answers in order.
//!
//! In: queues, in pairs or made apart by a host. Out: their commands, as [`Mechanism`] says, and a completion for each.
//! Invariant: a queue leaves only when nothing of it is live, or all leave at once by a reset; a token of a time before
//! the reset answers nobody. Fetching allocates nothing.

mod doorbells;
mod host_queues;

use crate::controller::completion_queue::CompletionQueue;
use crate::controller::interrupts::Interrupts;
use crate::controller::queue::{Drain, Fetch, Fetched, IoQueue, QueueId, QueueState, QueueView};
use crate::controller::schedule::{ArbitrationSettings, Mechanism, Priority, Schedule};
use crate::controller::submission_queue::SubmissionQueue;
use crate::controller::token::CommandToken;
use crate::queue_pair::Sleep;
use crate::ring::QueueSlots;
use crate::ring::doorbell::Wake;
use crate::spec::status::Status;
use doorbells::Doorbells;
use headwater_host::ring_memory::RingMemory;
use std::num::NonZeroU16;

pub use doorbells::{DoorbellCells, DoorbellError};
pub use host_queues::{AdminQueues, CompletionQueueSpec, QueueLimits, SubmissionQueueSpec};

/// Most I/O queues of each kind of a controller.
pub const QUEUES_MAX: u16 = 1_024;

/// Entries answered on the spot before a fetch lets its caller do something else.
const ANSWERED_MAX: u32 = 64;

/// Why a queue could not be added, found or deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArbiterError {
    /// The number is 0 or above the limit.
    #[error("{0} is out of range; choose 1 to {QUEUES_MAX}, or less if the controller granted less")]
    OutOfRange(QueueId),
    /// The number is in use.
    #[error("{0} exists already; delete it first or choose another")]
    Taken(QueueId),
    /// No such queue.
    #[error("{0} does not exist; create it first")]
    Missing(QueueId),
    /// The completion queue that a submission queue names does not exist.
    #[error("completion {0} does not exist; create it before its submission queues")]
    NoCompletionQueue(QueueId),
    /// A queue cannot have so many slots.
    #[error("a queue of {slots} slots was asked for; choose 2 to {max}")]
    Slots {
        /// What was asked for.
        slots: u32,
        /// Most that the controller takes.
        max: u32,
    },
    /// Submission queues still answer to this completion queue.
    #[error("completion {0} is in use; delete its submission queues first")]
    InUse(QueueId),
    /// No such interrupt vector.
    #[error("interrupt vector {vector} does not exist; there are {vectors}")]
    Vector {
        /// What was asked for.
        vector: u16,
        /// How many there are.
        vectors: u16,
    },
    /// The memory of the queue is not there, or is not contiguous.
    #[error("the memory of {0} is not a contiguous range of the host's memory")]
    Memory(QueueId),
}

impl ArbiterError {
    /// What a host is told (NVMe Base 2.0 sections 5.4 to 5.7).
    #[must_use]
    pub const fn status(self) -> Status {
        match self {
            Self::OutOfRange(_) | Self::Taken(_) | Self::Missing(_) => Status::INVALID_QUEUE_ID,
            Self::NoCompletionQueue(_) => Status::COMPLETION_QUEUE_INVALID,
            Self::Slots { .. } => Status::INVALID_QUEUE_SIZE,
            Self::InUse(_) => Status::INVALID_QUEUE_DELETION,
            Self::Vector { .. } => Status::INVALID_INTERRUPT_VECTOR,
            Self::Memory(_) => Status::DATA_TRANSFER_ERROR,
        }
    }
}

/// The queues and whose turn it is.
#[derive(Debug)]
pub struct Arbiter<M> {
    /// By number.
    submissions: Vec<Option<SubmissionQueue<M>>>,
    /// By number.
    completions: Vec<Option<CompletionQueue<M>>>,
    schedule: Schedule,
    /// How often the controller was reset.
    generation: u32,
    limits: QueueLimits,
    doorbells: Doorbells<M>,
    interrupts: Interrupts,
    /// Submission queues that a host has asked to delete.
    deleting: Vec<QueueId>,
}

impl<M: RingMemory> Arbiter<M> {
    /// For pairs: no queues yet, round robin. `burst` is the most commands taken from one queue in its turn.
    #[must_use]
    pub fn new(burst: NonZeroU16) -> Self {
        let limits = QueueLimits {
            submission_queues: QUEUES_MAX,
            completion_queues: QUEUES_MAX,
            slots: QueueSlots::MOST,
            vectors: 0,
        };
        let settings = ArbitrationSettings::with_burst(burst.get());
        Self::with(limits, Schedule::new(Mechanism::RoundRobin, settings))
    }

    /// For pairs: no queues yet, weighted round robin with an urgent class.
    #[must_use]
    pub fn weighted(settings: ArbitrationSettings) -> Self {
        Self {
            schedule: Schedule::new(Mechanism::WeightedWithUrgent, settings),
            ..Self::new(NonZeroU16::MIN)
        }
    }

    fn with(limits: QueueLimits, schedule: Schedule) -> Self {
        Self {
            submissions: Vec::new(),
            completions: Vec::new(),
            schedule,
            generation: 0,
            limits,
            doorbells: Doorbells::Registers,
            interrupts: Interrupts::new(limits.vectors),
            deleting: Vec::new(),
        }
    }

    /// Adds a pair at the end of the circle.
    ///
    /// # Errors
    /// [`ArbiterError::OutOfRange`] or [`ArbiterError::Taken`] by its number.
    pub fn add(&mut self, queue: IoQueue<M>) -> Result<(), ArbiterError> {
        self.add_with(queue, Priority::Medium)
    }

    /// Adds a pair at the end of the circle of its class.
    ///
    /// # Errors
    /// As for [`add`](Self::add).
    pub fn add_with(&mut self, queue: IoQueue<M>, priority: Priority) -> Result<(), ArbiterError> {
        let id = queue.view().id();
        if id == QueueId::ADMIN || id.0 > QUEUES_MAX {
            return Err(ArbiterError::OutOfRange(id));
        }
        if find(&self.submissions, id).is_some() || find(&self.completions, id).is_some() {
            return Err(ArbiterError::Taken(id));
        }
        put(&mut self.completions, id, queue.completion);
        self.put_submission(queue.submission, priority);
        Ok(())
    }

    fn put_submission(&mut self, mut queue: SubmissionQueue<M>, priority: Priority) {
        let id = queue.id();
        queue.set_generation(self.generation);
        put(&mut self.submissions, id, queue);
        self.schedule.add(id, priority);
    }

    /// The next command by turns, or `None` when no queue has one to fetch. Looks at each queue a bounded number of
    /// times, whatever hosts write meanwhile.
    #[inline]
    pub fn fetch(&mut self) -> Option<Fetched> {
        let mut answered = 0;
        let mut search = self.schedule.search();
        while let Some(id) = self.schedule.candidate(&mut search) {
            let Some((queue, to)) = both_mut(&mut self.submissions, &mut self.completions, id) else {
                self.schedule.passed(&mut search);
                continue;
            };
            match queue.fetch(to) {
                Fetch::Command(fetched) => {
                    self.schedule.took(&search);
                    return Some(fetched);
                }
                Fetch::Answered => {
                    self.schedule.took(&search);
                    answered += 1;
                    if answered == ANSWERED_MAX {
                        return None;
                    }
                }
                Fetch::Empty => self.schedule.passed(&mut search),
            }
        }
        None
    }

    /// The next admin command, whoever's turn it is: for an owner that can take no other command now.
    pub fn fetch_admin(&mut self) -> Option<Fetched> {
        let (queue, to) = both_mut(&mut self.submissions, &mut self.completions, QueueId::ADMIN)?;
        match queue.fetch(to) {
            Fetch::Command(fetched) => Some(fetched),
            Fetch::Answered | Fetch::Empty => None,
        }
    }

    /// Abort of a command that was not fetched: it is answered [`Status::ABORT_REQUESTED`] at once and never fetched. False
    /// if it does not wait in that queue. Ask first for a fetched command with this id, which counts before it.
    #[must_use]
    pub fn abort(&mut self, id: QueueId, command_id: u16) -> bool {
        both_mut(&mut self.submissions, &mut self.completions, id)
            .is_some_and(|(queue, to)| queue.abort(to, command_id))
    }

    /// Answers a command. `result` is dword 0 of the completion. The host sees it at once and is told by
    /// [`ring`](Self::ring) or [`interrupt`](Self::interrupt). A command of a time before the last
    /// [`reset`](Self::reset) ends without an answer.
    ///
    /// # Panics
    /// When the token's queue is gone: queues leave only when nothing of theirs is live.
    #[inline]
    pub fn complete(&mut self, token: CommandToken, result: u32, status: Status) {
        if token.generation() != self.generation {
            token.abandon();
            return;
        }
        let id = token.queue();
        match both_mut(&mut self.submissions, &mut self.completions, id) {
            Some((queue, to)) => queue.complete(to, token, result, status),
            None => {
                token.abandon();
                panic!("a live command outlived its queue: {}", missing(id));
            }
        }
    }

    /// Whether the answer to this command would reach anybody: false after a reset.
    #[must_use]
    pub fn is_current(&self, token: &CommandToken) -> bool {
        token.generation() == self.generation
    }

    /// Posts answers that waited for room, then calls `wake` for each pair whose host sleeps and has new completions.
    /// Once for a batch of answers.
    pub fn ring(&mut self, mut wake: impl FnMut(QueueId)) {
        for queue in self.completions.iter_mut().flatten() {
            queue.post_waiting();
            if queue.ring() == Wake::Needed {
                wake(queue.id());
            }
        }
    }

    /// Begins to delete a pair; it leaves through [`remove_drained`](Self::remove_drained).
    ///
    /// # Errors
    /// [`ArbiterError::Missing`] for a queue that is not there.
    pub fn begin_delete(&mut self, id: QueueId) -> Result<(), ArbiterError> {
        find_mut(&mut self.submissions, id).map(SubmissionQueue::begin_delete).ok_or(missing(id))
    }

    /// Gives up a pair whose host is gone; it leaves through [`remove_drained`](Self::remove_drained).
    ///
    /// # Errors
    /// [`ArbiterError::Missing`] for a queue that is not there.
    pub fn abandon(&mut self, id: QueueId) -> Result<(), ArbiterError> {
        let both = both_mut(&mut self.submissions, &mut self.completions, id);
        let (queue, to) = both.ok_or(missing(id))?;
        queue.abandon();
        to.abandon();
        Ok(())
    }

    /// Moves the deletion of one pair on; when every command has its completion the pair is taken out of the circle
    /// and handed back (ring it once more before it goes).
    ///
    /// # Errors
    /// [`ArbiterError::Missing`] for a queue that is not there.
    pub fn remove_drained(&mut self, id: QueueId) -> Result<Option<IoQueue<M>>, ArbiterError> {
        if !self.drain(id)? {
            return Ok(None);
        }
        let submission = self.take_submission(id);
        let completion = self.completions.get_mut(usize::from(id.0)).and_then(Option::take);
        Ok(submission.zip(completion).map(|(submission, completion)| IoQueue { submission, completion }))
    }

    /// Moves a deletion on. True when the submission queue can leave.
    fn drain(&mut self, id: QueueId) -> Result<bool, ArbiterError> {
        let both = both_mut(&mut self.submissions, &mut self.completions, id);
        let (queue, to) = both.ok_or(missing(id))?;
        Ok(queue.state(to) != QueueState::Serving && queue.drain(to) == Drain::Done)
    }

    fn take_submission(&mut self, id: QueueId) -> Option<SubmissionQueue<M>> {
        self.schedule.remove(id);
        self.submissions.get_mut(usize::from(id.0)).and_then(Option::take)
    }

    /// Asks every host to announce what it rings and looks once more. [`Sleep::No`] means something came meanwhile, or a
    /// doorbell lies where nobody announces it; then nothing is armed.
    pub fn prepare_sleep(&mut self) -> Sleep {
        let mut announced = true;
        for queue in self.submissions.iter().flatten() {
            queue.arm();
            announced &= queue.is_announced();
        }
        for queue in self.completions.iter().flatten() {
            queue.arm();
            announced &= queue.is_announced();
        }
        if !announced || self.queues().any(|queue| queue.submission.has_work(queue.completion)) {
            self.awake();
            return Sleep::No;
        }
        Sleep::Until
    }

    /// Says that this side is awake, so that commands cost their hosts no call into the kernel.
    pub fn awake(&self) {
        self.submissions.iter().flatten().for_each(SubmissionQueue::disarm);
        self.completions.iter().flatten().for_each(CompletionQueue::disarm);
    }

    /// A submission queue by its number.
    ///
    /// # Errors
    /// [`ArbiterError`] for a number out of range or a queue that is not there.
    pub fn queue(&self, id: QueueId) -> Result<QueueView<'_, M>, ArbiterError> {
        let submission = find(&self.submissions, id).ok_or(missing(id))?;
        let completion = find(&self.completions, submission.completion()).ok_or(missing(id))?;
        Ok(QueueView { submission, completion })
    }

    /// Every submission queue, by number.
    pub fn queues(&self) -> impl Iterator<Item = QueueView<'_, M>> {
        self.submissions.iter().flatten().filter_map(|submission| {
            let completion = find(&self.completions, submission.completion())?;
            Some(QueueView { submission, completion })
        })
    }
}

fn missing(id: QueueId) -> ArbiterError {
    if id.0 > QUEUES_MAX { ArbiterError::OutOfRange(id) } else { ArbiterError::Missing(id) }
}

fn find<Q>(queues: &[Option<Q>], id: QueueId) -> Option<&Q> {
    queues.get(usize::from(id.0)).and_then(Option::as_ref)
}

#[inline]
fn find_mut<Q>(queues: &mut [Option<Q>], id: QueueId) -> Option<&mut Q> {
    queues.get_mut(usize::from(id.0)).and_then(Option::as_mut)
}

/// A submission queue and the completion queue that it answers to.
#[inline]
fn both_mut<'a, M: RingMemory>(
    submissions: &'a mut [Option<SubmissionQueue<M>>],
    completions: &'a mut [Option<CompletionQueue<M>>],
    id: QueueId,
) -> Option<(&'a mut SubmissionQueue<M>, &'a mut CompletionQueue<M>)> {
    let queue = find_mut(submissions, id)?;
    let to = find_mut(completions, queue.completion())?;
    Some((queue, to))
}

fn put<Q>(queues: &mut Vec<Option<Q>>, id: QueueId, queue: Q) {
    let place = usize::from(id.0);
    if queues.len() <= place {
        queues.resize_with(place + 1, || None);
    }
    queues[place] = Some(queue);
}
