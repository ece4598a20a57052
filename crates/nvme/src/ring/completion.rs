//! Both ends of a completion queue.
//!
//! In: [`CompletionEntry`] at the controller's end. Out: the same at the host's, once each, in order. Invariant: the word
//! with the phase tag is stored last and loaded first; an entry is never overwritten before the host has given its slot back.

use crate::ring::doorbell::{DoorbellFault, DoorbellName, Moved, Wake, arm, disarm, wake_after_fence};
use crate::ring::host_doorbell::{DoorbellCell, HostDoorbell};
use crate::ring::layout::{QueueSlots, RingLayout};
use crate::spec::completion::{COMPLETION_WORDS, CompletionEntry, CompletionWords, Phase};
use headwater_host::ring_memory::RingMemory;

/// The host has given no slot back; the completion must wait.
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
    /// The last head that was loaded and found possible.
    head: u32,
    /// Where the next completion goes.
    tail: u32,
    /// Completions posted since somebody was last looked for.
    unannounced: u32,
    /// Phase of this pass.
    phase: Phase,
}

impl<M: RingMemory> CompletionProducer<M> {
    /// The controller's end of a pair.
    pub(crate) fn new(memory: M, layout: RingLayout) -> Self {
        let doorbell = HostDoorbell::Ring {
            position: RingLayout::COMPLETION_HEAD,
            event: RingLayout::COMPLETION_HEAD_EVENT,
        };
        doorbell.disarm(&memory, layout.completion_slots, 0);
        Self::at(memory, layout.completion_word(0), layout.completion_slots, doorbell)
    }

    /// The controller's end of a queue in memory that holds entries and nothing else, with its doorbell in a register.
    pub(crate) fn over(memory: M, slots: QueueSlots) -> Self {
        Self::at(memory, 0, slots, HostDoorbell::Register { value: 0 })
    }

    fn at(memory: M, first: usize, slots: QueueSlots, doorbell: HostDoorbell<M>) -> Self {
        Self { memory, first, slots, doorbell, head: 0, tail: 0, unannounced: 0, phase: Phase::One }
    }

    /// Takes a write to the doorbell register, and judges the doorbell if it is this one.
    ///
    /// # Errors
    /// As [`refresh`](Self::refresh).
    pub(crate) fn write_doorbell(&mut self, value: u32) -> Result<(), DoorbellFault> {
        if self.doorbell.write(value) { self.refresh() } else { Ok(()) }
    }

    /// Moves the doorbell to a cell of memory.
    pub(crate) fn share_doorbell(&mut self, cell: DoorbellCell<M>) {
        self.doorbell.share(&self.memory, cell);
        self.doorbell.seen(self.slots, self.head);
    }

    /// Posts a completion; its phase is set here. The host may see it at once, and is woken after [`ring`](Self::ring).
    ///
    /// # Errors
    /// [`CompletionFull`] when no slot is known to be free; [`refresh`](Self::refresh) may find one.
    #[inline]
    pub fn post(&mut self, entry: CompletionEntry) -> Result<(), CompletionFull> {
        self.post_words(entry.into())
    }

    /// Posts a completion that is in words already.
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
        // Release: whoever acquires this phase sees the first word and the data that was copied out before.
        self.memory.store_release(word + 1, second);
        self.unannounced = self.unannounced.saturating_add(1);
        self.tail = self.slots.after(self.tail);
        if self.tail == 0 {
            self.phase = self.phase.flipped();
        }
        Ok(())
    }

    /// Whether no slot is known to be free.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.slots.distance(self.head, self.tail) == self.slots.entries_max()
    }

    /// Loads the head doorbell and checks it.
    ///
    /// # Errors
    /// [`DoorbellFault`] when the value is no position, or gives back what was never posted.
    #[inline]
    pub fn refresh(&mut self) -> Result<(), DoorbellFault> {
        let slots = self.slots;
        // Acquire: the host's loads of an entry come before our next store to its slot.
        let value = self.doorbell.load(&self.memory);
        match slots.position(value) {
            Some(head) if slots.distance(self.head, head) <= slots.distance(self.head, self.tail) => {
                if self.head != head {
                    self.head = head;
                    self.doorbell.seen(slots, head);
                }
                Ok(())
            }
            _ => Err(DoorbellFault { doorbell: DoorbellName::CompletionHead, value, slots: slots.get() }),
        }
    }

    /// Fence, ring: says whether the host of a pair must be woken for what was posted since the last call.
    #[inline]
    pub fn ring(&mut self) -> Wake {
        // A queue of its own is announced by interrupts.
        let HostDoorbell::Ring { .. } = self.doorbell else {
            return Wake::NotNeeded;
        };
        let moved = Moved { to: self.tail, steps: self.unannounced };
        if moved.steps == 0 {
            return Wake::NotNeeded;
        }
        self.unannounced = 0;
        self.memory.fence();
        wake_after_fence(&self.memory, RingLayout::COMPLETION_TAIL_EVENT, self.slots, moved)
    }

    /// How many completions were posted since the last call, for whoever raises interrupts.
    #[inline]
    pub(crate) fn take_unannounced(&mut self) -> u32 {
        std::mem::take(&mut self.unannounced)
    }

    /// Whether the host has completions that it has not taken, as far as its doorbell says.
    pub(crate) fn has_unreaped(&self) -> bool {
        self.doorbell.load(&self.memory) != u64::from(self.tail)
    }

    /// Whether the head doorbell has moved since it was last loaded.
    #[must_use]
    #[inline]
    pub fn head_moved(&self) -> bool {
        self.doorbell.load(&self.memory) != u64::from(self.head)
    }

    /// Asks to be woken when the host gives slots back. Sleep only if [`head_moved`](Self::head_moved) then says no.
    pub fn arm(&self) {
        self.doorbell.arm(&self.memory, self.head);
    }

    /// Says that this side does not wait for slots.
    pub fn disarm(&self) {
        self.doorbell.disarm(&self.memory, self.slots, self.head);
    }

    /// Whether a host that was asked to says that it gave slots back.
    pub(crate) fn is_announced(&self) -> bool {
        self.doorbell.announces()
    }
}

/// The host's end: reaps completions.
#[derive(Debug)]
pub struct CompletionConsumer<M> {
    memory: M,
    /// Word of the first entry.
    first: usize,
    slots: QueueSlots,
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
        Self { first: layout.completion_word(0), ..Self::over(memory, layout.completion_slots) }
    }

    /// The host's end of a queue in memory that holds entries and nothing else. Its doorbell is a register, which whoever
    /// owns this writes as [`unpublished`](Self::unpublished) says.
    pub(crate) fn over(memory: M, slots: QueueSlots) -> Self {
        Self { memory, first: 0, slots, head: 0, published: 0, rung: 0, phase: Phase::One }
    }

    /// Takes the next completion. Its slot goes back with the next [`ring`](Self::ring).
    #[inline]
    pub fn reap(&mut self) -> Option<CompletionEntry> {
        let word = self.first + self.head as usize * COMPLETION_WORDS;
        let second = self.memory.load_acquire(word + 1);
        if Phase::of_word(second) != self.phase {
            return None;
        }
        let first = self.memory.load_relaxed(word);
        self.head = self.slots.after(self.head);
        if self.head == 0 {
            self.phase = self.phase.flipped();
        }
        Some(CompletionEntry::from_words([first, second]))
    }

    /// Whether [`reap`](Self::reap) would return something.
    #[must_use]
    #[inline]
    pub fn has_work(&self) -> bool {
        let word = self.first + self.head as usize * COMPLETION_WORDS;
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
        let Some(head) = self.unpublished() else {
            return false;
        };
        // Release: our loads of the entries come before the controller's next stores to their slots.
        self.memory.store_release(RingLayout::COMPLETION_HEAD, u64::from(head));
        true
    }

    /// The head that the doorbell does not show yet. Whoever takes it shows it, behind every load before this.
    #[inline]
    pub(crate) fn unpublished(&mut self) -> Option<u32> {
        let moved = self.published != self.head;
        self.published = self.head;
        moved.then_some(self.head)
    }

    #[inline]
    pub(crate) fn wake_after_fence(&mut self) -> Wake {
        if self.rung == self.published {
            return Wake::NotNeeded;
        }
        let slots = self.slots;
        // Fewer steps than slots: the controller posts no further than the head that it was shown.
        let moved = Moved { to: self.published, steps: slots.distance(self.rung, self.published) };
        self.rung = self.published;
        wake_after_fence(&self.memory, RingLayout::COMPLETION_HEAD_EVENT, slots, moved)
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

    /// The tail was compared with where it stood at the last look: after a whole circle, in which an awake host kept pace
    /// and then went to sleep, nothing seemed to have moved.
    #[test]
    fn a_host_that_kept_pace_for_a_whole_circle_and_then_slept_is_woken() {
        let (mut producer, mut consumer, _) = ends(2);
        producer.post(numbered(1)).unwrap();
        assert!(consumer.reap().is_some());
        assert_eq!(consumer.ring(), Wake::NotNeeded);
        consumer.arm();
        assert!(!consumer.has_work());
        producer.refresh().unwrap();
        producer.post(numbered(2)).unwrap();
        assert_eq!(producer.ring(), Wake::Needed);
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
