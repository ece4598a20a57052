//! Erases: of evacuated blocks once their records are durable elsewhere, and of dirty ones so that some stay ready.
//!
//! Input: the collector's evacuated blocks, the dirty blocks, and the space that is reserved. Output: erases for the
//! medium. Invariant: no block is erased before the records moved out of it are durable.

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
        while let Some(block) = self.collector.next_erase(barrier) {
            if !self.flash.submit_erase(block, now) {
                break;
            }
            self.collector.erase_accepted();
            self.flash.blocks_mut().mark_erasing(block);
            moved = true;
        }
        let wanted = if self.wants_all_erased() { usize::MAX } else { self.space.ready_blocks() };
        while self.blocks().ready_count() + self.blocks().erasing_count() < wanted {
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
        moved
    }

    /// Counts an erase that has completed, and makes it durable or requests the flush that does.
    pub(super) fn complete_erase(&mut self) {
        self.stats.erases += 1;
        if !self.flash.traits().volatile_cache {
            self.flash.blocks_mut().begin_flush();
            self.flash.blocks_mut().complete_flush();
            self.finish_clean_up();
        } else if self.collector.blocks_stamp() {
            self.commit.request_flush();
        }
    }

    /// Ends the clean-up of what recovery left, once every erase is durable.
    pub(super) fn finish_clean_up(&mut self) {
        if !self.blocks().has_pending_erases() && self.blocks().erasing_count() == 0 {
            self.collector.finish_clean_up();
        }
    }
}
