//! A host without scruples: nothing stands between it and its ring memory.

use headwater_host::ring_memory::{RingMemory, SharedWords};
use headwater_nvme::controller::{QueueId, QueueKind};
use headwater_nvme::ring::{QueueSlots, RingLayout};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::completion::{CompletionEntry, Phase};
use headwater_nvme::spec::status::Status;
use headwater_ssd::nvme::rings::{ClientId, RingFace};
use zerocopy::little_endian::U16;

pub(crate) struct RawHost {
    memory: SharedWords,
    layout: RingLayout,
    id: QueueId,
    tail: u32,
    head: u32,
    phase: Phase,
}

impl RawHost {
    pub(crate) fn new(face: &mut RingFace, client: ClientId, depth: u32) -> Self {
        let slots = QueueSlots::new(depth + 1).expect("a desk in order");
        let layout = RingLayout { submission_slots: slots, completion_slots: slots };
        let memory = SharedWords::zeroed(layout.words());
        let queue = face
            .rings
            .create_queue_pair_in(client, memory.clone(), depth, QueueKind::Uio)
            .expect("a desk in order");
        Self { memory, layout, id: queue.id, tail: 0, head: 0, phase: Phase::One }
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
        self.set(RingLayout::SUBMISSION_TAIL, u64::from(self.tail));
    }

    /// Writes any word of the ring memory; numbers beyond it wrap round.
    pub(crate) fn set(&self, word: usize, value: u64) {
        self.memory.store_release(word % self.memory.words(), value);
    }

    pub(crate) fn ring_impossibly(&self) {
        self.set(RingLayout::SUBMISSION_TAIL, 1 << 40);
    }

    pub(crate) fn reap(&mut self) -> Option<CompletionEntry> {
        let word = self.layout.completion_word(self.head);
        let second = self.memory.load_acquire(word + 1);
        if Phase::of_word(second) != self.phase {
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

    /// Everything that can be reaped, as command id and status.
    pub(crate) fn reap_all(&mut self) -> Vec<(u16, Status)> {
        std::iter::from_fn(|| self.reap()).map(|entry| (entry.command_id.get(), entry.status())).collect()
    }
}
