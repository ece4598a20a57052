//! Erases: of evacuated blocks that no recovery could need, and of dirty ones so that some stay ready.
//!
//! Input: the collector's evacuated blocks, the dirty blocks, and the space that is reserved. Output: erases for the
//! medium. Invariant: no block is erased before the records moved out of it are durable, nor while it lies in the window
//! of the checkpoint that counts, in a snapshot or in a value that is read.

use super::Ftl;
use crate::media::Media;
use crate::mutant::{Mutant, mutant};
use headwater_host::clock::Nanos;

impl<M: Media> Ftl<M> {
    /// Submits the erases that are due. Returns true if there were any.
    pub(super) fn prepare_blocks(&mut self, now: Nanos) -> bool {
        let mut moved = false;
        if self.flash.failure().is_some() {
            return false;
        }
        let barrier =
            if mutant(Mutant::ErasedBeforeMoved) { u64::MAX } else { self.commit.durable_barrier() };
        let below = self.reusable_below();
        loop {
            let (snapshot, held) = (&self.snapshot, &self.held_values);
            let keeps = |block, order| snapshot.keeps(block, order) || held.keeps(block);
            let Some(block) = self.collector.next_erase(barrier, below, keeps) else {
                break;
            };
            if !self.flash.submit_erase(block, now) {
                self.collector.put_back_evacuated(block, barrier);
                break;
            }
            self.flash.blocks_mut().mark_erasing(block);
            moved = true;
        }
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
        moved | self.lose_snapshot_for_space(barrier) | self.bound_held_values(barrier)
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
