//! Both ends of a completion queue.
//!
//! In: [`CompletionEntry`] at the controller's end. Out: the same at the host's, once each, in order. Invariant: the word
//! with the phase tag is stored last and loaded first; an entry is never overwritten before the host has given its slot back.

use crate::ring::doorbell::{DoorbellFault, DoorbellName, Wake, arm, disarm, wake_after_fence};
use crate::ring::layout::RingLayout;
use crate::spec::completion::{CompletionEntry, Phase};
use headwater_host::ring_memory::RingMemory;

/// The host has given no slot back; the completion must wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the completion queue is full; the completion waits until the host reaps")]
pub struct CompletionFull;

/// The controller's end: posts completions.
#[derive(Debug)]
pub struct CompletionProducer<M> {
    memory: M,
    layout: RingLayout,
    /// The last head that was loaded and found possible.
    head: u32,
    /// Where the next completion goes.
    tail: u32,
    /// The tail when somebody was last looked for behind a fence.
    rung: u32,
    /// Phase of this pass.
    phase: Phase,
}

impl<M: RingMemory> CompletionProducer<M> {
    pub(crate) fn new(memory: M, layout: RingLayout) -> Self {
        disarm(&memory, RingLayout::COMPLETION_HEAD_EVENT);
        Self { memory, layout, head: 0, tail: 0, rung: 0, phase: Phase::One }
    }

    /// Posts a completion; its phase is set here. The host may see it at once, and is woken after [`ring`](Self::ring).
    ///
    /// # Errors
    /// [`CompletionFull`] when no slot is known to be free; [`refresh`](Self::refresh) may find one.
    #[inline]
    pub fn post(&mut self, entry: CompletionEntry) -> Result<(), CompletionFull> {
        let slots = self.layout.completion_slots;
        if slots.distance(self.head, self.tail) == slots.entries_max() {
            return Err(CompletionFull);
        }
        let word = self.layout.completion_word(self.tail);
        let [first, second] = entry.with_phase(self.phase).to_words();
        self.memory.store_relaxed(word, first);
        // Release: whoever acquires this phase sees the first word and the data that was copied out before.
        self.memory.store_release(word + 1, second);
        self.tail = slots.after(self.tail);
        if self.tail == 0 {
            self.phase = self.phase.flipped();
        }
        Ok(())
    }

    /// Loads the head doorbell and checks it.
    ///
    /// # Errors
    /// [`DoorbellFault`] when the value is no position, or gives back what was never posted.
    #[inline]
    pub fn refresh(&mut self) -> Result<(), DoorbellFault> {
        let slots = self.layout.completion_slots;
        // Acquire: the host's loads of an entry come before our next store to its slot.
        let value = self.memory.load_acquire(RingLayout::COMPLETION_HEAD);
        match slots.position(value) {
            Some(head) if slots.distance(self.head, head) <= slots.distance(self.head, self.tail) => {
                self.head = head;
                Ok(())
            }
            _ => Err(DoorbellFault { doorbell: DoorbellName::CompletionHead, value, slots: slots.get() }),
        }
    }

    /// Fence, ring: says whether the host must be woken for what was posted since the last call.
    #[inline]
    pub fn ring(&mut self) -> Wake {
        if self.rung == self.tail {
            return Wake::NotNeeded;
        }
        self.memory.fence();
        let moved = self.rung..self.tail;
        self.rung = self.tail;
        wake_after_fence(&self.memory, RingLayout::COMPLETION_TAIL_EVENT, self.layout.completion_slots, moved)
    }

    /// Whether the head doorbell has moved since it was last loaded.
    #[must_use]
    #[inline]
    pub fn head_moved(&self) -> bool {
        self.memory.load_acquire(RingLayout::COMPLETION_HEAD) != u64::from(self.head)
    }

    /// Asks to be woken when the host gives slots back. Sleep only if [`head_moved`](Self::head_moved) then says no.
    pub fn arm(&self) {
        arm(&self.memory, RingLayout::COMPLETION_HEAD_EVENT, self.head);
    }

    /// Says that this side does not wait for slots.
    pub fn disarm(&self) {
        disarm(&self.memory, RingLayout::COMPLETION_HEAD_EVENT);
    }
}

/// The host's end: reaps completions.
#[derive(Debug)]
pub struct CompletionConsumer<M> {
    memory: M,
    layout: RingLayout,
    /// The next entry to read.
    head: u32,
    /// The head that the doorbell shows.
    published: u32,
    /// The head when somebody was last looked for behind a fence.
    rung: u32,
    /// Phase of a new entry in this pass.
    phase: Phase,
}

impl<M: RingMemory> CompletionConsumer<M> {
    pub(crate) fn new(memory: M, layout: RingLayout) -> Self {
        disarm(&memory, RingLayout::COMPLETION_TAIL_EVENT);
        Self { memory, layout, head: 0, published: 0, rung: 0, phase: Phase::One }
    }

    /// Takes the next completion. Its slot goes back with the next [`ring`](Self::ring).
    #[inline]
    pub fn reap(&mut self) -> Option<CompletionEntry> {
        let word = self.layout.completion_word(self.head);
        let second = self.memory.load_acquire(word + 1);
        if Phase::of_word(second) != self.phase {
            return None;
        }
        let first = self.memory.load_relaxed(word);
        self.head = self.layout.completion_slots.after(self.head);
        if self.head == 0 {
            self.phase = self.phase.flipped();
        }
        Some(CompletionEntry::from_words([first, second]))
    }

    /// Whether [`reap`](Self::reap) would return something.
    #[must_use]
    #[inline]
    pub fn has_work(&self) -> bool {
        let word = self.layout.completion_word(self.head);
        Phase::of_word(self.memory.load_acquire(word + 1)) == self.phase
    }

    /// Write, fence, ring: gives the reaped slots back and says whether the controller waits for them.
    #[inline]
    pub fn ring(&mut self) -> Wake {
        if self.publish() {
            self.memory.fence();
        }
        self.wake_after_fence()
    }

    /// Stores the doorbell; returns whether it moved. The caller fences and then asks for the wake.
    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        if self.published == self.head {
            return false;
        }
        // Release: our loads of the entries come before the controller's next stores to their slots.
        self.memory.store_release(RingLayout::COMPLETION_HEAD, u64::from(self.head));
        self.published = self.head;
        true
    }

    #[inline]
    pub(crate) fn wake_after_fence(&mut self) -> Wake {
        if self.rung == self.published {
            return Wake::NotNeeded;
        }
        let moved = self.rung..self.published;
        self.rung = self.published;
        wake_after_fence(&self.memory, RingLayout::COMPLETION_HEAD_EVENT, self.layout.completion_slots, moved)
    }

    /// Asks to be woken by the next completion. Sleep only if [`has_work`](Self::has_work) then says no.
    pub fn arm(&self) {
        arm(&self.memory, RingLayout::COMPLETION_TAIL_EVENT, self.head);
    }

    /// Says that this side is awake.
    pub fn disarm(&self) {
        disarm(&self.memory, RingLayout::COMPLETION_TAIL_EVENT);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::ring::layout::QueueSlots;
    use headwater_host::ring_memory::SharedWords;
    use zerocopy::little_endian::{U16, U32};

    fn ends(slots: u32) -> (CompletionProducer<SharedWords>, CompletionConsumer<SharedWords>, SharedWords) {
        let layout = RingLayout {
            submission_slots: QueueSlots::new(2).unwrap(),
            completion_slots: QueueSlots::new(slots).unwrap(),
        };
        let memory = SharedWords::zeroed(layout.words());
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
            assert_eq!(producer.post(numbered(0)), Err(CompletionFull), "not given back yet");
            assert_eq!(consumer.ring(), Wake::NotNeeded);
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

    #[test]
    fn both_sides_are_woken_only_when_they_asked() {
        let (mut producer, mut consumer, _) = ends(2);
        producer.post(numbered(1)).unwrap();
        assert_eq!(producer.ring(), Wake::NotNeeded);
        assert!(consumer.reap().is_some());
        consumer.arm();
        assert!(!consumer.has_work());
        producer.arm();
        assert!(!producer.head_moved());
        assert_eq!(consumer.ring(), Wake::Needed);
        assert!(producer.head_moved());
        producer.disarm();
        producer.refresh().unwrap();
        producer.post(numbered(2)).unwrap();
        assert_eq!(producer.ring(), Wake::Needed);
        assert!(consumer.has_work());
    }
}
