//! The controller side of one completion queue: posts completions of one or several submission queues in order.
//!
//! Input: completions. Output: completion entries in the host's memory. Invariant: the number of commands fetched for
//! this queue and not completed never exceeds its size; completions that do not fit wait here in order, and while any
//! waits no command is fetched for the queue.

use crate::controller::queue::QueueId;
use crate::queue_pair::ControllerEnd;
use crate::ring::completion::CompletionProducer;
use crate::ring::doorbell::{DoorbellFault, WakeDecision};
use crate::ring::submission::SubmissionConsumer;
use crate::ring::{DoorbellCell, QueueSlots};
use crate::spec::completion::CompletionWords;
use headwater_host::ring_memory::RingMemory;
use std::collections::VecDeque;

/// Commands of the admin queue that stay uncompleted for long (Asynchronous Event Requests) and so do not count against
/// the size of its completion queue.
const ADMIN_HELD_MAX: u32 = 16;

/// The lifecycle state of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompletionState {
    /// Accepts completions.
    Serving,
    /// Stopped by an invalid doorbell value: discards completions.
    Failed(DoorbellFault),
    /// Abandoned because its host is gone: discards completions.
    Abandoned,
}

/// The controller side of a completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue<M> {
    id: QueueId,
    state: CompletionState,
    /// A fault that was not reported yet.
    unreported_fault: Option<DoorbellFault>,
    producer: CompletionProducer<M>,
    /// Commands fetched for this queue and not completed.
    live: u32,
    /// The maximum of `live`.
    live_max: u32,
    /// Completions that found the queue full, first in first out.
    waiting: VecDeque<CompletionWords>,
    /// The interrupt vector, if it has one.
    vector: Option<u16>,
}

impl<M: RingMemory> CompletionQueue<M> {
    /// Creates a queue over its own memory.
    pub(crate) fn over(id: QueueId, memory: M, slots: QueueSlots, vector: Option<u16>) -> Self {
        Self::new(id, CompletionProducer::over(memory, slots), slots, vector)
    }

    /// Splits the device end of a pair into its two halves.
    pub(crate) fn of_pair(id: QueueId, end: ControllerEnd<M>) -> (SubmissionConsumer<M>, Self) {
        (end.submissions, Self::new(id, end.completions, end.layout.completion_slots, None))
    }

    fn new(id: QueueId, producer: CompletionProducer<M>, slots: QueueSlots, vector: Option<u16>) -> Self {
        let held = if id == QueueId::ADMIN { ADMIN_HELD_MAX } else { 0 };
        let live_max = slots.entries_max() + held;
        // Every live command may find the queue full, plus one completion of a duplicate id.
        let waiting_max = usize::try_from(live_max).map_or(0, |max| max + 1);
        Self {
            id,
            state: CompletionState::Serving,
            unreported_fault: None,
            producer,
            live: 0,
            live_max,
            waiting: VecDeque::with_capacity(waiting_max),
            vector,
        }
    }

    pub(crate) fn id(&self) -> QueueId {
        self.id
    }

    pub(crate) fn state(&self) -> CompletionState {
        self.state
    }

    pub(crate) fn vector(&self) -> Option<u16> {
        self.vector
    }

    /// Returns the number of completions that wait for room.
    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of waiting completions of one submission queue.
    pub(crate) fn waiting_of(&self, submission: QueueId) -> usize {
        self.waiting.iter().filter(|answer| answer.entry().submission_queue.get() == submission.0).count()
    }

    /// Returns true if a command may be fetched whose completion is posted here.
    #[inline]
    pub(crate) fn may_fetch(&self) -> bool {
        self.waiting.is_empty() && self.live < self.live_max && self.state == CompletionState::Serving
    }

    /// Counts a fetched command whose completion will be posted here.
    #[inline]
    pub(crate) fn count_fetched(&mut self) {
        self.live += 1;
    }

    /// Posts the completion of a command that was counted when it was fetched.
    #[inline]
    pub(crate) fn post_counted(&mut self, answer: CompletionWords) {
        self.live -= 1;
        if self.waiting.is_empty() && self.post(answer) {
            return;
        }
        self.waiting.push_back(answer);
    }

    /// Posts a completion that was not counted before: of an entry that never became a command.
    #[cold]
    pub(crate) fn post_uncounted(&mut self, answer: CompletionWords) {
        self.live += 1;
        self.post_counted(answer);
    }

    /// Posts the completions that wait for room, in order, until the queue is full.
    #[inline]
    pub(crate) fn post_waiting(&mut self) {
        if !self.waiting.is_empty() {
            self.post_waiting_slow();
        }
    }

    #[cold]
    fn post_waiting_slow(&mut self) {
        while let Some(&answer) = self.waiting.front() {
            if !self.post(answer) {
                return;
            }
            // Empty if the host's doorbell turned out invalid in `post`.
            self.waiting.pop_front();
        }
    }

    /// Posts a completion, or discards it if the queue does not serve. Returns false if it must wait.
    #[inline]
    fn post(&mut self, answer: CompletionWords) -> bool {
        if self.state != CompletionState::Serving {
            return true;
        }
        if self.producer.is_full()
            && let Err(fault) = self.producer.refresh()
        {
            self.fail(fault);
            return true;
        }
        self.producer.post_words(answer).is_ok()
    }

    #[cold]
    fn fail(&mut self, fault: DoorbellFault) {
        self.state = CompletionState::Failed(fault);
        self.unreported_fault = Some(fault);
        self.waiting.clear();
    }

    /// Discards completions from now on, because the host is gone.
    pub(crate) fn abandon(&mut self) {
        self.state = CompletionState::Abandoned;
        self.waiting.clear();
    }

    /// Issues a fence and returns whether the host of a pair must be woken for the completions since the last call.
    #[inline]
    pub(crate) fn ring(&mut self) -> WakeDecision {
        self.producer.ring()
    }

    /// Returns the number of completions posted since the last call, for interrupts.
    #[inline]
    pub(crate) fn take_unannounced(&mut self) -> u32 {
        self.producer.take_unannounced()
    }

    /// Returns true if the host has completions that it has not consumed.
    pub(crate) fn has_unreaped(&self) -> bool {
        self.state == CompletionState::Serving && self.producer.has_unreaped()
    }

    /// Returns true if completions wait and the host released slots.
    pub(crate) fn has_work(&self) -> bool {
        !self.waiting.is_empty() && self.producer.head_moved()
    }

    /// Applies a write to the head doorbell register.
    pub(crate) fn write_doorbell(&mut self, value: u32) -> Result<(), DoorbellFault> {
        if self.state != CompletionState::Serving {
            return Ok(());
        }
        self.producer.write_doorbell(value).inspect_err(|&fault| {
            self.fail(fault);
            self.unreported_fault = None;
        })
    }

    /// Moves the head doorbell to a memory cell.
    pub(crate) fn set_doorbell_cell(&mut self, cell: DoorbellCell<M>) {
        self.producer.set_doorbell_cell(cell);
    }

    /// Returns a fault that was found while posting and not reported yet.
    pub(crate) fn take_fault(&mut self) -> Option<DoorbellFault> {
        self.unreported_fault.take()
    }

    /// Arms a notification from the host for slots that it releases, if completions wait for them.
    pub(crate) fn arm(&self) {
        if !self.waiting.is_empty() {
            self.producer.arm();
        }
    }

    /// Withdraws the request for a notification.
    pub(crate) fn disarm(&self) {
        self.producer.disarm();
    }

    /// Returns true if an armed host sends a notification when it releases slots.
    pub(crate) fn sends_notifications(&self) -> bool {
        self.producer.sends_notifications()
    }
}
