//! The bytes of each block that live records and tombstones take.
//!
//! Input: records that are written, replaced, removed and moved. Output: the accounts of the blocks that they lie in, and of the
//! medium. Invariant: the live bytes of a block are those of the records that the index names there. The counts of its pages
//! say only where collection looks first, and which pages leave device DRAM.

use super::{BlockEntry, BlockState, BlockTable};
use crate::command::Sequence;
use crate::log::record::{RecordAddress, UNIT_BYTES};
use crate::media::geometry::{BLOCK_DATA_BYTES, BlockId, PAGE_DATA_BYTES, PAGES_PER_BLOCK};

/// The number of live records and tombstones that lie in each page of each block, wholly or in part. Tombstones that recovery
/// takes from a checkpoint are not counted: the first of them that is moved takes the count of another record of its page.
#[derive(Debug)]
pub(super) struct NeededRecords(Vec<u8>);

impl NeededRecords {
    /// Makes the counts of empty blocks.
    pub(super) fn new(blocks: usize) -> Self {
        Self(vec![0; blocks * PAGES_PER_BLOCK])
    }

    /// Clears the counts of a block.
    pub(super) fn clear(&mut self, block: BlockId) {
        self.pages_mut(block).fill(0);
    }

    fn pages(&self, block: BlockId) -> &[u8] {
        &self.0[block.index() * PAGES_PER_BLOCK..][..PAGES_PER_BLOCK]
    }

    fn pages_mut(&mut self, block: BlockId) -> &mut [u8] {
        &mut self.0[block.index() * PAGES_PER_BLOCK..][..PAGES_PER_BLOCK]
    }

    /// Counts a record in the pages of a block that it lies in, or counts it no more.
    fn change(&mut self, block: BlockId, (offset, bytes): (usize, usize), record: RecordChange) {
        let pages = offset / PAGE_DATA_BYTES..(offset + bytes).div_ceil(PAGE_DATA_BYTES);
        for needed in &mut self.pages_mut(block)[pages] {
            *needed = match record {
                RecordChange::Added => needed.saturating_add(1),
                RecordChange::Removed => needed.saturating_sub(1),
            };
        }
    }
}

/// The change of the number of records that a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RecordChange {
    Added,
    Removed,
}

impl BlockTable {
    /// Applies `change` to every block that a record of `units` at `address` lies in. Returns the sum of the bytes
    /// changed.
    fn change_blocks_of(
        &mut self,
        (address, units): (RecordAddress, u32),
        record: RecordChange,
        mut change: impl FnMut(&mut BlockEntry, u32) -> u32,
    ) -> u64 {
        let mut changed = 0;
        let mut block = address.block();
        let mut offset = address.offset_in_block();
        let mut left = units as usize * UNIT_BYTES;
        while left > 0 {
            let here = left.min(BLOCK_DATA_BYTES - offset);
            self.needed.change(block, (offset, here), record);
            let entry = &mut self.entries[block.index()];
            changed += u64::from(change(entry, u32::try_from(here).unwrap_or(u32::MAX)));
            if entry.state == BlockState::Closed {
                self.costs.set(block, entry.live_bytes + entry.tombstone_bytes);
            }
            left -= here;
            offset = 0;
            match self.next_in_chain(block) {
                Some(next) => block = next,
                None => break,
            }
        }
        changed
    }

    /// Adds a live record that was written.
    pub fn add_live(&mut self, address: RecordAddress, units: u32) {
        self.live_bytes += self.change_blocks_of((address, units), RecordChange::Added, |block, bytes| {
            block.live_bytes += bytes;
            bytes
        });
    }

    /// Removes a live record that was replaced, removed or moved.
    ///
    /// # Panics
    /// More bytes are removed than were added: the counts are wrong.
    pub fn remove_live(&mut self, address: RecordAddress, units: u32) {
        self.live_bytes -= self.change_blocks_of((address, units), RecordChange::Removed, |block, bytes| {
            assert!(block.live_bytes >= bytes, "live bytes of a block would become negative");
            block.live_bytes -= bytes;
            bytes
        });
    }

    /// Adds a tombstone that was written.
    pub fn add_tombstone(&mut self, address: RecordAddress, units: u32, sequence: Sequence) {
        let added = self.change_blocks_of((address, units), RecordChange::Added, |block, bytes| {
            block.tombstone_bytes += bytes;
            block.tombstone_sequence = block.tombstone_sequence.max(sequence);
            bytes
        });
        self.live_bytes += added;
        self.tombstone_bytes += added;
    }

    /// Removes a tombstone that was moved.
    pub fn remove_tombstone(&mut self, address: RecordAddress, units: u32) {
        let removed = self.change_blocks_of((address, units), RecordChange::Removed, |block, bytes| {
            // A manipulated medium may hold a tombstone that was never counted.
            let counted = bytes.min(block.tombstone_bytes);
            block.tombstone_bytes -= counted;
            counted
        });
        self.live_bytes -= removed;
        self.tombstone_bytes -= removed;
    }

    /// Returns true if a live record or a tombstone lies in a page, as far as they are counted.
    #[must_use]
    #[inline]
    pub fn needs_page(&self, block: BlockId, page: usize) -> bool {
        self.needed.pages(block)[page] > 0
    }

    /// Raises the block's highest sequence to that of a record written into it.
    #[inline]
    pub fn raise_max_sequence(&mut self, block: BlockId, sequence: Sequence) {
        let entry = &mut self.entries[block.index()];
        entry.max_sequence = entry.max_sequence.max(sequence);
    }
}
