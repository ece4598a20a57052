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
    pub stamp: (Sequence, u64),
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
    pub state: CommitState,
    /// Every sequence up to this one is durable.
    pub durable: Sequence,
    /// Every program with an id below this one is durable.
    pub durable_barrier: u64,
    /// A durable page carries the stamp that every sequence up to this one is durable. Only blocks without younger
    /// records may be collected.
    pub witnessed: Sequence,
    /// A durable page carries the stamp that every block up to this order has its first page. Only such blocks may be
    /// collected.
    pub witnessed_order: u64,
    /// Every block up to this order has its first page durable.
    pub durable_order: u64,
    /// The highest sequence that is requested to be durable.
    wanted: Sequence,
    /// The barrier that the collector requested to be durable.
    wanted_barrier: u64,
    /// True if completed erases are to be made durable, even if nothing else is.
    wanted_flush: bool,
    /// Commits completed.
    pub commits: u64,
}

impl GroupCommit {
    /// Makes the state after recovery: everything up to `durable` is durable, and a durable page carries the stamp
    /// `witnessed`.
    #[must_use]
    pub fn new(durable: Sequence, witnessed: Sequence, order: u64) -> Self {
        Self {
            state: CommitState::Idle,
            durable,
            durable_barrier: 0,
            witnessed,
            witnessed_order: order,
            durable_order: order,
            wanted: durable,
            wanted_barrier: 0,
            wanted_flush: false,
            commits: 0,
        }
    }

    /// Raises the sequence that is requested to be durable.
    pub fn want(&mut self, sequence: Sequence) {
        self.wanted = self.wanted.max(sequence);
    }

    /// Raises the barrier that the collector requests to be durable.
    pub fn want_barrier(&mut self, barrier: u64) {
        self.wanted_barrier = self.wanted_barrier.max(barrier);
    }

    /// Makes a commit due for completed erases, even if nothing else is to become durable.
    pub fn want_flush(&mut self) {
        self.wanted_flush = true;
    }

    /// Starts a commit.
    pub fn begin(&mut self, target: CommitTarget) {
        self.state = CommitState::Programming(target);
        self.wanted_flush = false;
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
            && (self.wanted > self.durable || self.wanted_barrier > self.durable_barrier || self.wanted_flush)
    }

    /// Completes a commit.
    pub fn finish(&mut self, target: CommitTarget) {
        self.state = CommitState::Idle;
        self.durable = self.durable.max(target.sequence);
        if target.barrier > self.durable_barrier {
            self.durable_barrier = target.barrier;
            self.durable_order = self.durable_order.max(target.order);
            self.witnessed = self.witnessed.max(target.stamp.0);
            self.witnessed_order = self.witnessed_order.max(target.stamp.1);
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
        commit.want(Sequence(3));
        assert!(!commit.is_due());
        commit.want(Sequence(5));
        assert!(commit.is_due());
        let target = CommitTarget { sequence: Sequence(5), barrier: 2, order: 7, stamp: (Sequence(3), 5) };
        commit.begin(target);
        assert!(!commit.is_due(), "a second commit started while one runs");
        commit.finish(target);
        assert_eq!((commit.durable, commit.witnessed), (Sequence(5), Sequence(3)));
        commit.want_barrier(9);
        assert!(commit.is_due());
    }

    #[test]
    fn a_commit_without_pages_leaves_the_durable_stamp_on_the_medium_unchanged() {
        let mut commit = GroupCommit::new(Sequence(1), Sequence(1), 0);
        commit.finish(CommitTarget { sequence: Sequence(4), barrier: 0, order: 7, stamp: (Sequence(4), 5) });
        assert_eq!((commit.durable, commit.witnessed), (Sequence(4), Sequence(1)));
    }
}
