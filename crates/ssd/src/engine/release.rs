//! Holds each completion back until everything that it wrote or saw is durable.
//!
//! Input: completions with the sequence they depend on. Output: the same completions, per front end, in the order of
//! their release. Invariant: a completion is returned exactly once, and not before `durable` has reached its gate.

use crate::command::{FrontEndId, Sequence, SsdCompletion};
use std::collections::{BTreeMap, VecDeque};

/// The completions that wait for durability, and the released ones that no front end has taken yet.
#[derive(Debug, Default)]
pub struct ReleaseQueue {
    gated: BTreeMap<(Sequence, u64), (FrontEndId, SsdCompletion)>,
    ready: Vec<VecDeque<SsdCompletion>>,
    next_arrival: u64,
    released: u64,
    pushed: u64,
}

impl ReleaseQueue {
    /// Adds a completion that may be released once everything up to `gate` is durable.
    pub fn push(&mut self, face: FrontEndId, completion: SsdCompletion, gate: Sequence, durable: Sequence) {
        self.pushed += 1;
        if gate <= durable {
            self.make_ready(face, completion);
        } else {
            self.gated.insert((gate, self.next_arrival), (face, completion));
            self.next_arrival += 1;
        }
    }

    fn make_ready(&mut self, face: FrontEndId, completion: SsdCompletion) {
        let face = usize::from(face.0);
        if self.ready.len() <= face {
            self.ready.resize_with(face + 1, VecDeque::new);
        }
        self.ready[face].push_back(completion);
        self.released += 1;
    }

    /// Releases all completions with a gate up to `durable`. Returns true if there were any.
    pub fn release_up_to(&mut self, durable: Sequence) -> bool {
        if self.gated.first_key_value().is_none_or(|((gate, _), _)| *gate > durable) {
            return false;
        }
        let later = self.gated.split_off(&(Sequence(durable.0 + 1), 0));
        for (face, completion) in std::mem::replace(&mut self.gated, later).into_values() {
            self.make_ready(face, completion);
        }
        true
    }

    /// Releases all waiting completions with this status, after durability has failed. Returns true if there were any.
    pub fn fail(&mut self, status: headwater_nvme::spec::status::Status) -> bool {
        let failed = std::mem::take(&mut self.gated);
        let any = !failed.is_empty();
        for (face, completion) in failed.into_values() {
            self.make_ready(face, SsdCompletion { status, ..completion });
        }
        any
    }

    /// Takes the next released completion of a front end.
    pub fn pop(&mut self, face: FrontEndId) -> Option<SsdCompletion> {
        self.ready.get_mut(usize::from(face.0))?.pop_front()
    }

    /// Returns the number of completions that wait for durability.
    #[must_use]
    pub fn gated(&self) -> usize {
        self.gated.len()
    }

    /// Returns the number of completions added so far.
    #[must_use]
    pub fn pushed(&self) -> u64 {
        self.pushed
    }

    /// Returns the number of completions released so far.
    #[must_use]
    pub fn released(&self) -> u64 {
        self.released
    }

    /// Returns the highest sequence that a completion waits for.
    #[must_use]
    pub fn highest_gate(&self) -> Option<Sequence> {
        self.gated.last_key_value().map(|((gate, _), _)| *gate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_nvme::spec::status::Status;

    fn completion(token: u64) -> SsdCompletion {
        SsdCompletion::new(token, Status::SUCCESS)
    }

    #[test]
    fn completions_are_released_once_and_not_before_their_gate() {
        let mut release = ReleaseQueue::default();
        let face = FrontEndId(1);
        release.push(face, completion(1), Sequence(5), Sequence(3));
        release.push(face, completion(2), Sequence(3), Sequence(3));
        release.push(face, completion(3), Sequence(5), Sequence(3));
        assert_eq!(release.pop(face).unwrap().token, 2);
        assert!(release.pop(face).is_none());
        assert!(!release.release_up_to(Sequence(4)));
        assert!(release.pop(face).is_none());
        assert!(release.release_up_to(Sequence(5)));
        assert_eq!(release.pop(face).unwrap().token, 1);
        assert_eq!(release.pop(face).unwrap().token, 3);
        assert!(release.pop(face).is_none());
        assert!(release.pop(FrontEndId(9)).is_none());
    }
}
