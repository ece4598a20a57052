//! The blocks without live records, and what must be durable before they are erased.
//!
//! Input: blocks that the collector emptied, extents whose records were replaced. Output: those that may be erased. Invariant: no
//! block leaves before a power cut could not need it any more; extents become due in the order in which they were freed.

use crate::command::Sequence;
use crate::media::geometry::BlockId;
use std::collections::VecDeque;

/// A block without live records.
#[derive(Clone, Copy, Debug)]
pub(super) struct EvacuatedBlock {
    pub(super) block: BlockId,
    pub(super) order: u64,
    /// A block of the log: this barrier is durable, and with it the records that were moved out of it. `None`: an extent.
    barrier: Option<u64>,
}

/// The limits of what is durable, as far as erases depend on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct EraseLimits {
    /// Programs below this barrier are durable.
    pub(super) durable_barrier: u64,
    /// Blocks of the log below this order lie in front of the window.
    pub(super) reusable_below: u64,
    /// Something durable says that this sequence is durable.
    pub(super) witnessed: Sequence,
}

impl EvacuatedBlock {
    /// Returns true if a block that is not an awaited extent may be erased as far as power cuts are concerned.
    fn is_due(&self, limits: EraseLimits) -> bool {
        self.barrier
            .is_none_or(|barrier| barrier <= limits.durable_barrier && self.order < limits.reusable_below)
    }
}

/// The evacuated blocks.
#[derive(Debug, Default)]
pub(super) struct EvacuatedBlocks {
    /// Blocks of the log, and extents that are due.
    blocks: VecDeque<EvacuatedBlock>,
    /// Extents, each with the sequence of what replaced its record. They are due when something durable says that this
    /// sequence is.
    extents: VecDeque<(Sequence, EvacuatedBlock)>,
}

impl EvacuatedBlocks {
    /// Adds a block of the log that was emptied; its moved records are durable when this barrier is.
    pub(super) fn add(&mut self, block: BlockId, order: u64, barrier: u64) {
        self.blocks.push_back(EvacuatedBlock { block, order, barrier: Some(barrier) });
    }

    /// Adds an extent whose record was replaced or removed by a record with this sequence, or 0 if nothing ever named it.
    ///
    /// # Panics
    /// An extent was freed by a record with a higher sequence before.
    pub(super) fn add_extent(&mut self, block: BlockId, order: u64, replaced_by: Sequence) {
        let extent = EvacuatedBlock { block, order, barrier: None };
        if replaced_by == Sequence(0) {
            self.blocks.push_back(extent);
            return;
        }
        let is_last = self.extents.back().is_none_or(|(last, _)| *last <= replaced_by);
        assert!(is_last, "extents were freed out of the order of the records that replaced theirs");
        self.extents.push_back((replaced_by, extent));
    }

    /// Takes a block that may be erased, and that nothing keeps: neither a snapshot nor a value that is read.
    pub(super) fn next_erase(
        &mut self,
        limits: EraseLimits,
        keeps: impl Fn(BlockId, u64) -> bool,
    ) -> Option<EvacuatedBlock> {
        while let Some((_, extent)) = self.extents.pop_front_if(|(sequence, _)| *sequence <= limits.witnessed)
        {
            self.blocks.push_back(extent);
        }
        let is_free = |block: &EvacuatedBlock| block.is_due(limits) && !keeps(block.block, block.order);
        let at = self.blocks.iter().position(is_free)?;
        self.blocks.remove(at)
    }

    /// Returns a block whose erase the medium did not accept.
    pub(super) fn put_back(&mut self, block: EvacuatedBlock) {
        self.blocks.push_front(block);
    }

    /// Returns the highest sequence of which extents wait to hear that it is durable.
    pub(super) fn awaited_witness(&self) -> Option<Sequence> {
        self.extents.back().map(|(sequence, _)| *sequence)
    }

    /// Returns the barrier that frees the blocks of the log, if any wait: barriers ascend, and one that was put back in front
    /// is durable.
    pub(super) fn last_barrier(&self) -> Option<u64> {
        self.blocks.iter().rev().find_map(|block| block.barrier)
    }

    /// Returns the blocks that only what `keeps` says keeps from being erased, the longest waiting one first.
    pub(super) fn kept_from_erase(
        &self,
        limits: EraseLimits,
        keeps: impl Fn(BlockId, u64) -> bool,
    ) -> Vec<BlockId> {
        let is_kept = |block: &&EvacuatedBlock| block.is_due(limits) && keeps(block.block, block.order);
        self.blocks.iter().filter(is_kept).map(|block| block.block).collect()
    }

    /// Returns the number of blocks that will be free when everything is durable, without blocks of the log and due extents
    /// that `keeps` keeps.
    pub(super) fn reusable(&self, reusable_below: u64, keeps: impl Fn(BlockId, u64) -> bool) -> usize {
        let is_reusable = |block: &&EvacuatedBlock| {
            (block.barrier.is_none() || block.order < reusable_below) && !keeps(block.block, block.order)
        };
        self.blocks.iter().filter(is_reusable).count() + self.extents.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(durable_barrier: u64, reusable_below: u64, witnessed: u64) -> EraseLimits {
        EraseLimits { durable_barrier, reusable_below, witnessed: Sequence(witnessed) }
    }

    #[test]
    fn a_block_waits_for_its_barrier_and_the_window_and_an_extent_for_its_witness() {
        let mut evacuated = EvacuatedBlocks::default();
        evacuated.add(BlockId(1), 5, 10);
        evacuated.add_extent(BlockId(2), 1 << 38, Sequence(7));
        evacuated.add_extent(BlockId(3), 2 << 38, Sequence(9));
        assert_eq!(evacuated.last_barrier(), Some(10));
        let mut next = |limits| evacuated.next_erase(limits, |_, _| false).map(|block| block.block);
        assert_eq!(next(limits(9, 9, 6)), None);
        assert_eq!(next(limits(10, 5, 6)), None);
        assert_eq!(next(limits(9, 9, 8)), Some(BlockId(2)));
        assert_eq!(next(limits(9, 9, 8)), None);
        assert_eq!(next(limits(10, 6, 8)), Some(BlockId(1)));
        assert_eq!(next(limits(10, 6, 9)), Some(BlockId(3)));
        assert_eq!(evacuated.awaited_witness(), None);
    }

    #[test]
    fn a_kept_extent_stays_until_it_is_given_up_and_an_unnamed_one_is_free_at_once() {
        let mut evacuated = EvacuatedBlocks::default();
        evacuated.add_extent(BlockId(2), 1 << 38, Sequence(7));
        let keeps = |block, _| block == BlockId(2);
        assert!(evacuated.next_erase(limits(0, 0, 7), keeps).is_none());
        assert_eq!(evacuated.kept_from_erase(limits(0, 0, 7), keeps), [BlockId(2)]);
        evacuated.add_extent(BlockId(4), 2 << 38, Sequence(0));
        assert_eq!(evacuated.reusable(0, keeps), 1);
        assert_eq!(evacuated.next_erase(limits(0, 0, 0), keeps).map(|block| block.block), Some(BlockId(4)));
        assert!(evacuated.next_erase(limits(0, 0, 0), |_, _| false).is_some());
    }
}
