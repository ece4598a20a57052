//! Queues that a host creates and deletes one by one (NVMe Base 2.0 sections 5.4 to 5.7), and the admin pair.
//!
//! Input: the fields of create and delete commands, checked here. Output: queues over the host's memory, or the error
//! whose status the specification names. Invariant: a submission queue always has its completion queue, which cannot be
//! removed before it.

use super::{ArbiterError, QueueArbiter, find, find_mut, insert_at};
use crate::controller::arbiter::doorbells::DoorbellSource;
use crate::controller::completion_queue::CompletionQueue;
use crate::controller::interrupts::{
    InterruptCoalescing, InterruptUrgency, InterruptVectors, VectorCoalescing,
};
use crate::controller::queue::{QueueId, QueueKind};
use crate::controller::schedule::{ArbitrationSchedule, ArbitrationSettings, QueueArbitration};
use crate::controller::submission_queue::SubmissionQueue;
use crate::ring::QueueSlots;
use crate::ring::submission::SubmissionConsumer;
use crate::spec::command::SUBMISSION_WORDS;
use crate::spec::completion::COMPLETION_WORDS;
use crate::spec::priority::QueuePriority;
use headwater_host::clock::Nanos;
use headwater_host::ring_memory::RingMemory;

/// The queue resources that a controller grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// The number of I/O submission queues: their ids are 1 to this.
    pub submission_queues: u16,
    /// The number of I/O completion queues: their ids are 1 to this.
    pub completion_queues: u16,
    /// The maximum number of slots of an I/O queue (CAP.MQES plus one).
    pub slots: QueueSlots,
    /// The number of interrupt vectors.
    pub vectors: u16,
}

/// The admin pair, as set by AQA, ASQ and ACQ. The memory of each queue holds its entries only.
#[derive(Debug)]
pub struct AdminQueues<M> {
    /// Submission entries.
    pub submission: M,
    /// Slots of the submission queue.
    pub submission_slots: QueueSlots,
    /// Completion entries.
    pub completion: M,
    /// Slots of the completion queue.
    pub completion_slots: QueueSlots,
    /// The interrupt vector, 0, if the transport has interrupts.
    pub vector: Option<u16>,
}

/// The fields of a Create I/O Completion Queue command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionQueueSpec {
    /// Slots: the queue size plus one.
    pub slots: u32,
    /// The interrupt vector, or none if interrupts are not enabled.
    pub vector: Option<u16>,
}

/// The fields of a Create I/O Submission Queue command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubmissionQueueSpec {
    /// Slots: the queue size plus one.
    pub slots: u32,
    /// The completion queue that it posts to.
    pub completion: QueueId,
    /// Its priority class.
    pub priority: QueuePriority,
    /// The commands that it accepts.
    pub kind: QueueKind,
}

impl<M: RingMemory> QueueArbiter<M> {
    /// Creates an arbiter for a host that creates its queues itself: no queues, round robin.
    #[must_use]
    pub fn for_host(limits: QueueLimits) -> Self {
        Self::with(
            limits,
            ArbitrationSchedule::new(QueueArbitration::RoundRobin, ArbitrationSettings::from_dword(0)),
        )
    }

    /// Resets the controller: removes every queue at once, with the doorbell memory and every setting. Commands that
    /// were live keep their tokens, and their completions are discarded. From then on `mechanism` selects the queues.
    pub fn reset(&mut self, mechanism: QueueArbitration) {
        self.submissions.clear();
        self.completions.clear();
        self.deleting.clear();
        self.doorbells = DoorbellSource::Registers;
        self.schedule = ArbitrationSchedule::new(mechanism, ArbitrationSettings::from_dword(0));
        self.interrupts = InterruptVectors::new(self.limits.vectors);
        self.generation = self.generation.wrapping_add(1);
    }

    /// Sets the number of queues of each kind that the host may create, as Number of Queues granted: their ids are 1 to
    /// these.
    pub fn grant_queues(&mut self, submission_queues: u16, completion_queues: u16) {
        self.limits.submission_queues = submission_queues;
        self.limits.completion_queues = completion_queues;
    }

    /// Sets the Arbitration feature.
    pub fn set_arbitration(&mut self, settings: ArbitrationSettings) {
        self.schedule.set(settings);
    }

    /// Sets the Interrupt Coalescing feature.
    pub fn set_coalescing(&mut self, coalescing: InterruptCoalescing) {
        self.interrupts.set_coalescing(coalescing);
    }

    /// Sets the Interrupt Vector Configuration feature.
    ///
    /// # Errors
    /// [`ArbiterError::Vector`] for a vector that does not exist.
    pub fn set_vector_coalescing(
        &mut self,
        vector: u16,
        coalescing: VectorCoalescing,
    ) -> Result<(), ArbiterError> {
        if self.interrupts.set_vector(vector, coalescing) { Ok(()) } else { Err(self.no_vector(vector)) }
    }

    /// Creates queue 0 of both kinds, when a host enables the controller.
    ///
    /// # Errors
    /// [`ArbiterError::Taken`] if the admin queues exist; [`ArbiterError::Memory`] for less memory than slots.
    pub fn create_admin_queues(&mut self, queues: AdminQueues<M>) -> Result<(), ArbiterError> {
        let id = QueueId::ADMIN;
        if find(&self.submissions, id).is_some() {
            return Err(ArbiterError::Taken(id));
        }
        let AdminQueues { submission, submission_slots, completion, completion_slots, vector } = queues;
        if submission.words() < submission_words(submission_slots)
            || completion.words() < completion_words(completion_slots)
        {
            return Err(ArbiterError::Memory(id));
        }
        let completion = CompletionQueue::over(id, completion, completion_slots, vector);
        insert_at(&mut self.completions, id, completion);
        let consumer = SubmissionConsumer::over(submission, submission_slots);
        let queue = SubmissionQueue::new(id, id, QueueKind::Standard, consumer);
        self.insert_submission(queue, QueuePriority::Urgent);
        Ok(())
    }

    /// Creates an I/O completion queue. Calls `memory` with the number of words of its entries after all other checks
    /// passed.
    ///
    /// # Errors
    /// [`ArbiterError`], whose status the host receives.
    pub fn create_completion_queue(
        &mut self,
        id: QueueId,
        spec: CompletionQueueSpec,
        memory: impl FnOnce(usize) -> Option<M>,
    ) -> Result<(), ArbiterError>
    where
        M: Clone,
    {
        check_new_io_queue(id, self.limits.completion_queues, &self.completions)?;
        let slots = self.slots(spec.slots)?;
        if let Some(vector) = spec.vector
            && !self.interrupts.has_vector(vector)
        {
            return Err(self.no_vector(vector));
        }
        let memory = request_memory(completion_words(slots), memory).ok_or(ArbiterError::Memory(id))?;
        let mut queue = CompletionQueue::over(id, memory, slots, spec.vector);
        if let Some(cell) = self.doorbells.completion(id) {
            queue.set_doorbell_cell(cell);
        }
        insert_at(&mut self.completions, id, queue);
        Ok(())
    }

    /// Creates an I/O submission queue. Calls `memory` with the number of words of its entries after all other checks
    /// passed.
    ///
    /// # Errors
    /// [`ArbiterError`], whose status the host receives.
    pub fn create_submission_queue(
        &mut self,
        id: QueueId,
        spec: SubmissionQueueSpec,
        memory: impl FnOnce(usize) -> Option<M>,
    ) -> Result<(), ArbiterError>
    where
        M: Clone,
    {
        check_new_io_queue(id, self.limits.submission_queues, &self.submissions)?;
        let completion = spec.completion;
        if completion == QueueId::ADMIN || completion.0 > self.limits.completion_queues {
            return Err(ArbiterError::OutOfRange(completion));
        }
        if find(&self.completions, completion).is_none() {
            return Err(ArbiterError::NoCompletionQueue(completion));
        }
        let slots = self.slots(spec.slots)?;
        let memory = request_memory(submission_words(slots), memory).ok_or(ArbiterError::Memory(id))?;
        let consumer = SubmissionConsumer::over(memory, slots);
        let mut queue = SubmissionQueue::new(id, completion, spec.kind, consumer);
        if let Some(cell) = self.doorbells.submission(id) {
            queue.set_doorbell_cell(cell);
        }
        self.insert_submission(queue, spec.priority);
        Ok(())
    }

    /// Begins to delete an I/O submission queue, which accepts no more commands. The delete command is completed when
    /// [`next_deleted`](Self::next_deleted) returns the queue.
    ///
    /// # Errors
    /// [`ArbiterError`], whose status the host receives.
    pub fn delete_submission_queue(&mut self, id: QueueId) -> Result<(), ArbiterError> {
        if id == QueueId::ADMIN || id.0 > self.limits.submission_queues {
            return Err(ArbiterError::OutOfRange(id));
        }
        if self.deleting.contains(&id) {
            return Err(ArbiterError::Missing(id));
        }
        self.begin_delete(id)?;
        self.deleting.push(id);
        Ok(())
    }

    /// Removes and returns a submission queue whose deletion is complete: every command that it accepted has its
    /// completion in the host's memory. Call it after completing commands, until it returns `None`.
    pub fn next_deleted(&mut self) -> Option<QueueId> {
        for at in 0..self.deleting.len() {
            let id = self.deleting[at];
            if self.drain(id) == Ok(true) {
                self.deleting.swap_remove(at);
                self.take_submission(id);
                return Some(id);
            }
        }
        None
    }

    /// Deletes an I/O completion queue at once.
    ///
    /// # Errors
    /// [`ArbiterError`], whose status the host receives: [`ArbiterError::InUse`] while a submission queue posts to it,
    /// including one that is being deleted.
    pub fn delete_completion_queue(&mut self, id: QueueId) -> Result<(), ArbiterError> {
        if id == QueueId::ADMIN || id.0 > self.limits.completion_queues {
            return Err(ArbiterError::OutOfRange(id));
        }
        if find(&self.completions, id).is_none() {
            return Err(ArbiterError::Missing(id));
        }
        if self.submissions.iter().flatten().any(|queue| queue.completion() == id) {
            return Err(ArbiterError::InUse(id));
        }
        self.completions[usize::from(id.0)] = None;
        Ok(())
    }

    /// Posts completions that wait for room, then calls `fire` for each interrupt vector that is due: it has
    /// completions to announce, and no coalescing holds them back.
    pub fn fire_interrupts(&mut self, now: Nanos, fire: impl FnMut(u16)) {
        for queue in self.completions.iter_mut().flatten() {
            queue.post_waiting();
            let posted = queue.take_unannounced();
            if posted > 0
                && let Some(vector) = queue.vector()
            {
                let haste = if queue.id() == QueueId::ADMIN {
                    InterruptUrgency::Immediate
                } else {
                    InterruptUrgency::Coalesced
                };
                self.interrupts.record_posted(vector, posted, haste, now);
            }
        }
        self.interrupts.fire_due(now, fire);
    }

    /// Returns the deadline for the next call of [`fire_interrupts`](Self::fire_interrupts), if coalescing holds completions back.
    #[must_use]
    pub fn next_interrupt(&self) -> Option<Nanos> {
        self.interrupts.next_deadline()
    }

    /// Returns true if a completion queue of this vector holds completions that its host has not consumed: the level of
    /// an interrupt pin.
    #[must_use]
    pub fn has_unreaped(&self, vector: u16) -> bool {
        let mut queues = self.completions.iter().flatten();
        queues.any(|queue| queue.vector() == Some(vector) && queue.has_unreaped())
    }

    pub(super) fn completion_mut(&mut self, id: QueueId) -> Option<&mut CompletionQueue<M>> {
        find_mut(&mut self.completions, id)
    }

    fn slots(&self, slots: u32) -> Result<QueueSlots, ArbiterError> {
        let max = self.limits.slots;
        let out = ArbiterError::Slots { slots, max: max.get() };
        QueueSlots::new(slots).ok().filter(|&slots| slots <= max).ok_or(out)
    }

    fn no_vector(&self, vector: u16) -> ArbiterError {
        ArbiterError::Vector { vector, vectors: self.interrupts.vectors() }
    }
}

/// Checks that an I/O queue may get this number.
fn check_new_io_queue<Q>(id: QueueId, max: u16, queues: &[Option<Q>]) -> Result<(), ArbiterError> {
    if id == QueueId::ADMIN || id.0 > max {
        return Err(ArbiterError::OutOfRange(id));
    }
    if find(queues, id).is_some() { Err(ArbiterError::Taken(id)) } else { Ok(()) }
}

fn request_memory<M: RingMemory>(words: usize, memory: impl FnOnce(usize) -> Option<M>) -> Option<M> {
    memory(words).filter(|memory| memory.words() >= words)
}

const fn submission_words(slots: QueueSlots) -> usize {
    slots.get() as usize * SUBMISSION_WORDS
}

const fn completion_words(slots: QueueSlots) -> usize {
    slots.get() as usize * COMPLETION_WORDS
}
