//! The controller's end of one completion queue: answers of one or several submission queues, in the order they came.
//!
//! In: answers. Out: completion entries in the host's memory. Invariant: what was fetched for this queue and is not
//! answered never exceeds its size; answers that do not fit wait here in order, and while any waits nothing is fetched
//! for it.

use crate::controller::queue::QueueId;
use crate::queue_pair::DeviceEnd;
use crate::ring::completion::CompletionProducer;
use crate::ring::doorbell::{DoorbellFault, Wake};
use crate::ring::submission::SubmissionConsumer;
use crate::ring::{DoorbellCell, QueueSlots};
use crate::spec::completion::CompletionWords;
use headwater_host::ring_memory::RingMemory;
use std::collections::VecDeque;

/// Commands of the admin queue that stay without an answer for long (Asynchronous Event Requests) and so take no part
/// in what its completion queue bounds.
const ADMIN_HELD_MAX: u32 = 16;

/// Where a completion queue is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompletionState {
    /// Takes answers.
    Serving,
    /// Its host wrote an impossible doorbell: answers go nowhere.
    Failed(DoorbellFault),
    /// Its host is gone: answers go nowhere.
    Abandoned,
}

/// The controller's end.
#[derive(Debug)]
pub(crate) struct CompletionQueue<M> {
    id: QueueId,
    state: CompletionState,
    /// A fault that nobody was told of yet.
    untold: Option<DoorbellFault>,
    producer: CompletionProducer<M>,
    /// Commands fetched for this queue and not answered.
    live: u32,
    /// Most of them.
    live_max: u32,
    /// Answers that found the queue full, first in first out.
    waiting: VecDeque<CompletionWords>,
    /// The interrupt vector, if it has one.
    vector: Option<u16>,
}

impl<M: RingMemory> CompletionQueue<M> {
    /// A queue in memory of its own.
    pub(crate) fn over(id: QueueId, memory: M, slots: QueueSlots, vector: Option<u16>) -> Self {
        Self::new(id, CompletionProducer::over(memory, slots), slots, vector)
    }

    /// The two halves of a pair's end.
    pub(crate) fn of_pair(id: QueueId, end: DeviceEnd<M>) -> (SubmissionConsumer<M>, Self) {
        (end.submissions, Self::new(id, end.completions, end.layout.completion_slots, None))
    }

    fn new(id: QueueId, producer: CompletionProducer<M>, slots: QueueSlots, vector: Option<u16>) -> Self {
        let held = if id == QueueId::ADMIN { ADMIN_HELD_MAX } else { 0 };
        let live_max = slots.entries_max() + held;
        // Every live command may find the queue full, and one more answer of a duplicate id.
        let waiting_max = usize::try_from(live_max).map_or(0, |max| max + 1);
        Self {
            id,
            state: CompletionState::Serving,
            untold: None,
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

    /// Answers that wait for room.
    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Of these, answers of one submission queue.
    pub(crate) fn waiting_of(&self, submission: QueueId) -> usize {
        self.waiting.iter().filter(|answer| answer.entry().submission_queue.get() == submission.0).count()
    }

    /// Whether a command may be fetched whose answer comes here.
    #[inline]
    pub(crate) fn may_fetch(&self) -> bool {
        self.waiting.is_empty() && self.live < self.live_max && self.state == CompletionState::Serving
    }

    /// A command was fetched whose answer will come here.
    #[inline]
    pub(crate) fn expect_answer(&mut self) {
        self.live += 1;
    }

    /// The answer of a command that was expected.
    #[inline]
    pub(crate) fn answer_expected(&mut self, answer: CompletionWords) {
        self.live -= 1;
        if self.waiting.is_empty() && self.post(answer) {
            return;
        }
        self.waiting.push_back(answer);
    }

    /// An answer that nobody expected: of an entry that never became a command.
    #[cold]
    pub(crate) fn answer(&mut self, answer: CompletionWords) {
        self.live += 1;
        self.answer_expected(answer);
    }

    /// Posts the answers that waited, in order, as far as there is room.
    #[inline]
    pub(crate) fn post_waiting(&mut self) {
        if !self.waiting.is_empty() {
            self.post_those_waiting();
        }
    }

    #[cold]
    fn post_those_waiting(&mut self) {
        while let Some(&answer) = self.waiting.front() {
            if !self.post(answer) {
                return;
            }
            // Empty if the host's doorbell turned out impossible meanwhile.
            self.waiting.pop_front();
        }
    }

    /// Posts an answer, or forgets it where nobody can read it. False when it must wait.
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
        self.untold = Some(fault);
        self.waiting.clear();
    }

    /// Forgets answers: the host is gone.
    pub(crate) fn abandon(&mut self) {
        self.state = CompletionState::Abandoned;
        self.waiting.clear();
    }

    /// Fence, ring: whether the host of a pair must be woken for the answers since the last call.
    #[inline]
    pub(crate) fn ring(&mut self) -> Wake {
        self.producer.ring()
    }

    /// Answers posted since the last call, for interrupts.
    #[inline]
    pub(crate) fn take_unannounced(&mut self) -> u32 {
        self.producer.take_unannounced()
    }

    /// Whether the host has answers that it has not taken.
    pub(crate) fn has_unreaped(&self) -> bool {
        self.state == CompletionState::Serving && self.producer.has_unreaped()
    }

    /// Whether answers wait and the host gave slots back.
    pub(crate) fn has_work(&self) -> bool {
        !self.waiting.is_empty() && self.producer.head_moved()
    }

    /// A write to the head doorbell's register.
    pub(crate) fn write_doorbell(&mut self, value: u32) -> Result<(), DoorbellFault> {
        if self.state != CompletionState::Serving {
            return Ok(());
        }
        self.producer.write_doorbell(value).inspect_err(|&fault| {
            self.fail(fault);
            self.untold = None;
        })
    }

    /// Moves the head doorbell to a cell of memory.
    pub(crate) fn share_doorbell(&mut self, cell: DoorbellCell<M>) {
        self.producer.share_doorbell(cell);
    }

    /// A fault that was found on the way and not reported yet.
    pub(crate) fn take_fault(&mut self) -> Option<DoorbellFault> {
        self.untold.take()
    }

    /// Asks the host to announce slots that it gives back, if answers wait for them.
    pub(crate) fn arm(&self) {
        if !self.waiting.is_empty() {
            self.producer.arm();
        }
    }

    /// Says that this side is awake.
    pub(crate) fn disarm(&self) {
        self.producer.disarm();
    }

    /// Whether a host that was asked announces slots that it gives back.
    pub(crate) fn is_announced(&self) -> bool {
        self.producer.is_announced()
    }
}
