//! Zero fill: zeros written before first use, so that a commit never has to turn reserved space into written space.
//!
//! Input: first programs of blocks that were never used. Output: the blocks that must wait, and the next zeros to
//! write, one chunk at a time. Invariant: zeros are written only where no page was ever programmed, and no page is
//! programmed where a write of zeros is in flight.
//!
//! ```text
//!  Untouched --first program in the region before--> Filling --last chunk written--> Ready
//!  Untouched --first program in it--------------------------------------------------> Ready
//! ```

use super::layout::{FlashLayout, SLOT_BYTES};
use crate::media::{BlockId, PAGES_PER_BLOCK};
use headwater_host::mapped_region::{SECTOR_BYTES, SectorBuffer};

/// Blocks of a fill region.
const REGION_BLOCKS: usize = 16;
/// Bytes of a fill region.
pub(super) const REGION_BYTES: u64 = (REGION_BLOCKS * CHUNK_BYTES) as u64;
/// Zeros written at a time: one block, so that a commit waits for no more than that.
const CHUNK_BYTES: usize = PAGES_PER_BLOCK * SLOT_BYTES;
const _: () = assert!(CHUNK_BYTES.is_multiple_of(SECTOR_BYTES));

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RegionState {
    /// No page of it was ever programmed; its space is only reserved.
    Untouched,
    /// A write of zeros is in flight.
    Filling,
    /// Pages may be programmed.
    Ready,
}

/// A write of zeros to the file.
#[derive(Debug)]
pub(super) struct ZeroWrite {
    pub(super) offset: u64,
    pub(super) buffer: SectorBuffer,
}

/// The fill regions of one file.
#[derive(Debug)]
pub(super) struct ZeroFill {
    states: Vec<RegionState>,
    /// The region being filled, and the next of its chunks.
    filling: Option<(usize, u64)>,
    next: Option<usize>,
    zeros: Option<SectorBuffer>,
    layout: FlashLayout,
}

impl ZeroFill {
    /// Makes the regions: one with a used block is ready; all other regions count as never written.
    pub(super) fn new(layout: FlashLayout, generations: &[u64]) -> Self {
        let states = generations.chunks(REGION_BLOCKS).enumerate().map(|(index, part)| {
            let used = part.iter().any(|&generation| generation != 0);
            // The first region was written when the file was created.
            if used || index == 0 { RegionState::Ready } else { RegionState::Untouched }
        });
        Self { states: states.collect(), filling: None, next: None, zeros: None, layout }
    }

    /// Returns true if programs of the block must wait for a write of zeros.
    pub(super) fn must_wait(&self, block: BlockId) -> bool {
        self.filling.is_some_and(|(stretch, _)| stretch == block.index() / REGION_BLOCKS)
    }

    /// Notes that a block that was never used is about to be programmed.
    pub(super) fn note_first_program(&mut self, block: BlockId) {
        let index = block.index() / REGION_BLOCKS;
        if let Some(state) = self.states.get_mut(index)
            && *state == RegionState::Untouched
        {
            *state = RegionState::Ready;
        }
        if self.states.get(index + 1) == Some(&RegionState::Untouched) {
            self.next = Some(index + 1);
        }
    }

    /// Returns the next zeros to write, if a region is due. [`complete_write`](Self::complete_write) must follow before the next
    /// call.
    pub(super) fn take_write(&mut self) -> Option<ZeroWrite> {
        if self.filling.is_none() {
            let index = self.next.take()?;
            if self.states[index] != RegionState::Untouched {
                return None;
            }
            self.states[index] = RegionState::Filling;
            self.filling = Some((index, 0));
            self.zeros = Some(SectorBuffer::zeroed(CHUNK_BYTES / SECTOR_BYTES));
        }
        let (index, chunk) = self.filling?;
        let buffer = self.zeros.take()?;
        let offset = self.layout.slots_offset() + index as u64 * REGION_BYTES + chunk * CHUNK_BYTES as u64;
        Some(ZeroWrite { offset, buffer })
    }

    /// Takes the buffer back after a write of zeros. A failed write does no harm: zeros only save time.
    pub(super) fn complete_write(&mut self, buffer: Option<SectorBuffer>) {
        let Some((index, chunk)) = self.filling else {
            return;
        };
        let first_block = index * REGION_BLOCKS;
        let blocks = (self.layout.geometry.blocks as usize - first_block).min(REGION_BLOCKS) as u64;
        match buffer {
            Some(buffer) if chunk + 1 < blocks => {
                self.filling = Some((index, chunk + 1));
                self.zeros = Some(buffer);
            }
            _ => {
                self.states[index] = RegionState::Ready;
                self.filling = None;
                self.zeros = None;
            }
        }
    }
}
