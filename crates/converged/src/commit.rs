//! Group commit: how what was appended becomes durable, one flush at a time.
//!
//! In: "everything up to here is wanted durable". Out: seals of the log and flushes of the media, and the sequence up to
//! which everything is durable. While one commit is under way the next one gathers whatever is appended meanwhile.
//!
//! ```text
//!  Idle --seal--> Programming --every program done--> Flushing --flush done--> Idle
//!                      \------- media without a volatile cache ---------------/
//! ```
//!
//! Invariant: `durable` never covers a record whose page could still be lost.

use crate::command::Sequence;
use crate::media::MediaToken;

/// The token of every flush; at most one is in flight.
pub const FLUSH_TOKEN: MediaToken = MediaToken(4 << 60);

/// What a commit will have made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Every sequence up to this one.
    pub sequence: Sequence,
    /// Every program with an id below this one.
    pub barrier: u64,
    /// Every block up to this order has its first page among them.
    pub order: u64,
    /// The durable sequence and block order that its pages were stamped with.
    pub stamp: (Sequence, u64),
}

/// Where a commit stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitState {
    /// Nothing under way.
    Idle,
    /// Waiting for programs.
    Programming(Target),
    /// Waiting for the flush.
    Flushing(Target),
}

/// The durable prefix of the log.
#[derive(Debug)]
pub struct Commit {
    /// Where the current commit stands.
    pub state: CommitState,
    /// Every sequence up to this one is durable.
    pub durable: Sequence,
    /// Every program with an id below this one is durable.
    pub durable_barrier: u64,
    /// Some durable page says that every sequence up to this one is durable. Collection may touch only what lies below.
    pub witnessed: Sequence,
    /// Some durable page says that every block up to this order has its first page. Likewise.
    pub witnessed_order: u64,
    /// Every block up to this order has its first page durable.
    pub durable_order: u64,
    /// The highest sequence that somebody wants durable.
    wanted: Sequence,
    /// The barrier that the collector wants durable.
    wanted_barrier: u64,
    /// Erases are wanted durable, whether or not there is anything else.
    wanted_flush: bool,
    /// Commits completed.
    pub commits: u64,
}

impl Commit {
    /// Everything up to `durable` is durable already; a durable page says so of everything up to `witnessed`.
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

    /// Somebody waits until this sequence is durable.
    pub fn want(&mut self, sequence: Sequence) {
        self.wanted = self.wanted.max(sequence);
    }

    /// The collector waits until every program below this barrier is durable.
    pub fn want_barrier(&mut self, barrier: u64) {
        self.wanted_barrier = self.wanted_barrier.max(barrier);
    }

    /// Erases that are done should become durable even if nothing else does.
    pub fn want_flush(&mut self) {
        self.wanted_flush = true;
    }

    /// A commit starts.
    pub fn begin(&mut self, target: Target) {
        self.state = CommitState::Programming(target);
        self.wanted_flush = false;
    }

    /// Whether nothing is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.state == CommitState::Idle
    }

    /// Whether a commit should start now.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.state == CommitState::Idle
            && (self.wanted > self.durable || self.wanted_barrier > self.durable_barrier || self.wanted_flush)
    }

    /// A commit reached its end.
    pub fn finish(&mut self, target: Target) {
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
    fn a_commit_is_due_only_while_somebody_wants_more_than_there_is() {
        let mut commit = Commit::new(Sequence(3), Sequence(3), 0);
        assert!(!commit.is_due());
        commit.want(Sequence(3));
        assert!(!commit.is_due());
        commit.want(Sequence(5));
        assert!(commit.is_due());
        let target = Target { sequence: Sequence(5), barrier: 2, order: 7, stamp: (Sequence(3), 5) };
        commit.begin(target);
        assert!(!commit.is_due(), "one at a time");
        commit.finish(target);
        assert_eq!((commit.durable, commit.witnessed), (Sequence(5), Sequence(3)));
        commit.want_barrier(9);
        assert!(commit.is_due());
    }

    #[test]
    fn a_commit_without_pages_witnesses_nothing() {
        let mut commit = Commit::new(Sequence(1), Sequence(1), 0);
        commit.finish(Target { sequence: Sequence(4), barrier: 0, order: 7, stamp: (Sequence(4), 5) });
        assert_eq!((commit.durable, commit.witnessed), (Sequence(4), Sequence(1)));
    }
}
