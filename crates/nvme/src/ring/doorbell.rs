//! The doorbell handshake: store, fence, check for a sleeper; and the mirror sequence of the sleeper.
//!
//! Input: positions that moved. Output: [`WakeDecision`], whether the other side must be woken by a system call. The proof that
//! no wake-up is lost is in the loom models beside this file; it rests on the fence between store and load on both
//! sides.

use crate::ring::layout::QueueSlots;
use headwater_host::ring_memory::RingMemory;

/// The event position of a side that is awake. No queue has this position. Its low 16 bits are outside all but the
/// largest queue, so a ringing side that compares only 16 bits sends at worst a needless wake-up.
const AWAKE: u64 = u64::MAX;

/// A decision whether to wake the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a side that requested a wake-up sleeps until it arrives"]
pub enum WakeDecision {
    /// The other side sleeps until its descriptor is written.
    Needed,
    /// The other side is awake, or was woken already.
    NotNeeded,
}

impl WakeDecision {
    /// Returns `Needed` if either is.
    pub fn or(self, other: Self) -> Self {
        match self {
            Self::Needed => Self::Needed,
            Self::NotNeeded => other,
        }
    }
}

/// A doorbell that the other side writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoorbellName {
    /// Submission queue tail.
    SubmissionTail,
    /// Completion queue head.
    CompletionHead,
}

/// A doorbell value that no correct host writes; the queue can no longer be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "doorbell {doorbell:?} has value {value}, impossible for a queue of {slots} slots; delete and create the queue pair"
)]
pub struct DoorbellFault {
    /// The doorbell.
    pub doorbell: DoorbellName,
    /// Its value.
    pub value: u64,
    /// Slots of its queue.
    pub slots: u32,
}

/// A position that moved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MovedPosition {
    /// The new position.
    pub(crate) to: u32,
    /// Steps from the old position. More than the slots if it went round and the other side kept up.
    pub(crate) steps: u32,
}

/// Returns whether a sleeper requested this wake-up. Call it after the store of a moved position and a fence.
#[inline]
pub(crate) fn wake_after_fence(
    memory: &impl RingMemory,
    event_word: usize,
    slots: QueueSlots,
    moved: MovedPosition,
) -> WakeDecision {
    // The other side writes this word: a wrong value costs a needless wake-up, or only that side's own wake-up.
    match slots.position(memory.load_relaxed(event_word)) {
        Some(event) if slots.steps_back(moved.to, event) <= moved.steps => WakeDecision::Needed,
        _ => WakeDecision::NotNeeded,
    }
}

/// Arms a wake-up when the position moves on from `seen`. The caller must check once more before it sleeps.
#[inline]
pub(crate) fn arm(memory: &impl RingMemory, event_word: usize, seen: u32) {
    memory.store_relaxed(event_word, u64::from(seen));
    memory.fence();
}

/// Announces that this side is awake.
#[inline]
pub(crate) fn disarm(memory: &impl RingMemory, event_word: usize) {
    memory.store_relaxed(event_word, AWAKE);
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use headwater_host::ring_memory::HeapWords;

    #[test]
    fn wake_is_needed_only_if_the_event_was_crossed() {
        let memory = HeapWords::zeroed(1);
        let slots = QueueSlots::new(4).unwrap();
        for start in 0..4 {
            // More steps than slots: the other side may have kept up since the last check.
            for steps in 0..10 {
                for event in 0..4 {
                    arm(&memory, 0, event);
                    // Walk the ring step by step, as a naive model of "left that position".
                    let (mut end, mut crossed) = (start, false);
                    for _ in 0..steps {
                        crossed |= end == event;
                        end = slots.after(end);
                    }
                    let moved = MovedPosition { to: end, steps };
                    let wake = wake_after_fence(&memory, 0, slots, moved);
                    assert_eq!(wake == WakeDecision::Needed, crossed, "{moved:?}, event {event}");
                }
                disarm(&memory, 0);
                let moved = MovedPosition { to: start, steps };
                assert_eq!(wake_after_fence(&memory, 0, slots, moved), WakeDecision::NotNeeded);
            }
        }
    }
}
