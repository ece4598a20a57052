//! The release rule: no completion leaves before everything it wrote or saw is durable.
//!
//! In: completions with the sequence they depend on. Out: the same completions, per face, in the order in which they may
//! leave. Invariant: a completion is handed out exactly once, and not before `durable` has reached its gate.

use crate::command::{Completion, FaceId, Sequence};
use std::collections::{BTreeMap, VecDeque};

/// Completions that wait for durability, and those that wait to be fetched.
#[derive(Debug, Default)]
pub struct Release {
    gated: BTreeMap<(Sequence, u64), (FaceId, Completion)>,
    ready: Vec<VecDeque<Completion>>,
    arrival: u64,
    released: u64,
}

impl Release {
    /// A completion that may leave when everything up to `gate` is durable.
    pub fn push(&mut self, face: FaceId, completion: Completion, gate: Sequence, durable: Sequence) {
        if gate <= durable {
            self.let_go(face, completion);
        } else {
            self.gated.insert((gate, self.arrival), (face, completion));
            self.arrival += 1;
        }
    }

    fn let_go(&mut self, face: FaceId, completion: Completion) {
        let face = usize::from(face.0);
        if self.ready.len() <= face {
            self.ready.resize_with(face + 1, VecDeque::new);
        }
        self.ready[face].push_back(completion);
        self.released += 1;
    }

    /// Lets everything go that depends on nothing above `durable`. Returns whether anything went.
    pub fn advance(&mut self, durable: Sequence) -> bool {
        if self.gated.first_key_value().is_none_or(|((gate, _), _)| *gate > durable) {
            return false;
        }
        let later = self.gated.split_off(&(Sequence(durable.0 + 1), 0));
        for (face, completion) in std::mem::replace(&mut self.gated, later).into_values() {
            self.let_go(face, completion);
        }
        true
    }

    /// Durability has failed: everything that waits for it is answered with this status. Returns whether anything was.
    pub fn fail(&mut self, status: headwater_nvme::spec::status::Status) -> bool {
        let failed = std::mem::take(&mut self.gated);
        let any = !failed.is_empty();
        for (face, completion) in failed.into_values() {
            self.let_go(face, Completion { status, ..completion });
        }
        any
    }

    /// The next completion for a face.
    pub fn pop(&mut self, face: FaceId) -> Option<Completion> {
        self.ready.get_mut(usize::from(face.0))?.pop_front()
    }

    /// Completions waiting for durability.
    #[must_use]
    pub fn gated(&self) -> usize {
        self.gated.len()
    }

    /// Completions that have been let go so far.
    #[must_use]
    pub fn released(&self) -> u64 {
        self.released
    }

    /// The highest sequence that a completion waits for.
    #[must_use]
    pub fn wanted(&self) -> Option<Sequence> {
        self.gated.last_key_value().map(|((gate, _), _)| *gate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_nvme::spec::status::Status;

    fn completion(token: u64) -> Completion {
        Completion::new(token, Status::SUCCESS)
    }

    #[test]
    fn nothing_leaves_before_its_gate_and_everything_once() {
        let mut release = Release::default();
        let face = FaceId(1);
        release.push(face, completion(1), Sequence(5), Sequence(3));
        release.push(face, completion(2), Sequence(3), Sequence(3));
        release.push(face, completion(3), Sequence(5), Sequence(3));
        assert_eq!(release.pop(face).unwrap().token, 2);
        assert!(release.pop(face).is_none());
        assert!(!release.advance(Sequence(4)));
        assert!(release.pop(face).is_none());
        assert!(release.advance(Sequence(5)));
        assert_eq!(release.pop(face).unwrap().token, 1);
        assert_eq!(release.pop(face).unwrap().token, 3);
        assert!(release.pop(face).is_none());
        assert!(release.pop(FaceId(9)).is_none());
    }
}
