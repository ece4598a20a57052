//! The queues of a controller: fetches commands by arbitration and posts completions in order.
//!
//! Input: queues, added in pairs or created separately by a host. Output: their commands, in the order of
//! [`QueueArbitration`], and a completion for each. Invariant: a queue is removed only when it has no live command, or a reset
//! removes all queues at once; a completion against a token from before the reset is discarded. Fetching does not
//! allocate.

mod doorbells;
mod host_queues;

use crate::controller::completion_queue::CompletionQueue;
use crate::controller::interrupts::InterruptVectors;
use crate::controller::queue::{
    ControllerQueuePair, DrainProgress, FetchOutcome, FetchedCommand, QueueId, QueueState, QueueView,
};
use crate::controller::schedule::{ArbitrationSchedule, ArbitrationSettings, QueueArbitration};
use crate::controller::submission_queue::SubmissionQueue;
use crate::controller::token::CommandToken;
use crate::queue_pair::SleepDecision;
use crate::ring::QueueSlots;
use crate::ring::doorbell::WakeDecision;
use crate::spec::priority::QueuePriority;
use crate::spec::status::Status;
use doorbells::DoorbellSource;
use headwater_host::ring_memory::RingMemory;
use std::num::NonZeroU16;

pub use doorbells::{DoorbellCells, DoorbellError};
pub use host_queues::{AdminQueues, CompletionQueueSpec, QueueLimits, SubmissionQueueSpec};

/// The maximum number of I/O queues of each kind in a controller.
pub const QUEUES_MAX: u16 = 1_024;

/// The maximum number of entries completed at once within one fetch, before control returns to the caller.
const COMPLETED_PER_FETCH_MAX: u32 = 64;

/// The reason why a queue could not be added, found or deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArbiterError {
    /// The number is 0 or above the limit.
    #[error("{0} is out of range; choose 1 to {QUEUES_MAX}, or less if the controller granted less")]
    OutOfRange(QueueId),
    /// The number is in use.
    #[error("{0} exists already; delete it first or choose another")]
    Taken(QueueId),
    /// The queue does not exist.
    #[error("{0} does not exist; create it first")]
    Missing(QueueId),
    /// The completion queue that a submission queue names does not exist.
    #[error("completion {0} does not exist; create it before its submission queues")]
    NoCompletionQueue(QueueId),
    /// The number of slots is not allowed.
    #[error("a queue of {slots} slots was requested; choose 2 to {max}")]
    Slots {
        /// The requested number.
        slots: u32,
        /// The maximum that the controller accepts.
        max: u32,
    },
    /// Submission queues still use this completion queue.
    #[error("completion {0} is in use; delete its submission queues first")]
    InUse(QueueId),
    /// The interrupt vector does not exist.
    #[error("interrupt vector {vector} does not exist; there are {vectors}")]
    Vector {
        /// The requested vector.
        vector: u16,
        /// The number of vectors.
        vectors: u16,
    },
    /// The memory of the queue is missing or not contiguous.
    #[error("the memory of {0} is not a contiguous range of the host's memory")]
    Memory(QueueId),
}

impl ArbiterError {
    /// Returns the status that the host receives (NVMe Base 2.0 sections 5.4 to 5.7).
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

/// The queues of a controller and the schedule that arbitrates among them.
#[derive(Debug)]
pub struct QueueArbiter<M> {
    /// Indexed by queue number.
    submissions: Vec<Option<SubmissionQueue<M>>>,
    /// Indexed by queue number.
    completions: Vec<Option<CompletionQueue<M>>>,
    schedule: ArbitrationSchedule,
    /// The number of controller resets.
    generation: u32,
    limits: QueueLimits,
    doorbells: DoorbellSource<M>,
    interrupts: InterruptVectors,
    /// Submission queues that a host requested to delete and that still drain.
    deleting: Vec<QueueId>,
}

impl<M: RingMemory> QueueArbiter<M> {
    /// Creates an arbiter for pairs: no queues, round robin. `burst` is the maximum number of commands taken from one
    /// queue in a row.
    #[must_use]
    pub fn new(burst: NonZeroU16) -> Self {
        let limits = QueueLimits {
            submission_queues: QUEUES_MAX,
            completion_queues: QUEUES_MAX,
            slots: QueueSlots::MAX,
            vectors: 0,
        };
        let settings = ArbitrationSettings::with_burst(burst.get());
        Self::with(limits, ArbitrationSchedule::new(QueueArbitration::RoundRobin, settings))
    }

    /// Creates an arbiter for pairs: no queues, weighted round robin with an urgent class.
    #[must_use]
    pub fn weighted(settings: ArbitrationSettings) -> Self {
        Self {
            schedule: ArbitrationSchedule::new(QueueArbitration::WeightedWithUrgent, settings),
            ..Self::new(NonZeroU16::MIN)
        }
    }

    fn with(limits: QueueLimits, schedule: ArbitrationSchedule) -> Self {
        Self {
            submissions: Vec::new(),
            completions: Vec::new(),
            schedule,
            generation: 0,
            limits,
            doorbells: DoorbellSource::Registers,
            interrupts: InterruptVectors::new(limits.vectors),
            deleting: Vec::new(),
        }
    }

    /// Adds a pair at the end of the medium-priority class.
    ///
    /// # Errors
    /// [`ArbiterError::OutOfRange`] or [`ArbiterError::Taken`] by its number.
    pub fn add(&mut self, queue: ControllerQueuePair<M>) -> Result<(), ArbiterError> {
        self.add_with(queue, QueuePriority::Medium)
    }

    /// Adds a pair at the end of its priority class.
    ///
    /// # Errors
    /// As for [`add`](Self::add).
    pub fn add_with(
        &mut self,
        queue: ControllerQueuePair<M>,
        priority: QueuePriority,
    ) -> Result<(), ArbiterError> {
        let id = queue.view().id();
        if id == QueueId::ADMIN || id.0 > QUEUES_MAX {
            return Err(ArbiterError::OutOfRange(id));
        }
        if find(&self.submissions, id).is_some() || find(&self.completions, id).is_some() {
            return Err(ArbiterError::Taken(id));
        }
        insert_at(&mut self.completions, id, queue.completion);
        self.insert_submission(queue.submission, priority);
        Ok(())
    }

    fn insert_submission(&mut self, mut queue: SubmissionQueue<M>, priority: QueuePriority) {
        let id = queue.id();
        queue.set_generation(self.generation);
        insert_at(&mut self.submissions, id, queue);
        self.schedule.add(id, priority);
    }

    /// Returns the next command by arbitration, or `None` when no queue has an entry to fetch. Polls each queue a
    /// bounded number of times, also while hosts keep writing.
    #[inline]
    pub fn fetch(&mut self) -> Option<FetchedCommand> {
        let mut answered = 0;
        let mut search = self.schedule.search();
        while let Some(id) = self.schedule.candidate(&mut search) {
            let Some((queue, to)) =
                queue_and_completion_mut(&mut self.submissions, &mut self.completions, id)
            else {
                self.schedule.record_empty(&mut search);
                continue;
            };
            match queue.fetch(to) {
                FetchOutcome::Command(fetched) => {
                    self.schedule.record_entry(&search);
                    return Some(fetched);
                }
                FetchOutcome::Completed => {
                    self.schedule.record_entry(&search);
                    answered += 1;
                    if answered == COMPLETED_PER_FETCH_MAX {
                        return None;
                    }
                }
                FetchOutcome::Empty => self.schedule.record_empty(&mut search),
            }
        }
        None
    }

    /// Returns the next admin command regardless of arbitration, for an owner that can accept no other command now.
    pub fn fetch_admin(&mut self) -> Option<FetchedCommand> {
        let (queue, to) =
            queue_and_completion_mut(&mut self.submissions, &mut self.completions, QueueId::ADMIN)?;
        match queue.fetch(to) {
            FetchOutcome::Command(fetched) => Some(fetched),
            FetchOutcome::Completed | FetchOutcome::Empty => None,
        }
    }

    /// Aborts a command that was not fetched: completes it with [`Status::ABORT_REQUESTED`] at once and never fetches
    /// it. Returns false if it does not wait in that queue. First check for a fetched command with this id, which takes
    /// precedence.
    #[must_use]
    pub fn abort(&mut self, id: QueueId, command_id: u16) -> bool {
        queue_and_completion_mut(&mut self.submissions, &mut self.completions, id)
            .is_some_and(|(queue, to)| queue.abort(to, command_id))
    }

    /// Completes a command. `result` is dword 0 of the completion. The host can read it at once and is notified by
    /// [`ring`](Self::ring) or [`fire_interrupts`](Self::fire_interrupts). Discards the completion of a command fetched before the
    /// last [`reset`](Self::reset).
    ///
    /// # Panics
    /// If the token's queue is gone: queues are removed only when they have no live command.
    #[inline]
    pub fn complete(&mut self, token: CommandToken, result: u32, status: Status) {
        if token.generation() != self.generation {
            token.abandon();
            return;
        }
        let id = token.queue();
        match queue_and_completion_mut(&mut self.submissions, &mut self.completions, id) {
            Some((queue, to)) => queue.complete(to, token, result, status),
            None => {
                token.abandon();
                panic!("a live command outlived its queue: {}", missing(id));
            }
        }
    }

    /// Returns true if the completion of this command would reach its host: false after a reset.
    #[must_use]
    pub fn is_current(&self, token: &CommandToken) -> bool {
        token.generation() == self.generation
    }

    /// Posts completions that wait for room, then calls `wake` for each pair whose host sleeps and has new completions.
    /// Call it once for a batch of completions.
    pub fn ring(&mut self, mut wake: impl FnMut(QueueId)) {
        for queue in self.completions.iter_mut().flatten() {
            queue.post_waiting();
            if queue.ring() == WakeDecision::Needed {
                wake(queue.id());
            }
        }
    }

    /// Begins to delete a pair; [`remove_drained`](Self::remove_drained) removes it.
    ///
    /// # Errors
    /// [`ArbiterError::Missing`] for a queue that does not exist.
    pub fn begin_delete(&mut self, id: QueueId) -> Result<(), ArbiterError> {
        find_mut(&mut self.submissions, id).map(SubmissionQueue::begin_delete).ok_or(missing(id))
    }

    /// Abandons a pair whose host is gone; [`remove_drained`](Self::remove_drained) removes it.
    ///
    /// # Errors
    /// [`ArbiterError::Missing`] for a queue that does not exist.
    pub fn abandon(&mut self, id: QueueId) -> Result<(), ArbiterError> {
        let both = queue_and_completion_mut(&mut self.submissions, &mut self.completions, id);
        let (queue, to) = both.ok_or(missing(id))?;
        queue.abandon();
        to.abandon();
        Ok(())
    }

    /// Advances the deletion of one pair. When every command has its completion, removes the pair and returns it (the
    /// caller rings it once more before dropping it).
    ///
    /// # Errors
    /// [`ArbiterError::Missing`] for a queue that does not exist.
    pub fn remove_drained(&mut self, id: QueueId) -> Result<Option<ControllerQueuePair<M>>, ArbiterError> {
        if !self.drain(id)? {
            return Ok(None);
        }
        let submission = self.take_submission(id);
        let completion = self.completions.get_mut(usize::from(id.0)).and_then(Option::take);
        Ok(submission
            .zip(completion)
            .map(|(submission, completion)| ControllerQueuePair { submission, completion }))
    }

    /// Advances a deletion. Returns true when the submission queue can be removed.
    fn drain(&mut self, id: QueueId) -> Result<bool, ArbiterError> {
        let both = queue_and_completion_mut(&mut self.submissions, &mut self.completions, id);
        let (queue, to) = both.ok_or(missing(id))?;
        Ok(queue.state(to) != QueueState::Serving && queue.drain(to) == DrainProgress::Done)
    }

    fn take_submission(&mut self, id: QueueId) -> Option<SubmissionQueue<M>> {
        self.schedule.remove(id);
        self.submissions.get_mut(usize::from(id.0)).and_then(Option::take)
    }

    /// Arms a notification from every host for its next doorbell write, then polls once more. Returns
    /// [`SleepDecision::WorkPending`], with nothing armed, if work arrived in between or a doorbell lies where hosts send no
    /// notification.
    pub fn prepare_sleep(&mut self) -> SleepDecision {
        let mut announced = true;
        for queue in self.submissions.iter().flatten() {
            queue.arm();
            announced &= queue.sends_notifications();
        }
        for queue in self.completions.iter().flatten() {
            queue.arm();
            announced &= queue.sends_notifications();
        }
        if !announced || self.queues().any(|queue| queue.submission.has_work(queue.completion)) {
            self.disarm();
            return SleepDecision::WorkPending;
        }
        SleepDecision::UntilWoken
    }

    /// Disarms the notifications, so that submitting a command costs hosts no system call.
    pub fn disarm(&self) {
        self.submissions.iter().flatten().for_each(SubmissionQueue::disarm);
        self.completions.iter().flatten().for_each(CompletionQueue::disarm);
    }

    /// Returns a view of a submission queue by its number.
    ///
    /// # Errors
    /// [`ArbiterError`] for a number out of range or a queue that does not exist.
    pub fn queue(&self, id: QueueId) -> Result<QueueView<'_, M>, ArbiterError> {
        let submission = find(&self.submissions, id).ok_or(missing(id))?;
        let completion = find(&self.completions, submission.completion()).ok_or(missing(id))?;
        Ok(QueueView { submission, completion })
    }

    /// Returns views of all submission queues, in order of their numbers.
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

/// Returns a submission queue and the completion queue that it posts to.
#[inline]
fn queue_and_completion_mut<'a, M: RingMemory>(
    submissions: &'a mut [Option<SubmissionQueue<M>>],
    completions: &'a mut [Option<CompletionQueue<M>>],
    id: QueueId,
) -> Option<(&'a mut SubmissionQueue<M>, &'a mut CompletionQueue<M>)> {
    let queue = find_mut(submissions, id)?;
    let to = find_mut(completions, queue.completion())?;
    Some((queue, to))
}

fn insert_at<Q>(queues: &mut Vec<Option<Q>>, id: QueueId, queue: Q) {
    let index = usize::from(id.0);
    if queues.len() <= index {
        queues.resize_with(index + 1, || None);
    }
    queues[index] = Some(queue);
}
