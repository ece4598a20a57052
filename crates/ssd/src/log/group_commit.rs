//! Group commit: appended records become durable, one flush at a time.
//!
//! Input: requests to make everything up to a point durable. Output: seals of the log, flushes of the medium, and the
//! sequence up to which everything is durable. Records appended during a commit belong to the next one.
//!
//! ```text
//!  Idle --seal--> Programming --every program done--> Flushing --flush done--> Idle
//!                      \------- medium without a volatile cache ---------------/
//! ```
//!
//! Invariant: `durable` never covers a record whose page could still be lost.

use crate::command::Sequence;

/// The part of the log that a commit makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitTarget {
    /// Every sequence up to this one.
    pub sequence: Sequence,
    /// Every program with an id below this one.
    pub barrier: u64,
    /// Every block up to this order has its first page among those programs.
    pub order: u64,
    /// The durable stamp of its pages: sequence and block order.
    pub durable_stamp: (Sequence, u64),
}

/// The step of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitState {
    /// No commit runs.
    Idle,
    /// Waiting for programs.
    Programming(CommitTarget),
    /// Waiting for the flush.
    Flushing(CommitTarget),
}

/// The durable prefix of the log.
#[derive(Debug)]
pub struct GroupCommit {
    /// The step of the current commit.
    state: CommitState,
    /// Every sequence up to this one is durable.
    durable: Sequence,
    /// Every program with an id below this one is durable.
    durable_barrier: u64,
    /// A durable page carries the stamp that every sequence up to this one is durable. Only blocks without younger
    /// records may be collected.
    stamped_durable: Sequence,
    /// A durable page carries the stamp that every block up to this order has its first page. Only such blocks may be
    /// collected.
    stamped_order: u64,
    /// Every block up to this order has its first page durable.
    durable_order: u64,
    /// The highest sequence that is requested to be durable.
    requested_sequence: Sequence,
    /// The barrier that the collector requested to be durable.
    requested_barrier: u64,
    /// True if completed erases are to be made durable, even if nothing else is.
    flush_requested: bool,
    /// Commits completed.
    commits: u64,
}

impl GroupCommit {
    /// Makes the state after recovery: everything up to `durable` is durable, and a durable page carries the stamp
    /// `stamped_durable`.
    #[must_use]
    pub fn new(durable: Sequence, stamped_durable: Sequence, order: u64) -> Self {
        Self {
            state: CommitState::Idle,
            durable,
            durable_barrier: 0,
            stamped_durable,
            stamped_order: order,
            durable_order: order,
            requested_sequence: durable,
            requested_barrier: 0,
            flush_requested: false,
            commits: 0,
        }
    }

    /// Raises the sequence that is requested to be durable.
    pub fn request_sequence(&mut self, sequence: Sequence) {
        self.requested_sequence = self.requested_sequence.max(sequence);
    }

    /// Raises the barrier that the collector requests to be durable.
    pub fn request_barrier(&mut self, barrier: u64) {
        self.requested_barrier = self.requested_barrier.max(barrier);
    }

    /// Makes a commit due for completed erases, even if nothing else is to become durable.
    pub fn request_flush(&mut self) {
        self.flush_requested = true;
    }

    /// Returns the step of the current commit.
    #[must_use]
    #[inline]
    pub fn state(&self) -> CommitState {
        self.state
    }

    /// Returns the sequence up to which everything is durable.
    #[must_use]
    #[inline]
    pub fn durable(&self) -> Sequence {
        self.durable
    }

    /// Returns the barrier below which every program is durable.
    #[must_use]
    pub fn durable_barrier(&self) -> u64 {
        self.durable_barrier
    }

    /// Returns the order up to which every block has its first page durable.
    #[must_use]
    pub fn durable_order(&self) -> u64 {
        self.durable_order
    }

    /// Returns the highest durable stamp, sequence and block order, that a durable page carries. Only blocks up to it
    /// may be collected.
    #[must_use]
    pub fn durable_stamp(&self) -> (Sequence, u64) {
        (self.stamped_durable, self.stamped_order)
    }

    /// Returns the number of commits completed.
    #[must_use]
    pub fn commits(&self) -> u64 {
        self.commits
    }

    /// Starts a commit.
    ///
    /// # Panics
    /// Another commit runs.
    pub fn begin(&mut self, target: CommitTarget) {
        assert!(self.is_idle(), "a commit began while another one runs: {:?}", self.state);
        self.state = CommitState::Programming(target);
        self.flush_requested = false;
    }

    /// Waits for the flush of the current commit, whose programs are complete.
    ///
    /// # Panics
    /// The current commit does not wait for programs.
    pub fn begin_flush(&mut self) {
        let CommitState::Programming(target) = self.state else {
            panic!("a flush began for a commit that does not wait for programs: {:?}", self.state);
        };
        self.state = CommitState::Flushing(target);
    }

    /// Returns true if no commit runs.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.state == CommitState::Idle
    }

    /// Returns true if a commit should start now.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.state == CommitState::Idle
            && (self.requested_sequence > self.durable
                || self.requested_barrier > self.durable_barrier
                || self.flush_requested)
    }

    /// Completes a commit.
    pub fn finish(&mut self, target: CommitTarget) {
        self.state = CommitState::Idle;
        self.durable = self.durable.max(target.sequence);
        if target.barrier > self.durable_barrier {
            self.durable_barrier = target.barrier;
            self.durable_order = self.durable_order.max(target.order);
            self.stamped_durable = self.stamped_durable.max(target.durable_stamp.0);
            self.stamped_order = self.stamped_order.max(target.durable_stamp.1);
        }
        self.commits += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_is_due_only_while_more_is_requested_than_is_durable() {
        let mut commit = GroupCommit::new(Sequence(3), Sequence(3), 0);
        assert!(!commit.is_due());
        commit.request_sequence(Sequence(3));
        assert!(!commit.is_due());
        commit.request_sequence(Sequence(5));
        assert!(commit.is_due());
        let target =
            CommitTarget { sequence: Sequence(5), barrier: 2, order: 7, durable_stamp: (Sequence(3), 5) };
        commit.begin(target);
        assert!(!commit.is_due(), "a second commit started while one runs");
        commit.finish(target);
        assert_eq!((commit.durable, commit.stamped_durable), (Sequence(5), Sequence(3)));
        commit.request_barrier(9);
        assert!(commit.is_due());
    }

    #[test]
    fn a_commit_without_pages_leaves_the_durable_stamp_on_the_medium_unchanged() {
        let mut commit = GroupCommit::new(Sequence(1), Sequence(1), 0);
        commit.finish(CommitTarget {
            sequence: Sequence(4),
            barrier: 0,
            order: 7,
            durable_stamp: (Sequence(4), 5),
        });
        assert_eq!((commit.durable, commit.stamped_durable), (Sequence(4), Sequence(1)));
    }
}
