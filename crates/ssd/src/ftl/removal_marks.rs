//! The sequences of the last removals: what a command has seen that found no record.
//!
//! Input: each tombstone and clear as it is written. Output: the sequence that covers every removal so far. Invariant:
//! neither mark ever falls.

use crate::command::Sequence;

/// The sequences of the last removals.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RemovalMarks {
    last: Sequence,
    last_multi_key: Sequence,
}

impl RemovalMarks {
    /// Makes the marks after recovery: any record up to `last` may have been a removal of one key.
    pub(super) fn after_recovery(last: Sequence) -> Self {
        Self { last, last_multi_key: Sequence(0) }
    }

    /// Returns the sequence of the last tombstone or clear, which a command reports if it finds no record.
    #[inline]
    pub(super) fn last(&self) -> Sequence {
        self.last
    }

    /// Returns the sequence of the last record that removed more than its own key: a clear, or a delete of a batch.
    #[inline]
    pub(super) fn last_multi_key(&self) -> Sequence {
        self.last_multi_key
    }

    /// Notes a removal of one key.
    #[inline]
    pub(super) fn remove_key(&mut self, sequence: Sequence) {
        assert!(sequence >= self.last, "a removal has a sequence below that of an earlier one");
        self.last = sequence;
    }

    /// Notes a clear, or a delete of a batch.
    pub(super) fn remove_keys(&mut self, sequence: Sequence) {
        self.remove_key(sequence);
        self.last_multi_key = sequence;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_removals_of_several_keys_raise_the_second_mark() {
        let mut marks = RemovalMarks::after_recovery(Sequence(4));
        assert_eq!((marks.last(), marks.last_multi_key()), (Sequence(4), Sequence(0)));
        marks.remove_keys(Sequence(6));
        marks.remove_key(Sequence(7));
        assert_eq!((marks.last(), marks.last_multi_key()), (Sequence(7), Sequence(6)));
    }

    #[test]
    #[should_panic(expected = "below that of an earlier one")]
    fn a_mark_never_falls() {
        RemovalMarks::after_recovery(Sequence(4)).remove_key(Sequence(3));
    }
}
