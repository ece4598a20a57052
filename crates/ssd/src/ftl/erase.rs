//! Erases: of evacuated blocks that no recovery could need, and of dirty ones so that some stay ready.
//!
//! Input: the collector's evacuated blocks, the dirty blocks, and the space that is reserved. Output: erases for the
//! medium. Invariant: no block is erased before the records moved out of it are durable, nor while it lies in the window
//! of the checkpoint that counts, in a snapshot or in a value that is read.

use super::Ftl;
use super::evacuated_blocks::EraseLimits;
use crate::command::Sequence;
use crate::log::group_commit::CommitState;
use crate::media::Media;
use crate::mutant::{Mutant, mutant};
use headwater_host::clock::Nanos;

impl<M: Media> Ftl<M> {
    /// Submits the erases that are due. Returns true if there were any.
    pub(super) fn prepare_blocks(&mut self, now: Nanos) -> bool {
        let mut moved = self.advance_receipts(now);
        if self.flash.failure().is_some() {
            return moved;
        }
        moved |= self.free_abandoned_extents();
        let limits = self.erase_limits();
        loop {
            let (snapshot, held) = (&self.snapshot, &self.held_values);
            let keeps = |block, order| snapshot.keeps(block, order) || held.keeps(block);
            let Some(evacuated) = self.collector.evacuated.next_erase(limits, keeps) else {
                break;
            };
            if !self.flash.submit_erase(evacuated.block, now) {
                self.collector.evacuated.put_back(evacuated);
                break;
            }
            self.flash.blocks_mut().mark_erasing(evacuated.block);
            moved = true;
        }
        moved |= self.request_witness(limits.witnessed);
        self.request_emptied();
        while self.blocks().ready_count() + self.blocks().erasing_count() < self.space.ready_blocks() {
            let Some(block) = self.flash.blocks_mut().take_dirty() else {
                break;
            };
            if mutant(Mutant::OpenedWithoutErase) {
                self.flash.blocks_mut().complete_erase(block);
                continue;
            }
            if !self.flash.submit_erase(block, now) {
                self.flash.blocks_mut().put_back_dirty(block);
                break;
            }
            moved = true;
        }
        moved | self.lose_snapshot_for_space(limits) | self.bound_held_values(limits)
    }

    /// Returns what is durable, as far as erases depend on it.
    pub(super) fn erase_limits(&self) -> EraseLimits {
        let barrier =
            if mutant(Mutant::ErasedBeforeMoved) { u64::MAX } else { self.commit.durable_barrier() };
        let early = mutant(Mutant::ExtentReusedEarly);
        EraseLimits {
            durable_barrier: barrier,
            reusable_below: self.reusable_below(),
            witnessed: if early { Sequence(u64::MAX) } else { self.commit.witnessed().sequence },
        }
    }

    /// Requests a commit if blocks are short and freed extents wait for one: what it says is durable frees them. Returns true
    /// if it did.
    fn request_witness(&mut self, witnessed: Sequence) -> bool {
        let awaited = self.collector.evacuated.awaited_witness().filter(|awaited| *awaited > witnessed);
        let is_idle = self.commit.state() == CommitState::Idle;
        if awaited.is_none() || !is_idle || !self.needs_free_blocks() || self.is_log_reserved() {
            return false;
        }
        let was_due = self.commit.is_due();
        // One that waits for more commands begins at once.
        self.commit.request_commit();
        !was_due
    }

    /// Requests a commit if blocks are short and emptied ones wait for one: what was moved out of them is durable then.
    fn request_emptied(&mut self) {
        if let Some(barrier) = self.collector.evacuated.last_barrier()
            && self.needs_free_blocks()
        {
            self.commit.request_barrier(barrier);
        }
    }

    /// Returns true if no more blocks are free, or will be without a commit, than are needed.
    fn needs_free_blocks(&self) -> bool {
        self.blocks().free_count() + self.blocks().erasing_count() <= self.needed_blocks()
    }

    /// Returns true if fewer blocks are free, or will be, than the device wants to have ready.
    pub(super) fn is_short_of_blocks(&self) -> bool {
        self.blocks().free_count() + self.blocks().erasing_count() < self.space.ready_blocks()
    }

    /// Returns the order below which blocks lie in front of the window of the checkpoint that counts.
    pub(super) fn reusable_below(&self) -> u64 {
        if mutant(Mutant::WindowReused) { u64::MAX } else { self.reusable_below }
    }

    /// Counts an erase that has completed. It need not be durable: a page of an earlier life is known by its order.
    pub(super) fn complete_erase(&mut self) {
        self.stats.erases += 1;
    }
}
