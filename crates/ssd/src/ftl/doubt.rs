//! Doubt: the namespaces of which pages are lost that were durable (`docs/formats/medium-2.md`, rule 5).
//!
//! Input: for each lost page a sequence and its namespaces, and later writes. Output: whether a record, or the absence of
//! one, may be superseded by what is lost. Invariant: doubt of a namespace ends only by a clear; doubt of a key ends by any
//! write of it with a sequence that the lost page cannot hold.

use crate::command::{NamespaceId, Sequence};
use crate::config::LossDigest;
use crate::limits::SPACES;
use crate::mutant::{Mutant, mutant};
use std::collections::BTreeMap;

/// The namespaces and keys in doubt.
#[derive(Clone, Debug, Default)]
pub(crate) struct Doubts {
    /// For each namespace the highest sequence that a lost page can hold, or 0.
    below: [Sequence; SPACES],
    /// The removals of keys without a record, by digest, since their namespace is in doubt.
    settled: BTreeMap<u128, Sequence>,
}

impl Doubts {
    /// Makes the doubts that a checkpoint kept.
    pub(crate) fn new(below: [Sequence; SPACES], settled: BTreeMap<u128, Sequence>) -> Self {
        Self { below, settled }
    }

    /// Puts the records of these namespaces (bit `n` for namespace `n`) up to a sequence in doubt.
    pub(crate) fn raise(&mut self, namespaces: u32, sequence: Sequence) {
        for (number, below) in (1..).map(NamespaceId).zip(&mut self.below) {
            if namespaces & 1 << number.0 != 0 {
                *below = sequence.max(*below);
            }
        }
    }

    /// Returns true if nothing is in doubt.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.below == [Sequence(0); SPACES]
    }

    /// Returns true if a namespace is in doubt.
    #[inline]
    pub(crate) fn is_in_doubt(&self, namespace: NamespaceId) -> bool {
        self.below[namespace.index()].0 > 0
    }

    /// Returns true if a record of this sequence may be superseded by one that is lost.
    #[inline]
    pub(crate) fn covers(&self, namespace: NamespaceId, sequence: Sequence) -> bool {
        sequence < self.below[namespace.index()]
    }

    /// Returns true if a record of a key may be lost, for a key without a record; `digest` is asked for only if the
    /// namespace is in doubt.
    #[inline]
    pub(crate) fn covers_absence(&self, namespace: NamespaceId, digest: impl FnOnce() -> u128) -> bool {
        let below = self.below[namespace.index()];
        self.is_in_doubt(namespace) && self.settled.get(&digest()).is_none_or(|removed| *removed < below)
    }

    /// Notes that a key was removed by a record of this sequence.
    pub(crate) fn remove_key(&mut self, namespace: NamespaceId, digest: u128, sequence: Sequence) {
        if self.is_in_doubt(namespace) && !mutant(Mutant::RemovalSettlesNothing) {
            let settled = self.settled.entry(digest).or_default();
            *settled = sequence.max(*settled);
        }
    }

    /// Ends the doubt of a namespace of which every key was removed by a record of this sequence.
    pub(crate) fn clear(&mut self, namespace: NamespaceId, sequence: Sequence) {
        let below = &mut self.below[namespace.index()];
        if mutant(Mutant::ClearSettlesNothing) {
            return;
        }
        if *below <= sequence || mutant(Mutant::OldClearSettles) {
            *below = Sequence(0);
        }
        if self.is_empty() {
            self.settled.clear();
        }
    }

    /// Ends all doubt: the operator accepted the loss.
    pub(crate) fn accept(&mut self) {
        *self = Self::default();
    }

    /// Returns the digest by which an operator accepts this loss; another loss has another one.
    pub(crate) fn digest(&self) -> LossDigest {
        LossDigest::of(self.below.iter().map(|below| below.0))
    }

    /// Returns for each namespace, by index, the highest sequence that a lost page can hold.
    pub(crate) fn below(&self) -> &[Sequence; SPACES] {
        &self.below
    }

    /// Returns the removed keys.
    pub(crate) fn settled(&self) -> impl ExactSizeIterator<Item = (u128, Sequence)> + '_ {
        self.settled.iter().map(|(digest, sequence)| (*digest, *sequence))
    }

    /// Returns the removed keys from this digest on, in the order of their digests.
    pub(crate) fn settled_from(&self, digest: u128) -> impl Iterator<Item = (u128, Sequence)> + '_ {
        self.settled.range(digest..).map(|(digest, sequence)| (*digest, *sequence))
    }

    /// Returns the number of namespaces in doubt.
    pub(crate) fn namespaces(&self) -> usize {
        self.below.iter().filter(|below| below.0 > 0).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: NamespaceId = NamespaceId(1);
    const SECOND: NamespaceId = NamespaceId(2);

    #[test]
    fn doubt_covers_what_a_lost_page_can_supersede() {
        let mut doubts = Doubts::default();
        assert!(doubts.is_empty());
        doubts.raise(1 << 1, Sequence(10));
        assert!(doubts.covers(FIRST, Sequence(9)) && !doubts.covers(FIRST, Sequence(10)));
        assert!(!doubts.covers(SECOND, Sequence(1)));
        assert!(doubts.covers_absence(FIRST, || 5) && !doubts.covers_absence(SECOND, || 5));
        doubts.remove_key(FIRST, 5, Sequence(11));
        assert!(!doubts.covers_absence(FIRST, || 5) && doubts.covers_absence(FIRST, || 6));
        doubts.raise(1 << 1, Sequence(20));
        assert!(doubts.covers_absence(FIRST, || 5), "a later loss can hold a later write of the key");
        doubts.clear(FIRST, Sequence(19));
        assert!(!doubts.is_empty(), "the lost page can hold what was written after that clear");
        doubts.clear(FIRST, Sequence(20));
        assert!(doubts.is_empty());
    }
}
