//! The cost of collecting each block, with the lowest of each group of blocks beside it.
//!
//! Input: the cost of a block whenever it changes. Output: the cheapest block that may be collected. Invariant: the lowest
//! cost of a group is that of one of its blocks, so that a group without a cheaper block is passed over by one number: a
//! medium of 1 TiB has four million blocks.

use crate::media::geometry::BlockId;

/// Blocks of a group.
const GROUP: usize = 128;
/// The cost of a block that is not collected.
pub(super) const NOT_COLLECTED: u32 = u32::MAX;

/// The costs of all blocks, by number.
#[derive(Debug)]
pub(super) struct BlockCosts {
    costs: Vec<u32>,
    /// The lowest cost of each group.
    lowest: Vec<u32>,
}

impl BlockCosts {
    /// Makes a table of blocks that are not collected.
    pub(super) fn new(blocks: usize) -> Self {
        Self { costs: vec![NOT_COLLECTED; blocks], lowest: vec![NOT_COLLECTED; blocks.div_ceil(GROUP)] }
    }

    /// Sets the cost of a block.
    #[inline]
    pub(super) fn set(&mut self, block: BlockId, cost: u32) {
        let at = block.index();
        let before = std::mem::replace(&mut self.costs[at], cost);
        let lowest = &mut self.lowest[at / GROUP];
        if cost <= *lowest {
            *lowest = cost;
        } else if before == *lowest {
            let group = self.costs.chunks(GROUP).nth(at / GROUP).expect("the block has a group");
            *lowest = group.iter().copied().min().unwrap_or(NOT_COLLECTED);
        }
    }

    /// Returns the eligible block with the lowest cost, of several the first.
    pub(super) fn cheapest(&self, eligible: impl Fn(BlockId) -> bool) -> Option<BlockId> {
        let (mut cheapest, mut lowest) = (None, NOT_COLLECTED);
        for (number, group) in self.costs.chunks(GROUP).enumerate() {
            if self.lowest[number] >= lowest {
                continue;
            }
            for (block, &cost) in (0..).map(BlockId).skip(number * GROUP).zip(group) {
                if cost < lowest && eligible(block) {
                    (cheapest, lowest) = (Some(block), cost);
                }
            }
        }
        cheapest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_cheapest_eligible_block_is_that_of_a_plain_scan(
            blocks in 1usize..700,
            changes in prop::collection::vec((any::<u32>(), prop_oneof![0u32..40, Just(NOT_COLLECTED)]), 0..900),
            divisor in 1u32..5,
        ) {
            let mut costs = BlockCosts::new(blocks);
            let mut plain = vec![NOT_COLLECTED; blocks];
            for (turn, (block, cost)) in changes.into_iter().enumerate() {
                let block = block as usize % blocks;
                costs.set(BlockId(u32::try_from(block).unwrap()), cost);
                plain[block] = cost;
                if turn % 16 != 0 {
                    continue;
                }
                let eligible = |block: u32| block.is_multiple_of(divisor);
                let scanned = (0..).zip(&plain).filter(|(block, cost)| eligible(*block) && **cost != NOT_COLLECTED);
                let scanned = scanned.min_by_key(|(block, cost)| (**cost, *block)).map(|(block, _)| BlockId(block));
                prop_assert_eq!(costs.cheapest(|block| eligible(block.0)), scanned);
            }
        }
    }
}
