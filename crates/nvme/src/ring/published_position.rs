//! The position that a host moves in one queue and publishes in a doorbell: a submission tail or a completion head.
//!
//! Input: steps. Output: the doorbell's value, and [`WakeDecision`]. Invariant: a position is below the slots of its
//! queue; the doorbell is stored after every access to the entries that it covers; a published step is checked for a
//! sleeping controller once, after a fence.

use crate::ring::doorbell::{MovedPosition, WakeDecision, wake_after_fence};
use crate::ring::layout::{DoorbellWords, QueueSlots};
use headwater_host::ring_memory::RingMemory;

/// A position of the host, and how much of it the controller can know.
#[derive(Debug)]
pub(super) struct PublishedPosition {
    slots: QueueSlots,
    /// Position of the next entry.
    next: u32,
    /// The position in the doorbell.
    published: u32,
    /// The position at the last check for a sleeping controller, after a fence.
    rung: u32,
}

impl PublishedPosition {
    /// Creates the position at the first slot, as a doorbell of 0 shows it.
    pub(super) const fn new(slots: QueueSlots) -> Self {
        Self { slots, next: 0, published: 0, rung: 0 }
    }

    /// Returns the slots of the queue.
    #[inline]
    pub(super) fn slots(&self) -> QueueSlots {
        self.slots
    }

    /// Returns the position of the next entry.
    #[inline]
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// Returns the position in the doorbell.
    #[inline]
    pub(super) fn published(&self) -> u32 {
        self.published
    }

    /// Moves to the entry after the next, which is the first after the last; returns true if it is the first.
    #[inline]
    pub(super) fn advance(&mut self) -> bool {
        self.next = self.slots.after(self.next);
        self.next == 0
    }

    /// Returns the position if the doorbell does not show it yet. The caller publishes it, ordered after all loads and
    /// stores before this.
    #[inline]
    pub(super) fn unpublished(&mut self) -> Option<u32> {
        let moved = self.published != self.next;
        self.published = self.next;
        moved.then_some(self.next)
    }

    /// Stores the doorbell; returns true if it moved. The caller then fences and calls `wake_after_fence`.
    #[inline]
    pub(super) fn publish(&mut self, memory: &impl RingMemory, doorbell: DoorbellWords) -> bool {
        let Some(position) = self.unpublished() else {
            return false;
        };
        // Release: a controller that acquires a tail sees its entries; and the host's loads of the entries before a
        // head come before the controller's next stores to their slots.
        memory.store_release(doorbell.position, u64::from(position));
        true
    }

    /// Returns whether the controller must be woken for what was published since the last call.
    #[inline]
    pub(super) fn wake_after_fence(
        &mut self,
        memory: &impl RingMemory,
        doorbell: DoorbellWords,
    ) -> WakeDecision {
        if self.rung == self.published {
            return WakeDecision::NotNeeded;
        }
        // Fewer steps than slots. The head that bounds a tail comes from completions of commands that were rung; the
        // controller posts no further than the published head allows.
        let moved =
            MovedPosition { to: self.published, steps: self.slots.distance(self.rung, self.published) };
        self.rung = self.published;
        wake_after_fence(memory, doorbell.event, self.slots, moved)
    }

    /// Publishes, fences, and returns whether the controller must be woken.
    #[inline]
    pub(super) fn ring(&mut self, memory: &impl RingMemory, doorbell: DoorbellWords) -> WakeDecision {
        if self.publish(memory, doorbell) {
            memory.fence();
        }
        self.wake_after_fence(memory, doorbell)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::ring::doorbell::arm;
    use headwater_host::ring_memory::HeapWords;

    const DOORBELL: DoorbellWords = DoorbellWords { position: 0, event: 1 };

    #[test]
    fn doorbell_shows_every_step_once_over_many_wraps() {
        let memory = HeapWords::zeroed(2);
        let mut position = PublishedPosition::new(QueueSlots::new(3).unwrap());
        assert_eq!(position.unpublished(), None);
        for step in 1..100_u32 {
            assert_eq!(position.advance(), step % 3 == 0);
            assert_eq!(u64::from(position.published()), memory.load_acquire(0), "not before it is published");
            assert!(position.publish(&memory, DOORBELL));
            assert!(!position.publish(&memory, DOORBELL), "nothing moved");
            assert_eq!(memory.load_acquire(0), u64::from(step % 3));
            assert_eq!((position.next(), position.published()), (step % 3, step % 3));
        }
    }

    #[test]
    fn sleeper_is_woken_once_by_the_step_that_leaves_its_event() {
        let memory = HeapWords::zeroed(2);
        let mut position = PublishedPosition::new(QueueSlots::new(4).unwrap());
        for event in [1, 3, 0, 2] {
            arm(&memory, DOORBELL.event, event);
            while position.next() != event {
                position.advance();
            }
            assert_eq!(position.ring(&memory, DOORBELL), WakeDecision::NotNeeded, "at {event}");
            position.advance();
            assert_eq!(position.ring(&memory, DOORBELL), WakeDecision::Needed, "beyond {event}");
            assert_eq!(position.ring(&memory, DOORBELL), WakeDecision::NotNeeded, "nothing moved");
        }
    }
}
