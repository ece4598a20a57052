//! The layout of a queue pair in ring memory, and arithmetic on positions.
//!
//! Input: the slots of each queue. Output: word numbers. Invariant: words written by different sides never share a
//! cache line.

use crate::spec::command::SUBMISSION_WORDS;
use crate::spec::completion::COMPLETION_WORDS;
use headwater_host::ring_memory::LINE_WORDS;

/// Fewest slots of a queue: one is always empty (NVMe Base 2.0 section 3.3.1.4).
pub const QUEUE_SLOTS_MIN: u32 = 2;
/// Most slots of a queue: the limit of the 16-bit queue size in a create command.
pub const QUEUE_SLOTS_MAX: u32 = 1 << 16;

/// A validated number of slots of a queue, one more than the entries of a full queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueSlots(u32);

/// A number of slots out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{slots} slots of a queue are out of range; choose {QUEUE_SLOTS_MIN} to {QUEUE_SLOTS_MAX}")]
pub struct QueueSlotsError {
    /// Requested slots.
    pub slots: u32,
}

impl QueueSlots {
    /// The largest number of slots.
    pub const MAX: Self = Self(QUEUE_SLOTS_MAX);

    /// Validates a number of slots.
    ///
    /// # Errors
    /// [`QueueSlotsError`] outside [`QUEUE_SLOTS_MIN`] to [`QUEUE_SLOTS_MAX`].
    pub const fn new(slots: u32) -> Result<Self, QueueSlotsError> {
        if slots < QUEUE_SLOTS_MIN || slots > QUEUE_SLOTS_MAX {
            return Err(QueueSlotsError { slots });
        }
        Ok(Self(slots))
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns the entries of a full queue.
    #[must_use]
    pub const fn entries_max(self) -> u32 {
        self.0 - 1
    }

    /// Returns the next position.
    #[must_use]
    #[inline]
    pub(crate) const fn after(self, position: u32) -> u32 {
        if position + 1 == self.0 { 0 } else { position + 1 }
    }

    /// Returns the steps from one position to another.
    #[must_use]
    #[inline]
    pub(crate) const fn distance(self, from: u32, to: u32) -> u32 {
        if to >= from { to - from } else { to + self.0 - from }
    }

    /// Returns the previous position.
    #[must_use]
    #[inline]
    pub(crate) const fn before(self, position: u32) -> u32 {
        if position == 0 { self.0 - 1 } else { position - 1 }
    }

    /// Returns how many steps before `from` the position last left `to`: a whole lap if they are equal.
    #[must_use]
    #[inline]
    pub(crate) const fn steps_back(self, from: u32, to: u32) -> u32 {
        if to < from { from - to } else { from + self.0 - to }
    }

    /// Returns a word from the other side as a position, if it is in range.
    #[must_use]
    #[inline]
    pub(crate) fn position(self, word: u64) -> Option<u32> {
        u32::try_from(word).ok().filter(|&position| position < self.0)
    }
}

/// The two words of one doorbell of the host in ring memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DoorbellWords {
    /// Written by the host.
    pub(crate) position: usize,
    /// Written by the controller: it requests a wake-up when the host leaves this position.
    pub(crate) event: usize,
}

/// The layout of one queue pair in ring memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLayout {
    /// Slots of the submission queue.
    pub submission_slots: QueueSlots,
    /// Slots of the completion queue.
    pub completion_slots: QueueSlots,
}

impl RingLayout {
    /// Written by the host: one past the last command.
    pub const SUBMISSION_TAIL: usize = 0;
    /// Written by the controller: it requests a wake-up when the submission tail leaves this position.
    pub const SUBMISSION_TAIL_EVENT: usize = LINE_WORDS;
    /// Written by the host: the next completion it will read.
    pub const COMPLETION_HEAD: usize = 2 * LINE_WORDS;
    /// Written by the controller: it requests a wake-up when the completion head leaves this position.
    pub const COMPLETION_HEAD_EVENT: usize = 3 * LINE_WORDS;
    /// Written by the host: it requests a wake-up when the completion tail leaves this position.
    pub const COMPLETION_TAIL_EVENT: usize = 4 * LINE_WORDS;

    pub(crate) const SUBMISSION_DOORBELL: DoorbellWords =
        DoorbellWords { position: Self::SUBMISSION_TAIL, event: Self::SUBMISSION_TAIL_EVENT };
    pub(crate) const COMPLETION_DOORBELL: DoorbellWords =
        DoorbellWords { position: Self::COMPLETION_HEAD, event: Self::COMPLETION_HEAD_EVENT };

    const ENTRIES: usize = 5 * LINE_WORDS;

    /// Returns the words of ring memory that the pair needs.
    #[must_use]
    pub const fn words(self) -> usize {
        self.completion_word(self.completion_slots.get())
    }

    /// Returns the first word of a submission entry.
    #[must_use]
    #[inline]
    pub const fn submission_word(self, position: u32) -> usize {
        Self::ENTRIES + position as usize * SUBMISSION_WORDS
    }

    /// Returns the first word of a completion entry.
    #[must_use]
    #[inline]
    pub const fn completion_word(self, position: u32) -> usize {
        self.submission_word(self.submission_slots.get()) + position as usize * COMPLETION_WORDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_out_of_range_are_refused() {
        for slots in [0, 1, QUEUE_SLOTS_MAX + 1, u32::MAX] {
            assert_eq!(QueueSlots::new(slots), Err(QueueSlotsError { slots }));
        }
        assert_eq!(QueueSlots::new(2).unwrap().entries_max(), 1);
        assert_eq!(QueueSlots::new(QUEUE_SLOTS_MAX).unwrap().get(), 65_536);
    }

    #[test]
    fn positions_wrap_at_the_queue_size() {
        let slots = QueueSlots::new(3).unwrap();
        assert_eq!(slots.after(2), 0);
        assert_eq!(slots.distance(2, 1), 2);
        assert_eq!(slots.distance(1, 1), 0);
        assert_eq!((slots.before(0), slots.before(2)), (2, 1));
        assert_eq!((slots.steps_back(1, 0), slots.steps_back(1, 2), slots.steps_back(1, 1)), (1, 2, 3));
        assert_eq!(slots.position(2), Some(2));
        assert_eq!(slots.position(3), None);
        assert_eq!(slots.position(1 << 32), None);
    }

    #[test]
    fn entries_follow_the_doorbells_and_do_not_overlap() {
        let layout = RingLayout {
            submission_slots: QueueSlots::new(3).unwrap(),
            completion_slots: QueueSlots::new(5).unwrap(),
        };
        assert_eq!(layout.submission_word(0), 40);
        assert_eq!(layout.completion_word(0), 64);
        assert_eq!(layout.words(), 74);
    }
}
