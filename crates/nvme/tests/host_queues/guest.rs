//! A guest that creates its queues one by one and writes doorbells as Linux does, for tests of the controller.

use headwater_host::ring_memory::{HeapWords, RingMemory};
use headwater_nvme::controller::{
    AdminQueues, ArbiterError, CompletionQueueSpec, QueueArbiter, QueueId, QueueKind, QueueLimits,
    SubmissionQueueSpec,
};
use headwater_nvme::ring::QueueSlots;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::completion::{CompletionEntry, PhaseTag};
use headwater_nvme::spec::priority::QueuePriority;
use headwater_nvme::spec::status::Status;
use std::ops::Range;
use zerocopy::little_endian::U16;

/// Shadow doorbells and EventIdx, as the guest sees them.
#[derive(Clone)]
pub(crate) struct ShadowDoorbells<M> {
    pub(crate) doorbells: M,
    pub(crate) events: M,
}

/// One doorbell of the guest.
pub(crate) struct GuestDoorbell<M> {
    cell: usize,
    pub(crate) shadow: Option<ShadowDoorbells<M>>,
    /// Writes to the register so far.
    pub(crate) register_writes: u32,
}

impl<M: RingMemory> GuestDoorbell<M> {
    fn new(cell: usize) -> Self {
        Self { cell, shadow: None, register_writes: 0 }
    }

    /// Writes the new position as Linux does, and returns it if the register must be written too.
    fn ring(&mut self, new: u32) -> Option<u32> {
        let needed = self.shadow.as_ref().is_none_or(|shadow| {
            let old = shadow.doorbells.load_cell_acquire(self.cell);
            shadow.doorbells.store_cell_release(self.cell, new);
            shadow.doorbells.fence();
            let event = shadow.events.load_cell_acquire(self.cell);
            needs_register(low16(event), low16(new), low16(old))
        });
        self.register_writes += u32::from(needed);
        needed.then_some(new)
    }
}

fn low16(value: u32) -> u16 {
    let [low, high, ..] = value.to_le_bytes();
    u16::from_le_bytes([low, high])
}

fn needs_register(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// A submission queue of the guest.
pub(crate) struct GuestSubmission<M> {
    pub(crate) id: QueueId,
    pub(crate) memory: M,
    slots: u32,
    tail: u32,
    pub(crate) doorbell: GuestDoorbell<M>,
}

/// A completion queue of the guest.
pub(crate) struct GuestCompletion<M> {
    pub(crate) id: QueueId,
    pub(crate) memory: M,
    slots: u32,
    head: u32,
    phase: PhaseTag,
    pub(crate) doorbell: GuestDoorbell<M>,
}

impl<M: RingMemory> GuestSubmission<M> {
    pub(crate) fn new(id: u16, slots: u32, memory: M) -> Self {
        let doorbell = GuestDoorbell::new(2 * usize::from(id));
        Self { id: QueueId(id), memory, slots, tail: 0, doorbell }
    }

    /// Writes a command and advances the tail, without a doorbell write.
    pub(crate) fn write(&mut self, command_id: u16) {
        let entry = SubmissionEntry { command_id: U16::new(command_id), ..SubmissionEntry::default() };
        let first = usize::try_from(self.tail).unwrap() * 8;
        for (word, value) in (first..).zip(entry.to_words()) {
            self.memory.store_relaxed(word, value);
        }
        self.tail = (self.tail + 1) % self.slots;
    }

    /// Writes the doorbell for the commands written. Returns true if the register was written.
    pub(crate) fn ring(&mut self, arbiter: &mut QueueArbiter<M>) -> bool {
        let write = self.doorbell.ring(self.tail);
        if let Some(value) = write {
            arbiter.write_submission_doorbell(self.id, value).unwrap();
        }
        write.is_some()
    }

    pub(crate) fn submit_all(&mut self, arbiter: &mut QueueArbiter<M>, command_ids: Range<u16>) {
        for command_id in command_ids {
            self.submit(arbiter, command_id);
        }
    }

    pub(crate) fn submit(&mut self, arbiter: &mut QueueArbiter<M>, command_id: u16) -> bool {
        self.write(command_id);
        self.ring(arbiter)
    }
}

impl<M: RingMemory> GuestCompletion<M> {
    pub(crate) fn new(id: u16, slots: u32, memory: M) -> Self {
        let doorbell = GuestDoorbell::new(2 * usize::from(id) + 1);
        Self { id: QueueId(id), memory, slots, head: 0, phase: PhaseTag::One, doorbell }
    }

    /// Takes the next completion, whose slot [`ring`](Self::ring) releases.
    pub(crate) fn take(&mut self) -> Option<CompletionEntry> {
        let word = usize::try_from(self.head).unwrap() * 2;
        let second = self.memory.load_acquire(word + 1);
        if PhaseTag::of_word(second) != self.phase {
            return None;
        }
        self.head = (self.head + 1) % self.slots;
        if self.head == 0 {
            self.phase = self.phase.flipped();
        }
        Some(CompletionEntry::from_words([self.memory.load_relaxed(word), second]))
    }

    /// Releases the slots of taken completions. Returns true if the register was written.
    pub(crate) fn ring(&mut self, arbiter: &mut QueueArbiter<M>) -> bool {
        let write = self.doorbell.ring(self.head);
        if let Some(value) = write {
            arbiter.write_completion_doorbell(self.id, value).unwrap();
        }
        write.is_some()
    }

    /// Reaps all available completions, as submission queue, command id and status.
    pub(crate) fn reap(&mut self, arbiter: &mut QueueArbiter<M>) -> Vec<(u16, u16, Status)> {
        let taken: Vec<_> = std::iter::from_fn(|| self.take())
            .map(|entry| (entry.submission_queue.get(), entry.command_id.get(), entry.status()))
            .collect();
        if !taken.is_empty() {
            self.ring(arbiter);
        }
        taken
    }
}

pub(crate) const VECTORS: u16 = 4;
pub(crate) const QUEUES: u16 = 8;
pub(crate) const SLOTS_MAX: u32 = 64;

/// Creates a controller for a host, without queues.
pub(crate) fn controller() -> QueueArbiter<HeapWords> {
    QueueArbiter::for_host(limits())
}

pub(crate) fn limits() -> QueueLimits {
    QueueLimits {
        submission_queues: QUEUES,
        completion_queues: QUEUES,
        slots: QueueSlots::new(SLOTS_MAX).unwrap(),
        vectors: VECTORS,
    }
}

pub(crate) fn completion_spec(slots: u32, vector: Option<u16>) -> CompletionQueueSpec {
    CompletionQueueSpec { slots, vector }
}

pub(crate) fn submission_spec(slots: u32, completion: u16) -> SubmissionQueueSpec {
    SubmissionQueueSpec {
        slots,
        completion: QueueId(completion),
        priority: QueuePriority::Medium,
        kind: QueueKind::Standard,
    }
}

pub(crate) fn try_completion(
    arbiter: &mut QueueArbiter<HeapWords>,
    id: u16,
    slots: u32,
) -> Result<(), ArbiterError> {
    let spec = completion_spec(slots, None);
    arbiter.create_completion_queue(QueueId(id), spec, |words| Some(HeapWords::zeroed(words)))
}

pub(crate) fn try_submission(
    arbiter: &mut QueueArbiter<HeapWords>,
    id: u16,
    slots: u32,
    completion: u16,
) -> Result<(), ArbiterError> {
    let spec = submission_spec(slots, completion);
    arbiter.create_submission_queue(QueueId(id), spec, |words| Some(HeapWords::zeroed(words)))
}

pub(crate) fn completion(
    arbiter: &mut QueueArbiter<HeapWords>,
    id: u16,
    slots: u32,
    vector: Option<u16>,
) -> GuestCompletion<HeapWords> {
    let memory = HeapWords::zeroed(usize::try_from(slots).unwrap() * 2);
    let guest = GuestCompletion::new(id, slots, memory.clone());
    let spec = completion_spec(slots, vector);
    arbiter.create_completion_queue(guest.id, spec, |_| Some(memory)).unwrap();
    guest
}

pub(crate) fn submission(
    arbiter: &mut QueueArbiter<HeapWords>,
    id: u16,
    spec: SubmissionQueueSpec,
) -> GuestSubmission<HeapWords> {
    let memory = HeapWords::zeroed(usize::try_from(spec.slots).unwrap() * 8);
    let guest = GuestSubmission::new(id, spec.slots, memory.clone());
    arbiter.create_submission_queue(guest.id, spec, |_| Some(memory)).unwrap();
    guest
}

pub(crate) fn admin(
    arbiter: &mut QueueArbiter<HeapWords>,
    slots: u32,
) -> (GuestSubmission<HeapWords>, GuestCompletion<HeapWords>) {
    let submission = HeapWords::zeroed(usize::try_from(slots).unwrap() * 8);
    let completion = HeapWords::zeroed(usize::try_from(slots).unwrap() * 2);
    let slots_of = QueueSlots::new(slots).unwrap();
    let queues = AdminQueues {
        submission: submission.clone(),
        submission_slots: slots_of,
        completion: completion.clone(),
        completion_slots: slots_of,
        vector: Some(0),
    };
    arbiter.create_admin_queues(queues).unwrap();
    (GuestSubmission::new(0, slots, submission), GuestCompletion::new(0, slots, completion))
}

/// Fetches all available commands and completes them with success. Returns their number.
pub(crate) fn serve<M: RingMemory>(arbiter: &mut QueueArbiter<M>) -> usize {
    let mut served = 0;
    while let Some(fetched) = arbiter.fetch() {
        arbiter.complete(fetched.token, 0, Status::SUCCESS);
        served += 1;
    }
    served
}
