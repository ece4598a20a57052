//! A queue of future events in virtual time.
//!
//! Input: payloads with the time at which they are due.
//! Output: payloads in order of time; of two due at the same time, the one inserted first.
//! Invariant: the order depends on nothing else, so a run can be repeated.

use headwater_host::clock::Nanos;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

#[derive(Debug)]
struct TimedEvent<T> {
    at: Nanos,
    sequence: u64,
    payload: T,
}

impl<T> PartialEq for TimedEvent<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.at, self.sequence) == (other.at, other.sequence)
    }
}

impl<T> Eq for TimedEvent<T> {}

impl<T> PartialOrd for TimedEvent<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for TimedEvent<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

/// A queue of events ordered by time, then by insertion.
#[derive(Debug)]
pub struct EventQueue<T> {
    heap: BinaryHeap<Reverse<TimedEvent<T>>>,
    next_number: u64,
}

impl<T> Default for EventQueue<T> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), next_number: 0 }
    }
}

impl<T> EventQueue<T> {
    /// Creates an empty queue.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Inserts an event that is due at `at`.
    pub fn push(&mut self, at: Nanos, payload: T) {
        let number = self.next_number;
        self.next_number += 1;
        self.heap.push(Reverse(TimedEvent { at, sequence: number, payload }));
    }

    /// Returns the time at which the next event is due.
    #[must_use]
    pub fn next_at(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse(entry)| entry.at)
    }

    /// Removes and returns the next event that is due at or before `now`.
    pub fn pop_due(&mut self, now: Nanos) -> Option<(Nanos, T)> {
        if self.next_at()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| (entry.at, entry.payload))
    }

    /// Returns the number of queued events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Returns true if no event is queued.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Discards all queued events.
    pub fn clear(&mut self) {
        self.heap.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_ordered_by_time_then_by_insertion() {
        let mut queue = EventQueue::new();
        queue.push(Nanos(20), "late");
        queue.push(Nanos(10), "first of ten");
        queue.push(Nanos(10), "second of ten");
        queue.push(Nanos(5), "early");
        let order: Vec<_> = std::iter::from_fn(|| queue.pop_due(Nanos(100))).collect();
        assert_eq!(
            order,
            [
                (Nanos(5), "early"),
                (Nanos(10), "first of ten"),
                (Nanos(10), "second of ten"),
                (Nanos(20), "late")
            ]
        );
    }

    #[test]
    fn no_event_is_returned_before_it_is_due() {
        let mut queue = EventQueue::new();
        queue.push(Nanos(7), ());
        assert_eq!(queue.pop_due(Nanos(6)), None);
        assert_eq!(queue.next_at(), Some(Nanos(7)));
        assert_eq!(queue.pop_due(Nanos(7)), Some((Nanos(7), ())));
        assert!(queue.is_empty());
    }

    #[test]
    fn the_same_insertions_give_the_same_order() {
        for seed in 0..32 {
            let run = || {
                let mut rng = fastrand::Rng::with_seed(seed);
                let mut queue = EventQueue::new();
                for number in 0..500_u32 {
                    queue.push(Nanos(rng.u64(0..40)), number);
                }
                std::iter::from_fn(|| queue.pop_due(Nanos(u64::MAX))).collect::<Vec<_>>()
            };
            let order = run();
            assert!(order.windows(2).all(|pair| pair[0] < pair[1]), "seed {seed}");
            assert_eq!(order, run(), "seed {seed}");
        }
    }
}
