//! The driving of a commit: the seal of the log, the flush of the medium, and what becomes durable with them.
//!
//! Input: the state machine of a commit ([`CommitState`]), programs that complete, and the completion of a flush.
//! Output: a later durable sequence, and its stamp on later pages. Invariant: after a failure of the medium no commit
//! begins, and none ends.
//!
//! The engine does not drive commits: the collector requests them too, and no stamp may cover records that a clean-up
//! has yet to erase.

use super::Ftl;
use crate::command::Sequence;
use crate::log::group_commit::{CommitState, CommitTarget, GroupCommit};
use crate::media::Media;
use crate::media::geometry::PAGE_DATA_BYTES;
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

    /// Requests a flush, even if nothing else is to become durable.
    pub(crate) fn request_flush(&mut self) {
        self.commit.request_flush();
    }

    /// Fills a page with the current durable stamp and requests its commit. Returns false if there is no room now.
    pub(crate) fn request_stamp_page(&mut self) -> bool {
        if self.check_room(PAGE_DATA_BYTES, 0).is_err() {
            return false;
        }
        self.flash.fill_stamp_page();
        self.request_barrier();
        true
    }

    /// Does the next step of a commit, if it is due and its programs are done. Returns true if any state changed.
    pub(super) fn advance_commit(&mut self, now: Nanos) -> bool {
        if self.flash.failure().is_some() {
            return false;
        }
        match self.commit.state() {
            CommitState::Idle if self.commit.is_due() => self.begin_commit(now),
            CommitState::Programming(target)
                if self.flash.log().is_completed_below(target.barrier)
                    || mutant(Mutant::ProgramsNotAwaited) =>
            {
                if !self.flash.traits().volatile_cache {
                    self.end_commit(target);
                    return true;
                }
                if mutant(Mutant::FlushSkipped) {
                    self.flash.blocks_mut().begin_flush();
                    self.commit.begin_flush();
                    self.complete_flush();
                    return true;
                }
                let accepted = self.flash.submit_flush(now);
                if accepted {
                    self.stats.flushes += 1;
                    self.commit.begin_flush();
                }
                accepted
            }
            _ => false,
        }
    }

    /// Seals the log for a commit. The guard pages need frames; without them the commit waits.
    fn begin_commit(&mut self, now: Nanos) -> bool {
        if !self.flash.reserve_frames(2 + usize::from(self.flash.traits().guard_pages)) {
            return false;
        }
        let sequence = self.last_sequence();
        if mutant(Mutant::StampBeforeFlush) {
            self.flash.set_durable_stamp(sequence, self.flash.begun_order());
        }
        let barrier = self.flash.seal();
        let order = self.flash.begun_order();
        let durable_stamp = self.flash.log().durable_stamp();
        self.commit.begin(CommitTarget { sequence, barrier, order, durable_stamp });
        self.flash.submit_programs(now);
        true
    }

    /// Ends the commit whose flush has completed.
    pub(super) fn complete_flush(&mut self) {
        let CommitState::Flushing(target) = self.commit.state() else {
            panic!("the medium completed a flush that no commit waits for: {:?}", self.commit.state());
        };
        if self.flash.failure().is_none() {
            self.flash.blocks_mut().complete_flush();
            self.finish_clean_up();
            self.end_commit(target);
        }
    }

    fn end_commit(&mut self, mut target: CommitTarget) {
        if mutant(Mutant::CommitCoversLaterRecords) {
            target.sequence = self.last_sequence();
        }
        self.commit.finish(target);
        if !self.collector.blocks_stamp() {
            self.flash.set_durable_stamp(self.commit.durable(), self.commit.durable_order());
        }
    }
}
