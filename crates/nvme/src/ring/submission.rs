//! Both ends of a submission queue.
//!
//! Input: [`SubmissionEntry`] at the host's end. Output: the same at the controller's end, once each, in order.
//! Invariant: the tail that the controller uses was validated; each word of an entry is loaded once, after the tail
//! that covers it.

use crate::ring::doorbell::{DoorbellFault, DoorbellName, WakeDecision};
use crate::ring::host_doorbell::{DoorbellCell, HostDoorbell};
use crate::ring::layout::{QueueSlots, RingLayout};
use crate::ring::published_position::PublishedPosition;
use crate::spec::command::{SUBMISSION_WORDS, SubmissionEntry};
use headwater_host::ring_memory::RingMemory;
use headwater_host::width::narrow;

/// The queue is full: reap completions and try again. It holds what the caller wanted to submit with the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the submission queue is full; reap completions and submit again")]
pub struct QueueFull<C = ()> {
    /// The context of the refused command.
    pub context: C,
}

/// A submission head in a completion that the controller cannot have reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a completion names submission head {head}, which the controller cannot have reached; reset the queue pair"
)]
pub struct HeadFault {
    /// The head in the completion.
    pub head: u16,
}

/// The host's end: writes commands and rings.
#[derive(Debug)]
pub struct SubmissionProducer<M> {
    memory: M,
    /// Word of the first entry.
    first: usize,
    /// First entry that the controller may still read.
    head: u32,
    /// Position of the next command.
    tail: PublishedPosition,
}

impl<M: RingMemory> SubmissionProducer<M> {
    pub(crate) fn new(memory: M, layout: RingLayout) -> Self {
        Self { first: layout.submission_word(0), ..Self::over(memory, layout.submission_slots) }
    }

    /// Creates the host's end of a queue in memory that holds only entries. Its doorbell is a register: the owner
    /// writes the value of [`unpublished`](Self::unpublished) there.
    pub(crate) fn over(memory: M, slots: QueueSlots) -> Self {
        Self { memory, first: 0, head: 0, tail: PublishedPosition::new(slots) }
    }

    /// Returns the number of commands that can be pushed now.
    #[must_use]
    pub fn room(&self) -> u32 {
        let slots = self.tail.slots();
        slots.entries_max() - slots.distance(self.head, self.tail.next())
    }

    /// Writes a command at the tail. The controller sees it after [`ring`](Self::ring).
    ///
    /// # Errors
    /// [`QueueFull`] if no slot is free; nothing was written.
    #[inline]
    pub fn push(&mut self, entry: SubmissionEntry) -> Result<(), QueueFull> {
        if self.room() == 0 {
            return Err(QueueFull { context: () });
        }
        self.push_words(entry.to_words());
        Ok(())
    }

    /// Pushes an entry in words.
    ///
    /// # Panics
    /// If there is no [`room`](Self::room): the caller has checked it, and the store would overwrite a command that the
    /// controller has not fetched.
    #[inline]
    pub(crate) fn push_words(&mut self, words: [u64; SUBMISSION_WORDS]) {
        assert!(self.room() > 0, "a command pushed into a full submission queue");
        self.memory.store_words(self.first + self.tail.next() as usize * SUBMISSION_WORDS, words);
        self.tail.advance();
    }

    /// Publishes every pushed command, fences, and returns whether the controller must be woken.
    #[inline]
    pub fn ring(&mut self) -> WakeDecision {
        self.tail.ring(&self.memory, RingLayout::SUBMISSION_DOORBELL)
    }

    /// Stores the doorbell; returns true if it moved. The caller then fences and calls `wake_after_fence`.
    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        self.tail.publish(&self.memory, RingLayout::SUBMISSION_DOORBELL)
    }

    /// Returns the tail if the doorbell does not show it yet. The caller publishes it, ordered after all stores before
    /// this.
    #[inline]
    pub(crate) fn unpublished(&mut self) -> Option<u32> {
        self.tail.unpublished()
    }

    #[inline]
    pub(crate) fn wake_after_fence(&mut self) -> WakeDecision {
        self.tail.wake_after_fence(&self.memory, RingLayout::SUBMISSION_DOORBELL)
    }

    /// Sets the head to the position up to which the controller has fetched, from a completion.
    ///
    /// # Errors
    /// [`HeadFault`] for a head that is no position or lies beyond the doorbell; nothing changes.
    pub fn set_head(&mut self, head: u16) -> Result<(), HeadFault> {
        let (slots, published) = (self.tail.slots(), self.tail.published());
        let new = u32::from(head);
        if new >= slots.get() || slots.distance(self.head, new) > slots.distance(self.head, published) {
            return Err(HeadFault { head });
        }
        self.head = new;
        Ok(())
    }
}

/// The controller's end: fetches commands.
#[derive(Debug)]
pub struct SubmissionConsumer<M> {
    memory: M,
    /// Word of the first entry.
    first: usize,
    slots: QueueSlots,
    doorbell: HostDoorbell<M>,
    /// The next entry to fetch.
    head: u32,
    /// The last tail that was loaded and validated.
    tail: u32,
}

impl<M: RingMemory> SubmissionConsumer<M> {
    /// Creates the controller's end of a pair.
    pub(crate) fn new(memory: M, layout: RingLayout) -> Self {
        let doorbell = HostDoorbell::Ring(RingLayout::SUBMISSION_DOORBELL);
        let slots = layout.submission_slots;
        doorbell.disarm(&memory, slots, 0);
        Self { memory, first: layout.submission_word(0), slots, doorbell, head: 0, tail: 0 }
    }

    /// Creates the controller's end of a queue in memory that holds only entries, with its doorbell in a register.
    pub(crate) fn over(memory: M, slots: QueueSlots) -> Self {
        Self { memory, first: 0, slots, doorbell: HostDoorbell::Register { value: 0 }, head: 0, tail: 0 }
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
        self.doorbell.store_seen(self.slots, self.tail);
    }

    /// Fetches the next command; loads the doorbell only if every command seen before is fetched.
    ///
    /// # Errors
    /// [`DoorbellFault`] if the tail is no possible position.
    #[inline]
    pub fn fetch(&mut self) -> Result<Option<SubmissionEntry>, DoorbellFault> {
        if self.head == self.tail {
            self.refresh()?;
        }
        Ok(self.fetch_seen())
    }

    /// Fetches the next command that the last load of the doorbell covered.
    #[inline]
    pub fn fetch_seen(&mut self) -> Option<SubmissionEntry> {
        if self.head == self.tail {
            return None;
        }
        let first = self.first + self.head as usize * SUBMISSION_WORDS;
        let words = self.memory.load_words(first);
        self.head = self.slots.after(self.head);
        Some(SubmissionEntry::from_words(words))
    }

    /// Returns how many commands that the last load covered precede the one with this id; `None` if it is not among
    /// them.
    pub(crate) fn commands_before(&self, command_id: u16) -> Option<u32> {
        let mut position = self.head;
        let mut before = 0;
        while position != self.tail {
            let word = self.memory.load_relaxed(self.first + position as usize * SUBMISSION_WORDS);
            let [_, _, low, high, ..] = word.to_le_bytes();
            if u16::from_le_bytes([low, high]) == command_id {
                return Some(before);
            }
            position = self.slots.after(position);
            before += 1;
        }
        None
    }

    /// Returns the most commands that the queue holds.
    pub(crate) fn entries_max(&self) -> u32 {
        self.slots.entries_max()
    }

    /// Loads the tail doorbell and checks it.
    ///
    /// # Errors
    /// [`DoorbellFault`] if the value is no position, or moves the tail past entries that were not fetched yet.
    #[inline]
    pub fn refresh(&mut self) -> Result<(), DoorbellFault> {
        let slots = self.slots;
        let value = self.doorbell.load(&self.memory);
        let waiting = slots.distance(self.head, self.tail);
        match slots.position(value) {
            Some(tail) if waiting + slots.distance(self.tail, tail) <= slots.entries_max() => {
                if self.tail != tail {
                    self.tail = tail;
                    self.doorbell.store_seen(slots, tail);
                }
                Ok(())
            }
            _ => Err(DoorbellFault { doorbell: DoorbellName::SubmissionTail, value, slots: slots.get() }),
        }
    }

    /// Returns the position of the next entry to fetch, as completions report it.
    #[must_use]
    #[inline]
    pub fn head(&self) -> u16 {
        // A position is below 65,536 slots by construction.
        narrow(self.head)
    }

    /// Returns true if [`fetch`](Self::fetch) would return a command or a fault.
    #[must_use]
    #[inline]
    pub fn has_work(&self) -> bool {
        self.head != self.tail || self.doorbell.load(&self.memory) != u64::from(self.tail)
    }

    /// Returns true if [`fetch_seen`](Self::fetch_seen) would return a command.
    #[inline]
    pub(crate) fn has_seen(&self) -> bool {
        self.head != self.tail
    }

    /// Arms a wake-up by the next ring. Sleep only if [`has_work`](Self::has_work) then returns false.
    pub fn arm(&self) {
        self.doorbell.arm(&self.memory, self.tail);
    }

    /// Announces that this side is awake.
    pub fn disarm(&self) {
        self.doorbell.disarm(&self.memory, self.slots, self.tail);
    }

    /// Returns true if the host, once requested, announces its rings.
    pub(crate) fn sends_notifications(&self) -> bool {
        self.doorbell.sends_notifications()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::ring::layout::QueueSlots;
    use headwater_host::ring_memory::HeapWords;
    use zerocopy::little_endian::U16;

    fn ends(slots: u32) -> (SubmissionProducer<HeapWords>, SubmissionConsumer<HeapWords>, HeapWords) {
        let layout = RingLayout {
            submission_slots: QueueSlots::new(slots).unwrap(),
            completion_slots: QueueSlots::new(2).unwrap(),
        };
        let memory = HeapWords::zeroed(layout.words());
        (
            SubmissionProducer::new(memory.clone(), layout),
            SubmissionConsumer::new(memory.clone(), layout),
            memory,
        )
    }

    fn numbered(id: u16) -> SubmissionEntry {
        SubmissionEntry { command_id: U16::new(id), ..SubmissionEntry::default() }
    }

    #[test]
    fn commands_arrive_once_and_in_order_over_many_wraps() {
        let (mut producer, mut consumer, _) = ends(3);
        for id in 0..100 {
            producer.push(numbered(2 * id)).unwrap();
            producer.push(numbered(2 * id + 1)).unwrap();
            assert_eq!(producer.push(numbered(0)), Err(QueueFull { context: () }));
            assert_eq!(consumer.fetch(), Ok(None), "nothing is seen before the ring");
            assert_eq!(producer.ring(), WakeDecision::NotNeeded);
            assert_eq!(consumer.fetch().unwrap(), Some(numbered(2 * id)));
            assert_eq!(consumer.fetch().unwrap(), Some(numbered(2 * id + 1)));
            assert_eq!(consumer.fetch(), Ok(None));
            producer.set_head(consumer.head()).unwrap();
        }
    }

    #[test]
    fn impossible_tails_are_faults_and_change_nothing() {
        let (mut producer, mut consumer, memory) = ends(4);
        producer.push(numbered(7)).unwrap();
        producer.push(numbered(8)).unwrap();
        let _ = producer.ring();
        consumer.refresh().unwrap();
        for value in [4, 5, 1 << 16, 1 << 32, u64::MAX, 1] {
            memory.store_release(RingLayout::SUBMISSION_TAIL, value);
            let fault = consumer.refresh().unwrap_err();
            assert_eq!((fault.value, fault.slots), (value, 4));
            assert_eq!(fault.doorbell, DoorbellName::SubmissionTail);
        }
        assert_eq!(consumer.fetch_seen(), Some(numbered(7)));
        assert_eq!(consumer.fetch_seen(), Some(numbered(8)));
    }

    #[test]
    fn impossible_heads_are_faults() {
        let (mut producer, _, _) = ends(4);
        producer.push(numbered(1)).unwrap();
        let _ = producer.ring();
        producer.push(numbered(2)).unwrap();
        for head in [2, 3, 4, u16::MAX] {
            assert_eq!(producer.set_head(head), Err(HeadFault { head }));
        }
        assert_eq!(producer.room(), 1);
        producer.set_head(1).unwrap();
        assert_eq!(producer.room(), 2);
    }

    #[test]
    fn only_the_first_ring_wakes_a_sleeper() {
        let (mut producer, mut consumer, _) = ends(8);
        consumer.arm();
        assert!(!consumer.has_work());
        producer.push(numbered(1)).unwrap();
        assert_eq!(producer.ring(), WakeDecision::Needed);
        producer.push(numbered(2)).unwrap();
        assert_eq!(producer.ring(), WakeDecision::NotNeeded);
        assert!(consumer.has_work());
        consumer.disarm();
        assert!(consumer.fetch().unwrap().is_some());
        producer.push(numbered(3)).unwrap();
        assert_eq!(producer.ring(), WakeDecision::NotNeeded);
        assert_eq!(producer.ring(), WakeDecision::NotNeeded, "nothing moved");
    }
}
