//! Quarantine: blocks of which a page or a live record cannot be read.
//!
//! Input: blocks that the collector cannot empty, and blocks that recovery finds lost. Output: blocks that may be erased
//! after all. Invariant: no block is erased while the index names a record in it, nor while a tombstone in it may be
//! needed.
//!
//! A power cut makes such blocks too: a block that was freed and opened again can be torn all over, and nothing tells then
//! that it was free.

use super::Ftl;
use super::garbage_collector::VictimCursor;
use crate::media::Media;
use crate::media::geometry::BlockId;

/// One part of the blocks that may wait in quarantine without a live record, for tombstones to become needless.
const WAITING_PART: usize = 64;

impl<M: Media> Ftl<M> {
    /// Ends with a victim of which a page, or a page of a record that continues in it, cannot be read. The page may hold
    /// records that must not be erased, live ones or tombstones: the block stays as it is.
    pub(super) fn set_victim_aside(&mut self) {
        if let Some(VictimCursor { block, .. }) = self.collector.victim.take() {
            self.quarantine(block);
        }
    }

    /// Takes a block out of service unless nothing of it is needed, and releases its pages.
    pub(super) fn quarantine(&mut self, block: BlockId) {
        self.release_victim_pages();
        if self.is_needless(block) {
            self.evacuate(block);
        } else {
            self.flash.blocks_mut().quarantine(block);
            self.note_quarantined(block);
        }
    }

    /// Returns true if nothing in a block is needed.
    fn is_needless(&self, block: BlockId) -> bool {
        // Nothing reads a record of version 1 of a removed key.
        let is_without_tombstones = self.is_version_1(block) && self.blocks().get(block).live_bytes == 0;
        is_without_tombstones || self.blocks().is_needless(block)
    }

    /// Notes that a block is quarantined.
    pub(super) fn note_quarantined(&mut self, block: BlockId) {
        self.collector.quarantined.push(block);
    }

    /// Lets quarantined blocks be erased of which nothing is needed any more: every record was written again, and no older
    /// block is left for which a tombstone in it would be needed.
    pub(super) fn release_quarantined(&mut self) {
        let quarantined = std::mem::take(&mut self.collector.quarantined);
        let (needless, kept): (Vec<BlockId>, _) =
            quarantined.into_iter().partition(|block| self.is_needless(*block));
        self.collector.quarantined = kept;
        needless.into_iter().for_each(|block| self.evacuate(block));
    }

    /// Returns the number of quarantined blocks with live records, which stay until the records are written again.
    pub(super) fn quarantined_with_records(&self) -> u64 {
        let with_records = |block: &&BlockId| self.blocks().get(**block).live_bytes > 0;
        self.collector.quarantined.iter().filter(with_records).count() as u64
    }

    /// Returns true if so many quarantined blocks wait for tombstones to become needless that the oldest blocks are
    /// collected first.
    pub(super) fn has_excess_quarantined(&self) -> bool {
        let waiting = self.collector.quarantined.len() as u64 - self.quarantined_with_records();
        waiting > (self.blocks().len() / WAITING_PART) as u64
    }
}
