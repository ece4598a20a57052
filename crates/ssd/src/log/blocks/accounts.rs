//! The bytes of each block that live records and tombstones take.
//!
//! Input: records that are written, replaced, removed and moved. Output: the accounts of the blocks that they lie in, and of the
//! medium. Invariant: the live bytes of a block are those of the records that the index names there.

use super::{BlockEntry, BlockState, BlockTable};
use crate::command::Sequence;
use crate::log::record::{RecordAddress, UNIT_BYTES};
use crate::media::geometry::{BLOCK_DATA_BYTES, BlockId};

impl BlockTable {
    /// Applies `change` to every block that a record of `units` at `address` lies in. Returns the sum of the bytes
    /// changed.
    fn change_blocks_of(
        &mut self,
        address: RecordAddress,
        units: u32,
        mut change: impl FnMut(&mut BlockEntry, u32) -> u32,
    ) -> u64 {
        let mut changed = 0;
        let mut block = address.block();
        let mut offset = address.offset_in_block();
        let mut left = units as usize * UNIT_BYTES;
        while left > 0 {
            let here = left.min(BLOCK_DATA_BYTES - offset);
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
        self.live_bytes += self.change_blocks_of(address, units, |block, bytes| {
            block.live_bytes += bytes;
            bytes
        });
    }

    /// Removes a live record that was replaced, removed or moved.
    ///
    /// # Panics
    /// More bytes are removed than were added: the counts are wrong.
    pub fn remove_live(&mut self, address: RecordAddress, units: u32) {
        self.live_bytes -= self.change_blocks_of(address, units, |block, bytes| {
            assert!(block.live_bytes >= bytes, "live bytes of a block would become negative");
            block.live_bytes -= bytes;
            bytes
        });
    }

    /// Adds a tombstone that was written.
    pub fn add_tombstone(&mut self, address: RecordAddress, units: u32, sequence: Sequence) {
        let added = self.change_blocks_of(address, units, |block, bytes| {
            block.tombstone_bytes += bytes;
            block.tombstone_sequence = block.tombstone_sequence.max(sequence);
            bytes
        });
        self.live_bytes += added;
        self.tombstone_bytes += added;
    }

    /// Removes a tombstone that was moved.
    pub fn remove_tombstone(&mut self, address: RecordAddress, units: u32) {
        let removed = self.change_blocks_of(address, units, |block, bytes| {
            // A manipulated medium may hold a tombstone that was never counted.
            let counted = bytes.min(block.tombstone_bytes);
            block.tombstone_bytes -= counted;
            counted
        });
        self.live_bytes -= removed;
        self.tombstone_bytes -= removed;
    }

    /// Raises the block's highest sequence to that of a record written into it.
    #[inline]
    pub fn raise_max_sequence(&mut self, block: BlockId, sequence: Sequence) {
        let entry = &mut self.entries[block.index()];
        entry.max_sequence = entry.max_sequence.max(sequence);
    }
}
