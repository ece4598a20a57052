//! A hostile host that writes its ring memory directly.

use headwater_host::ring_memory::{HeapWords, RingMemory};
use headwater_nvme::controller::{QueueId, QueueKind};
use headwater_nvme::ring::{QueueSlots, RingLayout};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::completion::{CompletionEntry, PhaseTag};
use headwater_nvme::spec::status::Status;
use headwater_ssd::nvme::rings::{ClientId, RingFrontEnd};
use zerocopy::little_endian::U16;

pub(crate) struct RawHost {
    memory: HeapWords,
    layout: RingLayout,
    id: QueueId,
    tail: u32,
    head: u32,
    phase: PhaseTag,
}

impl RawHost {
    pub(crate) fn new(front_end: &mut RingFrontEnd, client: ClientId, depth: u32) -> Self {
        let slots = QueueSlots::new(depth + 1).expect("test setup");
        let layout = RingLayout { submission_slots: slots, completion_slots: slots };
        let memory = HeapWords::zeroed(layout.words());
        let queue = front_end
            .rings
            .create_queue_pair_in(client, memory.clone(), depth, QueueKind::Uio)
            .expect("test setup");
        Self { memory, layout, id: queue.id, tail: 0, head: 0, phase: PhaseTag::One }
    }

    pub(crate) fn id(&self) -> QueueId {
        self.id
    }

    pub(crate) fn push(&mut self, command_id: u16, mut entry: SubmissionEntry) {
        entry.command_id = U16::new(command_id);
        let first = self.layout.submission_word(self.tail);
        for (word, value) in (first..).zip(entry.to_words()) {
            self.memory.store_relaxed(word, value);
        }
        self.tail = (self.tail + 1) % self.layout.submission_slots.get();
        self.set_word(RingLayout::SUBMISSION_TAIL, u64::from(self.tail));
    }

    /// Writes any word of the ring memory; a larger number wraps around.
    pub(crate) fn set_word(&self, word: usize, value: u64) {
        self.memory.store_release(word % self.memory.words(), value);
    }

    pub(crate) fn write_impossible_tail(&self) {
        self.set_word(RingLayout::SUBMISSION_TAIL, 1 << 40);
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
        self.set_word(RingLayout::COMPLETION_HEAD, u64::from(self.head));
        Some(entry)
    }

    /// Reaps all completions, and returns command id and status of each.
    pub(crate) fn reap_all(&mut self) -> Vec<(u16, Status)> {
        std::iter::from_fn(|| self.reap()).map(|entry| (entry.command_id.get(), entry.status())).collect()
    }
}
