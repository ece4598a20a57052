//! The jobs of the mover that an operation waits for, and what they copied.
//!
//! Input: the number of jobs and the range of the value that they copy, then their ends. Output: the range that is in the sink.
//! Invariant: a range counts as copied only when no job is left.

use std::ops::Range;

/// The jobs of an operation.
#[derive(Debug, Default)]
pub(crate) struct OperationMoves {
    /// Jobs that have not ended.
    left: usize,
    /// The range of the value that they copy.
    under_way: Range<usize>,
    /// The range of the value that is in the sink by jobs that have ended.
    pub(crate) copied: Range<usize>,
}

impl OperationMoves {
    /// Begins to wait for `left` jobs, which copy a range. A range that does not continue the copied one replaces it.
    pub(super) fn begin(&mut self, left: usize, range: Range<usize>) {
        if self.copied.end != range.start {
            self.copied = range.start..range.start;
        }
        (self.left, self.under_way) = (left, range);
    }

    /// Notes the end of a job.
    ///
    /// # Panics
    /// None is left.
    pub(super) fn end_one(&mut self) {
        let left = self.left.checked_sub(1);
        self.left = left.expect("a job ended that its operation does not wait for");
    }

    /// Returns the end of the range that is copied, if no job is left.
    pub(super) fn finish(&mut self) -> Option<usize> {
        if self.left > 0 {
            return None;
        }
        self.copied.end = self.under_way.end;
        Some(self.copied.end)
    }
}
