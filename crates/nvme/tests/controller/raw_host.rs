//! A host that may violate every rule, for tests of the controller.

use headwater_host::ring_memory::{HeapWords, RingMemory};
use headwater_nvme::controller::{ControllerQueuePair, QueueArbiter, QueueId, QueueKind};
use headwater_nvme::queue_pair::ControllerEnd;
use headwater_nvme::ring::{QueueSlots, RingLayout};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::completion::{CompletionEntry, PhaseTag};
use headwater_nvme::spec::status::Status;
use std::num::NonZeroU16;
use zerocopy::little_endian::U16;

/// A host that writes any value into the ring memory, without bookkeeping.
pub(crate) struct RawHost {
    memory: HeapWords,
    layout: RingLayout,
    tail: u32,
    head: u32,
    phase: PhaseTag,
}

impl RawHost {
    pub(crate) fn push(&mut self, command_id: u16) {
        let entry = SubmissionEntry { command_id: U16::new(command_id), ..SubmissionEntry::default() };
        let first = self.layout.submission_word(self.tail);
        for (word, value) in (first..).zip(entry.to_words()) {
            self.memory.store_relaxed(word, value);
        }
        self.tail = (self.tail + 1) % self.layout.submission_slots.get();
        self.set(RingLayout::SUBMISSION_TAIL, u64::from(self.tail));
    }

    /// Writes any word of the ring memory; word numbers beyond its end wrap round.
    pub(crate) fn set(&self, word: usize, value: u64) {
        self.memory.store_release(word % self.memory.words(), value);
    }

    pub(crate) fn reap(&mut self) -> Option<CompletionEntry> {
        let word = self.layout.completion_word(self.head);
        let second = self.memory.load_acquire(word + 1);
        if PhaseTag::of_word(second) != self.phase {
            return None;
        }
        let entry = CompletionEntry::from_words([self.memory.load_relaxed(word), second]);
        self.head = (self.head + 1) % self.layout.completion_slots.get();
        if self.head == 0 {
            self.phase = self.phase.flipped();
        }
        self.set(RingLayout::COMPLETION_HEAD, u64::from(self.head));
        Some(entry)
    }

    /// Reaps all available completions, as command id and status.
    pub(crate) fn reap_all(&mut self) -> Vec<(u16, Status)> {
        std::iter::from_fn(|| self.reap()).map(|entry| (entry.command_id.get(), entry.status())).collect()
    }
}

pub(crate) fn raw_queue(id: u16, depth: u32) -> (RawHost, ControllerQueuePair<HeapWords>) {
    let slots = QueueSlots::new(depth + 1).expect("a valid depth");
    let layout = RingLayout { submission_slots: slots, completion_slots: slots };
    let memory = HeapWords::zeroed(layout.words());
    let end = ControllerEnd::over(memory.clone(), depth).expect("memory for the depth");
    let host = RawHost { memory, layout, tail: 0, head: 0, phase: PhaseTag::One };
    (host, ControllerQueuePair::new(QueueId(id), QueueKind::Standard, end))
}

pub(crate) fn arbiter(burst: u16) -> QueueArbiter<HeapWords> {
    QueueArbiter::new(NonZeroU16::new(burst).expect("a burst above zero"))
}
