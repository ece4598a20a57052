//! The driving of a commit: the seal of the log, the flush of the medium, and what becomes durable with them.
//!
//! Input: the state machine of a commit ([`CommitState`]), programs that complete, and the completion of a flush.
//! Output: a later durable prefix, which later pages and records name. Invariant: after a failure of the medium no commit
//! begins, and none ends.
//!
//! The engine does not drive commits: the collector requests them too.

use super::Ftl;
use crate::command::Sequence;
use crate::log::commit_record::CommitKind;
use crate::log::group_commit::{CommitState, CommitTarget, GroupCommit};
use crate::media::Media;
use crate::mutant::{Mutant, mutant};
use headwater_host::clock::Nanos;

impl<M: Media> Ftl<M> {
    /// Returns the durable prefix of the log.
    pub(crate) fn commit(&self) -> &GroupCommit {
        &self.commit
    }

    /// Returns the sequence up to which everything is durable.
    #[inline]
    pub(crate) fn durable(&self) -> Sequence {
        self.commit.durable()
    }

    /// Requests that everything up to this sequence becomes durable.
    #[inline]
    pub(crate) fn request_sequence(&mut self, sequence: Sequence) {
        self.commit.request_sequence(sequence);
    }

    /// Requests that every page appended so far becomes durable. Returns the barrier that is durable then.
    pub(crate) fn request_barrier(&mut self) -> u64 {
        let barrier = self.flash.log().barrier();
        self.commit.request_barrier(barrier);
        barrier
    }

    /// Requests that every program below a barrier becomes durable, and a commit even if it is.
    pub(crate) fn request_commit_to(&mut self, barrier: u64) {
        self.commit.request_barrier(barrier);
        self.commit.request_commit();
    }

    /// Notes the number of commands completed so far, those included that wait for a commit, and of those so far that had to
    /// wait for one.
    #[inline]
    pub(crate) fn note_completed(&mut self, completed: u64, waited: u64) {
        self.lone_commits.note_completed(completed);
        self.commit.note_waiting(waited);
    }

    /// Sets the time after the end of a commit for which the next one waits at most for more commands.
    pub(crate) fn set_gathering(&mut self, span: Nanos) {
        self.commit.set_gathering(span);
    }

    /// Returns the time until which a commit that should start waits for more commands; `None` once that has passed.
    pub(crate) fn commit_gathers_until(&self, now: Nanos) -> Option<Nanos> {
        self.commit.gathers_until().filter(|until| *until > now && !self.health.is_closing)
    }

    /// Returns true if a commit that should start, or a repeated read of the collector, waits for its time.
    pub(crate) fn waits_for_time(&self, now: Nanos) -> bool {
        self.commit_gathers_until(now).is_some() || self.victim_retry_at().is_some()
    }

    /// Requests a commit, even if nothing was appended.
    pub(crate) fn request_commit(&mut self) {
        self.commit.request_commit();
    }

    /// Reserves the log for an operation that appends in parts: no commit begins until the reservation ends.
    ///
    /// # Panics
    /// It is reserved.
    pub(crate) fn reserve_log(&mut self) {
        self.reservation.begin();
    }

    /// Makes all that was appended durable before the operation that the log is reserved for appends its first record: what
    /// another namespace acknowledged must not stay volatile for as long as that operation takes. Returns the sequence that
    /// it waits for; `None` if there is none, and then no commit begins any more.
    pub(crate) fn settle_before_append(&mut self) -> Option<Sequence> {
        let last = self.last_sequence();
        let is_settled = self.commit.durable() >= last || self.flash.failure().is_some();
        self.reservation.allow_commits(!is_settled);
        if is_settled {
            return None;
        }
        self.commit.request_sequence(last);
        Some(last)
    }

    /// Ends the reservation of the log.
    pub(crate) fn release_log(&mut self) {
        self.reservation.end();
    }

    /// Returns true if the log is reserved.
    #[inline]
    pub(crate) fn is_log_reserved(&self) -> bool {
        self.reservation.is_reserved()
    }

    /// Returns the number of writes that one turn carries out.
    pub(crate) fn part_writes(&self) -> usize {
        self.reservation.part_writes()
    }

    /// Does the next step of a commit, if it is due and its programs are done. Returns true if any state changed.
    pub(super) fn advance_commit(&mut self, now: Nanos) -> bool {
        if self.flash.failure().is_some() {
            return false;
        }
        match self.commit.state() {
            CommitState::Idle if self.commit_gathers_until(now).is_some() => false,
            CommitState::Idle if self.commit.is_due() => self.begin_commit(now),
            CommitState::Idle => self.write_idle_record(now),
            CommitState::Programming(target)
                if self.flash.log().is_completed_below(target.barrier)
                    && (self.flash.records().is_written() || mutant(Mutant::RecordsNotAwaited))
                    || mutant(Mutant::ProgramsNotAwaited) =>
            {
                if !self.flash.traits().volatile_cache {
                    self.end_commit(target, now);
                    return true;
                }
                if mutant(Mutant::FlushSkipped) {
                    self.commit.begin_flush();
                    self.complete_flush(now);
                    return true;
                }
                let may_block = self.lone_commits.begin_flush();
                let accepted = self.flash.submit_flush(now, may_block);
                if accepted {
                    self.stats.flushes += 1;
                    self.commit.begin_flush();
                }
                accepted
            }
            CommitState::Programming(_) | CommitState::Flushing(_) => false,
        }
    }

    /// Seals the log for a commit, unless it is reserved. The guard pages and the records need frames; without them the
    /// commit waits.
    fn begin_commit(&mut self, now: Nanos) -> bool {
        let is_split = mutant(Mutant::CommitSplitsBatch)
            || mutant(Mutant::CommitBehindBatchClear) && self.is_clearing_any();
        if self.reservation.forbids_commits() && !is_split {
            return false;
        }
        if !self.flash.records().is_written() || !self.flash.reserve_frames(self.flash.frames_for_commit()) {
            return false;
        }
        if mutant(Mutant::StampBeforeFlush) {
            self.flash.seal();
            self.flash.set_durable(self.flash.log().end());
        }
        let barrier = self.flash.seal();
        self.idle_record_due = None;
        self.keep_health(now);
        self.health.is_closed =
            self.health.is_closing && self.flash.log().end() == self.commit.durable_prefix();
        let kind = if self.health.is_closed { CommitKind::Closed } else { CommitKind::Commit };
        let (end, claims) = self.flash.write_commit_records(kind);
        self.seal_snapshot();
        let checkpoint = self.flash.records().root().number;
        self.commit.begin(CommitTarget { end, barrier, claims, checkpoint });
        self.flash.submit_programs(now);
        self.flash.submit_records(now);
        true
    }

    /// Ends the commit whose flush has completed.
    pub(super) fn complete_flush(&mut self, now: Nanos) {
        let CommitState::Flushing(target) = self.commit.state() else {
            panic!("the medium completed a flush that no commit waits for: {:?}", self.commit.state());
        };
        if self.flash.failure().is_none() {
            self.end_commit(target, now);
        }
    }

    fn end_commit(&mut self, mut target: CommitTarget, now: Nanos) {
        if mutant(Mutant::CommitCoversLaterRecords) {
            target.end.sequence = self.last_sequence();
        }
        self.commit.finish(target, now);
        self.flash.set_durable(target.end);
        self.hold_snapshot(target.end);
        let is_due = target.claims < target.end && !mutant(Mutant::IdleRecordSkipped);
        self.idle_record_due = is_due.then(|| now.after(IDLE_RECORD_DELAY));
    }

    /// Returns true if a durable record says that everything appended is durable, and no commit runs.
    pub(crate) fn is_settled(&self) -> bool {
        let end = self.flash.log().end();
        self.commit.is_idle()
            && !self.is_log_reserved()
            && (self.health.is_closed || !self.health.is_closing)
            && self.flash.records().is_written()
            && (end.tick.place() == 0 || self.commit.witnessed() >= self.commit.durable_prefix())
    }

    /// Returns the time at which an idle device writes a record that says what is durable; `None` after a failure of the
    /// medium, because nothing is written any more.
    pub(crate) fn idle_record_due(&self) -> Option<Nanos> {
        self.idle_record_due.filter(|_| self.flash.failure().is_none())
    }

    /// Writes a record that says what is durable, if nothing was written for a while. No flush follows: it ends the time
    /// in which one fault can take the last commit unnoticed as soon as the system writes it.
    fn write_idle_record(&mut self, now: Nanos) -> bool {
        if self.idle_record_due.is_none_or(|due| due > now) {
            return false;
        }
        self.keep_health(now);
        let wrote = self.flash.records().is_written() && self.flash.write_idle_record();
        // Without a frame for it the record is tried again later.
        self.idle_record_due = (!wrote).then(|| now.after(IDLE_RECORD_DELAY));
        self.flash.submit_records(now);
        wrote
    }

    /// Requests what makes more blocks eligible: a checkpoint, behind whose start they lie, and a commit that says that
    /// the records of the last ones are durable. Returns false if neither does.
    pub(super) fn request_victims(&mut self) -> bool {
        let needs_checkpoint = self.blocks().has_garbage_behind(self.reusable_below);
        if needs_checkpoint {
            self.collector.request_checkpoint();
        }
        let needs_commit = self.commit.witnessed().tick < self.flash.log().end().tick;
        if self.commit.is_idle() && needs_commit {
            // One that waits for more commands begins at once.
            self.commit.request_commit();
        }
        needs_checkpoint || needs_commit
    }
}

/// Time after the last commit at which an idle device says that it is durable.
const IDLE_RECORD_DELAY: Nanos = Nanos::from_millis(100);
