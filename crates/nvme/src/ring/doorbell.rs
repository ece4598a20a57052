//! The doorbell handshake: store, fence, look whether somebody sleeps; and its mirror for the sleeper.
//!
//! In: positions that moved. Out: [`Wake`], whether the other side must be woken by a call into the kernel. The proof that
//! no wake-up is lost is in the loom models beside this file; it rests on the fence between store and load on both sides.

use crate::ring::layout::QueueSlots;
use headwater_host::ring_memory::RingMemory;

/// The event position of a side that is awake. No queue has this position, and its low 16 bits are outside all but the
/// largest queue, so a ringer that compares 16 bits only is at worst too eager.
const AWAKE: u64 = u64::MAX;

/// Whether the other side asked to be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a side that asked to be woken sleeps until it is"]
pub enum Wake {
    /// It sleeps until its descriptor is written.
    Needed,
    /// It is awake, or was woken already.
    NotNeeded,
}

impl Wake {
    /// Needed if either is.
    pub fn or(self, other: Self) -> Self {
        match self {
            Self::Needed => Self::Needed,
            Self::NotNeeded => other,
        }
    }
}

/// Names a doorbell that the other side writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoorbellName {
    /// Submission queue tail.
    SubmissionTail,
    /// Completion queue head.
    CompletionHead,
}

/// A doorbell holds a value that no correct host writes; the queue cannot be trusted any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "doorbell {doorbell:?} was set to {value}, impossible for a queue of {slots} slots; delete the queue pair and create it again"
)]
pub struct DoorbellFault {
    /// Which one.
    pub doorbell: DoorbellName,
    /// What it holds.
    pub value: u64,
    /// Size of its queue.
    pub slots: u32,
}

/// A position that moved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    /// Where it is now.
    pub(crate) to: u32,
    /// How many steps led there. More than the slots if it went round and the other side kept pace.
    pub(crate) steps: u32,
}

/// Called behind the store of a moved position and a fence: does the sleeper want to know?
#[inline]
pub(crate) fn wake_after_fence(
    memory: &impl RingMemory,
    event_word: usize,
    slots: QueueSlots,
    moved: Moved,
) -> Wake {
    // The other side writes this word; whatever it holds, the answer is one wake-up too many or one that it gave up.
    match slots.position(memory.load_relaxed(event_word)) {
        Some(event) if slots.steps_back(moved.to, event) <= moved.steps => Wake::Needed,
        _ => Wake::NotNeeded,
    }
}

/// Asks to be woken when the position moves on from `seen`. The caller must look once more before it sleeps.
#[inline]
pub(crate) fn arm(memory: &impl RingMemory, event_word: usize, seen: u32) {
    memory.store_relaxed(event_word, u64::from(seen));
    memory.fence();
}

/// Says that nobody sleeps.
#[inline]
pub(crate) fn disarm(memory: &impl RingMemory, event_word: usize) {
    memory.store_relaxed(event_word, AWAKE);
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use headwater_host::ring_memory::SharedWords;

    #[test]
    fn wake_is_needed_only_when_the_event_was_crossed() {
        let memory = SharedWords::zeroed(1);
        let slots = QueueSlots::new(4).unwrap();
        for start in 0..4 {
            // More steps than slots: the other side may have kept pace since the last look.
            for steps in 0..10 {
                for event in 0..4 {
                    arm(&memory, 0, event);
                    // Walk the circle step by step, as a naive model of "left that position".
                    let (mut end, mut crossed) = (start, false);
                    for _ in 0..steps {
                        crossed |= end == event;
                        end = slots.after(end);
                    }
                    let moved = Moved { to: end, steps };
                    let wake = wake_after_fence(&memory, 0, slots, moved);
                    assert_eq!(wake == Wake::Needed, crossed, "{moved:?}, event {event}");
                }
                disarm(&memory, 0);
                let moved = Moved { to: start, steps };
                assert_eq!(wake_after_fence(&memory, 0, slots, moved), Wake::NotNeeded);
            }
        }
    }
}
