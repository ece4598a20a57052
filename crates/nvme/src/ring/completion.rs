//! Both ends of a completion queue.
//!
//! Input: [`CompletionEntry`] at the controller's end. Output: the same at the host's end, once each, in order.
//! Invariant: the word with the phase tag is stored last and loaded first; an entry is never overwritten before the
//! host has freed its slot.

use crate::ring::doorbell::{
    DoorbellFault, DoorbellName, MovedPosition, WakeDecision, arm, disarm, wake_after_fence,
};
use crate::ring::host_doorbell::{DoorbellCell, HostDoorbell};
use crate::ring::layout::{QueueSlots, RingLayout};
use crate::ring::published_position::PublishedPosition;
use crate::spec::completion::{COMPLETION_WORDS, CompletionEntry, CompletionWords, PhaseTag};
use headwater_host::ring_memory::RingMemory;

/// The queue is full: the completion must wait until the host frees a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the completion queue is full; the completion waits until the host reaps")]
pub struct CompletionFull;

/// The controller's end: posts completions.
#[derive(Debug)]
pub struct CompletionProducer<M> {
    memory: M,
    /// Word of the first entry.
    first: usize,
    slots: QueueSlots,
    doorbell: HostDoorbell<M>,
    /// The last head that was loaded and validated.
    head: u32,
    /// Position of the next completion.
    tail: u32,
    /// Completions posted since the last check for a sleeping host.
    posted_since_ring: u32,
    /// Phase of this pass.
    phase: PhaseTag,
}

impl<M: RingMemory> CompletionProducer<M> {
    /// Creates the controller's end of a pair.
    pub(crate) fn new(memory: M, layout: RingLayout) -> Self {
        let doorbell = HostDoorbell::Ring(RingLayout::COMPLETION_DOORBELL);
        doorbell.disarm(&memory, layout.completion_slots, 0);
        Self::at(memory, layout.completion_word(0), layout.completion_slots, doorbell)
    }

    /// Creates the controller's end of a queue in memory that holds only entries, with its doorbell in a register.
    pub(crate) fn over(memory: M, slots: QueueSlots) -> Self {
        Self::at(memory, 0, slots, HostDoorbell::Register { value: 0 })
    }

    fn at(memory: M, first: usize, slots: QueueSlots, doorbell: HostDoorbell<M>) -> Self {
        Self { memory, first, slots, doorbell, head: 0, tail: 0, posted_since_ring: 0, phase: PhaseTag::One }
    }

    /// Processes a write to the doorbell register; validates the value if the doorbell is this register.
    ///
    /// # Errors
    /// As [`refresh`](Self::refresh).
    pub(crate) fn write_doorbell(&mut self, value: u32) -> Result<(), DoorbellFault> {
        if self.doorbell.write(value) { self.refresh() } else { Ok(()) }
    }

    /// Moves the doorbell to a cell of memory.
    pub(crate) fn set_doorbell_cell(&mut self, cell: DoorbellCell<M>) {
        self.doorbell.share(&self.memory, cell);
        self.doorbell.store_seen(self.slots, self.head);
    }

    /// Posts a completion and sets its phase. The host may see it at once, and is woken after [`ring`](Self::ring).
    ///
    /// # Errors
    /// [`CompletionFull`] if no slot is known to be free; [`refresh`](Self::refresh) may find one.
    #[inline]
    pub fn post(&mut self, entry: CompletionEntry) -> Result<(), CompletionFull> {
        self.post_words(entry.into())
    }

    /// Posts a completion in words.
    ///
    /// # Errors
    /// As [`post`](Self::post).
    #[inline]
    pub(crate) fn post_words(&mut self, words: CompletionWords) -> Result<(), CompletionFull> {
        if self.is_full() {
            return Err(CompletionFull);
        }
        let word = self.first + self.tail as usize * COMPLETION_WORDS;
        let [first, second] = words.with_phase(self.phase);
        self.memory.store_relaxed(word, first);
        // Release: a host that acquires this phase sees the first word and the data that was copied out before.
        self.memory.store_release(word + 1, second);
        self.posted_since_ring = self.posted_since_ring.saturating_add(1);
        self.tail = self.slots.after(self.tail);
        if self.tail == 0 {
            self.phase = self.phase.flipped();
        }
        Ok(())
    }

    /// Returns true if no slot is known to be free.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.slots.distance(self.head, self.tail) == self.slots.entries_max()
    }

    /// Loads the head doorbell and checks it.
    ///
    /// # Errors
    /// [`DoorbellFault`] if the value is no position, or frees entries that were never posted.
    #[inline]
    pub fn refresh(&mut self) -> Result<(), DoorbellFault> {
        let slots = self.slots;
        // Acquire: the host's loads of an entry come before our next store to its slot.
        let value = self.doorbell.load(&self.memory);
        match slots.position(value) {
            Some(head) if slots.distance(self.head, head) <= slots.distance(self.head, self.tail) => {
                if self.head != head {
                    self.head = head;
                    self.doorbell.store_seen(slots, head);
                }
                Ok(())
            }
            _ => Err(DoorbellFault { doorbell: DoorbellName::CompletionHead, value, slots: slots.get() }),
        }
    }

    /// Fences, and returns whether the host of a pair must be woken for the completions posted since the last call.
    #[inline]
    pub fn ring(&mut self) -> WakeDecision {
        // A separate queue is announced by interrupts.
        let HostDoorbell::Ring(_) = self.doorbell else {
            return WakeDecision::NotNeeded;
        };
        let moved = MovedPosition { to: self.tail, steps: self.posted_since_ring };
        if moved.steps == 0 {
            return WakeDecision::NotNeeded;
        }
        self.posted_since_ring = 0;
        self.memory.fence();
        wake_after_fence(&self.memory, RingLayout::COMPLETION_TAIL_EVENT, self.slots, moved)
    }

    /// Returns the number of completions posted since the last call, for the code that raises interrupts.
    #[inline]
    pub(crate) fn take_unannounced(&mut self) -> u32 {
        std::mem::take(&mut self.posted_since_ring)
    }

    /// Returns true if the host's doorbell shows completions that it has not reaped.
    pub(crate) fn has_unreaped(&self) -> bool {
        self.doorbell.load(&self.memory) != u64::from(self.tail)
    }

    /// Returns true if the head doorbell has moved since it was last loaded.
    #[must_use]
    #[inline]
    pub fn head_moved(&self) -> bool {
        self.doorbell.load(&self.memory) != u64::from(self.head)
    }

    /// Arms a wake-up when the host frees slots. Sleep only if [`head_moved`](Self::head_moved) then returns false.
    pub fn arm(&self) {
        self.doorbell.arm(&self.memory, self.head);
    }

    /// Announces that this side does not wait for slots.
    pub fn disarm(&self) {
        self.doorbell.disarm(&self.memory, self.slots, self.head);
    }

    /// Returns true if the host, once requested, announces freed slots.
    pub(crate) fn sends_notifications(&self) -> bool {
        self.doorbell.sends_notifications()
    }
}

/// The host's end: reaps completions.
#[derive(Debug)]
pub struct CompletionConsumer<M> {
    memory: M,
    /// Word of the first entry.
    first: usize,
    /// The next entry to read.
    head: PublishedPosition,
    /// Phase of a new entry in this pass.
    phase: PhaseTag,
}

impl<M: RingMemory> CompletionConsumer<M> {
    pub(crate) fn new(memory: M, layout: RingLayout) -> Self {
        disarm(&memory, RingLayout::COMPLETION_TAIL_EVENT);
        Self { first: layout.completion_word(0), ..Self::over(memory, layout.completion_slots) }
    }

    /// Creates the host's end of a queue in memory that holds only entries. Its doorbell is a register: the owner
    /// writes the value of [`unpublished`](Self::unpublished) there.
    pub(crate) fn over(memory: M, slots: QueueSlots) -> Self {
        Self { memory, first: 0, head: PublishedPosition::new(slots), phase: PhaseTag::One }
    }

    /// Returns the next completion. Its slot is freed by the next [`ring`](Self::ring).
    #[inline]
    pub fn reap(&mut self) -> Option<CompletionEntry> {
        let word = self.first + self.head.next() as usize * COMPLETION_WORDS;
        let second = self.memory.load_acquire(word + 1);
        if PhaseTag::of_word(second) != self.phase {
            return None;
        }
        let first = self.memory.load_relaxed(word);
        if self.head.advance() {
            self.phase = self.phase.flipped();
        }
        Some(CompletionEntry::from_words([first, second]))
    }

    /// Returns true if [`reap`](Self::reap) would return an entry.
    #[must_use]
    #[inline]
    pub fn has_work(&self) -> bool {
        let word = self.first + self.head.next() as usize * COMPLETION_WORDS;
        PhaseTag::of_word(self.memory.load_acquire(word + 1)) == self.phase
    }

    /// Frees the reaped slots, fences, and returns whether the controller must be woken for them.
    #[inline]
    pub fn ring(&mut self) -> WakeDecision {
        self.head.ring(&self.memory, RingLayout::COMPLETION_DOORBELL)
    }

    /// Stores the doorbell; returns true if it moved. The caller then fences and calls `wake_after_fence`.
    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        self.head.publish(&self.memory, RingLayout::COMPLETION_DOORBELL)
    }

    /// Returns the head if the doorbell does not show it yet. The caller publishes it, ordered after all loads before
    /// this.
    #[inline]
    pub(crate) fn unpublished(&mut self) -> Option<u32> {
        self.head.unpublished()
    }

    #[inline]
    pub(crate) fn wake_after_fence(&mut self) -> WakeDecision {
        self.head.wake_after_fence(&self.memory, RingLayout::COMPLETION_DOORBELL)
    }

    /// Arms a wake-up by the next completion. Sleep only if [`has_work`](Self::has_work) then returns false.
    pub fn arm(&self) {
        arm(&self.memory, RingLayout::COMPLETION_TAIL_EVENT, self.head.next());
    }

    /// Announces that this side is awake.
    pub fn disarm(&self) {
        disarm(&self.memory, RingLayout::COMPLETION_TAIL_EVENT);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::ring::layout::QueueSlots;
    use headwater_host::ring_memory::HeapWords;
    use zerocopy::little_endian::{U16, U32};

    fn ends(slots: u32) -> (CompletionProducer<HeapWords>, CompletionConsumer<HeapWords>, HeapWords) {
        let layout = RingLayout {
            submission_slots: QueueSlots::new(2).unwrap(),
            completion_slots: QueueSlots::new(slots).unwrap(),
        };
        let memory = HeapWords::zeroed(layout.words());
        (
            CompletionProducer::new(memory.clone(), layout),
            CompletionConsumer::new(memory.clone(), layout),
            memory,
        )
    }

    fn numbered(id: u16) -> CompletionEntry {
        CompletionEntry {
            result: U32::new(u32::from(id) + 70_000),
            command_id: U16::new(id),
            ..CompletionEntry::default()
        }
    }

    #[test]
    fn completions_arrive_once_and_in_order_over_many_wraps() {
        let (mut producer, mut consumer, _) = ends(3);
        for id in 0..100 {
            producer.refresh().unwrap();
            producer.post(numbered(2 * id)).unwrap();
            producer.post(numbered(2 * id + 1)).unwrap();
            assert_eq!(producer.post(numbered(0)), Err(CompletionFull));
            for expected in [2 * id, 2 * id + 1] {
                let entry = consumer.reap().unwrap();
                assert_eq!(entry.command_id.get(), expected);
                assert_eq!(entry.result.get(), u32::from(expected) + 70_000);
            }
            assert_eq!(consumer.reap(), None);
            assert_eq!(producer.post(numbered(0)), Err(CompletionFull), "not freed yet");
            assert_eq!(consumer.ring(), WakeDecision::NotNeeded);
        }
    }

    #[test]
    fn impossible_heads_are_faults() {
        let (mut producer, _, memory) = ends(4);
        producer.post(numbered(1)).unwrap();
        for value in [2, 3, 4, 1 << 16, u64::MAX] {
            memory.store_release(RingLayout::COMPLETION_HEAD, value);
            let fault = producer.refresh().unwrap_err();
            assert_eq!(fault.doorbell, DoorbellName::CompletionHead);
            assert_eq!(fault.value, value);
        }
        memory.store_release(RingLayout::COMPLETION_HEAD, 1);
        producer.refresh().unwrap();
    }

    /// Covers a defect: the tail was compared with its position at the last check. After a whole lap of the ring, in
    /// which an awake host kept up and then went to sleep, the tail seemed unmoved.
    #[test]
    fn host_that_kept_up_for_a_whole_lap_and_then_slept_is_woken() {
        let (mut producer, mut consumer, _) = ends(2);
        producer.post(numbered(1)).unwrap();
        assert!(consumer.reap().is_some());
        assert_eq!(consumer.ring(), WakeDecision::NotNeeded);
        consumer.arm();
        assert!(!consumer.has_work());
        producer.refresh().unwrap();
        producer.post(numbered(2)).unwrap();
        assert_eq!(producer.ring(), WakeDecision::Needed);
    }

    #[test]
    fn both_sides_are_woken_only_on_request() {
        let (mut producer, mut consumer, _) = ends(2);
        producer.post(numbered(1)).unwrap();
        assert_eq!(producer.ring(), WakeDecision::NotNeeded);
        assert!(consumer.reap().is_some());
        consumer.arm();
        assert!(!consumer.has_work());
        producer.arm();
        assert!(!producer.head_moved());
        assert_eq!(consumer.ring(), WakeDecision::Needed);
        assert!(producer.head_moved());
        producer.disarm();
        producer.refresh().unwrap();
        producer.post(numbered(2)).unwrap();
        assert_eq!(producer.ring(), WakeDecision::Needed);
        assert!(consumer.has_work());
    }
}
