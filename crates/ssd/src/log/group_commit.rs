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

use super::commit_gathering::CommitGathering;
use super::prefix::Prefix;
use crate::command::Sequence;
use headwater_host::clock::Nanos;

/// The part of the log that a commit makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitTarget {
    /// The end of the log when it was sealed.
    pub end: Prefix,
    /// Every program with an id below this one is part of it.
    pub barrier: u64,
    /// The prefix that its records call durable.
    pub claims: Prefix,
    /// Number of the checkpoint that its records name.
    pub checkpoint: u64,
}

/// The step of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitState {
    /// No commit runs.
    Idle,
    /// Waiting for programs, and for the writes of the commit record.
    Programming(CommitTarget),
    /// Waiting for the flush.
    Flushing(CommitTarget),
}

/// The durable prefix of the log.
#[derive(Debug)]
pub struct GroupCommit {
    /// The step of the current commit.
    state: CommitState,
    /// This prefix is durable.
    durable: Prefix,
    /// Every program with an id below this one is durable.
    durable_barrier: u64,
    /// A durable page or record says that this prefix is durable: no recovery accepts less.
    witnessed: Prefix,
    /// Number of the checkpoint that a durable record names.
    checkpoint: u64,
    /// The highest sequence that is requested to be durable.
    requested_sequence: Sequence,
    /// The barrier that the collector requested to be durable.
    requested_barrier: u64,
    /// True if a commit is to run, even if nothing was appended.
    is_requested: bool,
    /// Commits completed.
    commits: u64,
    gathering: CommitGathering,
}

impl GroupCommit {
    /// Makes the state after an opening: everything found is durable, and the record of the opening says so.
    #[must_use]
    pub fn new(durable: Prefix, witnessed: Prefix, checkpoint: u64) -> Self {
        Self {
            state: CommitState::Idle,
            durable,
            durable_barrier: 0,
            witnessed,
            checkpoint,
            requested_sequence: durable.sequence,
            requested_barrier: 0,
            is_requested: false,
            commits: 0,
            gathering: CommitGathering::default(),
        }
    }

    /// Sets the time after the end of a commit for which the next one waits at most for more commands; none after an opening.
    pub fn set_gathering(&mut self, span: Nanos) {
        self.gathering = CommitGathering::new(span);
    }

    /// Notes the number of commands so far that had to wait for a commit.
    #[inline]
    pub fn note_waiting(&mut self, commands: u64) {
        self.gathering.note_waiting(commands);
    }

    /// Raises the sequence that is requested to be durable.
    pub fn request_sequence(&mut self, sequence: Sequence) {
        self.requested_sequence = self.requested_sequence.max(sequence);
    }

    /// Raises the barrier that the collector requests to be durable.
    pub fn request_barrier(&mut self, barrier: u64) {
        self.requested_barrier = self.requested_barrier.max(barrier);
    }

    /// Makes a commit due, even if nothing was appended.
    pub fn request_commit(&mut self) {
        self.is_requested = true;
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
        self.durable.sequence
    }

    /// Returns the durable prefix.
    #[must_use]
    pub fn durable_prefix(&self) -> Prefix {
        self.durable
    }

    /// Returns the barrier below which every program is durable.
    #[must_use]
    pub fn durable_barrier(&self) -> u64 {
        self.durable_barrier
    }

    /// Returns the prefix of which a durable page or record says that it is durable.
    #[must_use]
    pub fn witnessed(&self) -> Prefix {
        self.witnessed
    }

    /// Returns the number of the checkpoint that a durable record names.
    #[must_use]
    pub fn checkpoint(&self) -> u64 {
        self.checkpoint
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
        self.is_requested = false;
        self.gathering.begin_commit();
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
            && (self.requested_sequence > self.durable.sequence
                || self.requested_barrier > self.durable_barrier
                || self.is_requested)
    }

    /// Returns the time until which a commit that should start waits for the commands of the clients that the last one served.
    #[must_use]
    pub fn gathers_until(&self) -> Option<Nanos> {
        let is_urgent = self.is_requested || self.requested_barrier > self.durable_barrier;
        if is_urgent || !self.is_due() { None } else { self.gathering.until() }
    }

    /// Completes a commit.
    ///
    /// # Panics
    /// The commit ends in front of what is durable already.
    pub fn finish(&mut self, target: CommitTarget, now: Nanos) {
        assert!(
            target.end >= self.durable,
            "a commit ended at {:?}, in front of {:?}",
            target.end,
            self.durable
        );
        self.state = CommitState::Idle;
        self.durable = target.end;
        self.durable_barrier = self.durable_barrier.max(target.barrier);
        self.witnessed = self.witnessed.max(target.claims);
        self.checkpoint = target.checkpoint;
        self.commits += 1;
        self.gathering.end_commit(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::prefix::Tick;

    fn prefix(tick: u64, sequence: u64) -> Prefix {
        Prefix { tick: Tick(tick), sequence: Sequence(sequence) }
    }

    fn target(end: Prefix, claims: Prefix) -> CommitTarget {
        CommitTarget { end, barrier: 2, claims, checkpoint: 1 }
    }

    #[test]
    fn a_commit_is_due_only_while_more_is_requested_than_is_durable() {
        let mut commit = GroupCommit::new(prefix(1, 3), prefix(1, 3), 0);
        assert!(!commit.is_due());
        commit.request_sequence(Sequence(3));
        assert!(!commit.is_due());
        commit.request_sequence(Sequence(5));
        assert!(commit.is_due());
        let target = target(prefix(2, 5), prefix(1, 3));
        commit.begin(target);
        assert!(!commit.is_due(), "a second commit started while one runs");
        commit.finish(target, Nanos::ZERO);
        assert_eq!((commit.durable(), commit.checkpoint()), (Sequence(5), 1));
        commit.request_barrier(9);
        assert!(commit.is_due());
    }

    #[test]
    fn a_commit_that_the_collector_requests_waits_for_no_command() {
        let mut commit = GroupCommit::new(prefix(1, 3), prefix(1, 3), 0);
        commit.set_gathering(Nanos(50));
        let first = target(prefix(2, 5), prefix(1, 3));
        commit.note_waiting(2);
        commit.begin(first);
        commit.finish(first, Nanos(100));
        assert_eq!(commit.gathers_until(), None, "no commit is due");
        commit.request_sequence(Sequence(6));
        assert_eq!(commit.gathers_until(), Some(Nanos(150)));
        commit.request_barrier(9);
        assert_eq!(commit.gathers_until(), None);
    }

    #[test]
    fn a_commit_is_witnessed_by_the_one_after_it() {
        let mut commit = GroupCommit::new(prefix(1, 1), prefix(1, 1), 0);
        commit.finish(target(prefix(2, 4), prefix(1, 1)), Nanos::ZERO);
        assert_eq!((commit.durable_prefix(), commit.witnessed()), (prefix(2, 4), prefix(1, 1)));
        commit.finish(target(prefix(2, 4), prefix(2, 4)), Nanos::ZERO);
        assert_eq!(commit.witnessed(), prefix(2, 4));
    }
}
