//! Zero fill: zeros written before first use, so that a commit never has to turn reserved space into written space.
//!
//! Input: first programs of blocks, and pages that were found programmed. Output: the blocks that must wait, and the
//! next chunk to read or to write. Invariant: zeros are written only over zeros that were just read, and no page is
//! programmed where a transfer of the fill is in flight.
//!
//! ```text
//!  Unknown --first program in the region before--> Filling --last chunk written, or bytes found--> Ready
//!  Unknown --page in it programmed, or found programmed--------------------------------------------> Ready
//! ```

use super::layout::{BLOCK_BYTES, FlashLayout};
use crate::media::BlockId;
use headwater_host::copy::is_zero;
use headwater_host::mapped_region::{SECTOR_BYTES, SectorBuffer};

/// Blocks of a fill region.
const REGION_BLOCKS: usize = 16;
/// Bytes of a fill region.
pub(super) const REGION_BYTES: u64 = (REGION_BLOCKS * CHUNK_BYTES) as u64;
/// Zeros written at a time: one block, so that a commit waits for no more than that.
const CHUNK_BYTES: usize = BLOCK_BYTES;
const _: () = assert!(CHUNK_BYTES.is_multiple_of(SECTOR_BYTES));

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RegionState {
    /// No page of it is known to be programmed; its space may be only reserved.
    Unknown,
    /// Its chunks are read, and filled if they are zero.
    Filling,
    /// Pages may be programmed.
    Ready,
}

/// The next transfer of the fill.
#[derive(Debug)]
pub(super) enum ZeroTransfer {
    /// A read of a chunk, which is filled only if it holds zeros.
    Check {
        /// The first byte.
        offset: u64,
        /// The destination.
        buffer: SectorBuffer,
    },
    /// A write of zeros over the chunk that was read.
    Write {
        /// The first byte.
        offset: u64,
        /// The zeros.
        buffer: SectorBuffer,
    },
}

/// The region being filled.
#[derive(Clone, Copy, Debug)]
struct FillPosition {
    region: usize,
    chunk: u64,
    /// True if the chunk was read and holds zeros.
    checked: bool,
}

/// The fill regions of one file.
#[derive(Debug)]
pub(super) struct ZeroFill {
    states: Vec<RegionState>,
    filling: Option<FillPosition>,
    next: Option<usize>,
    /// The buffer of the next transfer; `None` while one is in flight.
    buffer: Option<SectorBuffer>,
    layout: FlashLayout,
}

impl ZeroFill {
    /// Makes the regions. The first one was written when the file was created.
    pub(super) fn new(layout: FlashLayout) -> Self {
        let mut states =
            vec![RegionState::Unknown; (layout.geometry.blocks as usize).div_ceil(REGION_BLOCKS)];
        states[0] = RegionState::Ready;
        Self { states, filling: None, next: None, buffer: None, layout }
    }

    /// Returns true if programs of the block must wait for the fill.
    pub(super) fn must_wait(&self, block: BlockId) -> bool {
        self.filling.is_some_and(|filling| filling.region == block.index() / REGION_BLOCKS)
    }

    /// Notes that a page of the block is programmed: there is nothing to fill.
    pub(super) fn note_used(&mut self, block: BlockId) {
        if let Some(state) = self.states.get_mut(block.index() / REGION_BLOCKS)
            && *state == RegionState::Unknown
        {
            *state = RegionState::Ready;
        }
    }

    /// Notes that the first page of a block is about to be programmed.
    pub(super) fn note_first_program(&mut self, block: BlockId) {
        self.note_used(block);
        let after = block.index() / REGION_BLOCKS + 1;
        if self.states.get(after) == Some(&RegionState::Unknown) {
            self.next = Some(after);
        }
    }

    /// Returns the next transfer, if a region is due. [`complete_check`](Self::complete_check) or
    /// [`complete_write`](Self::complete_write) must follow before the next call returns one.
    pub(super) fn take_transfer(&mut self) -> Option<ZeroTransfer> {
        if self.filling.is_none() {
            let region = self.next.take()?;
            if self.states[region] != RegionState::Unknown {
                return None;
            }
            self.states[region] = RegionState::Filling;
            self.filling = Some(FillPosition { region, chunk: 0, checked: false });
            self.buffer = Some(SectorBuffer::zeroed(CHUNK_BYTES / SECTOR_BYTES));
        }
        let FillPosition { region, chunk, checked } = self.filling?;
        let buffer = self.buffer.take()?;
        let offset = self.layout.slots_offset + region as u64 * REGION_BYTES + chunk * CHUNK_BYTES as u64;
        Some(if checked {
            ZeroTransfer::Write { offset, buffer }
        } else {
            ZeroTransfer::Check { offset, buffer }
        })
    }

    /// Takes the buffer back after a read of a chunk. Only a chunk of zeros is filled: everything else holds pages, also
    /// if their first page was lost.
    pub(super) fn complete_check(&mut self, buffer: Option<SectorBuffer>) {
        match (&mut self.filling, buffer.filter(|buffer| is_zero(buffer))) {
            (Some(filling), Some(zeros)) => {
                filling.checked = true;
                self.buffer = Some(zeros);
            }
            _ => self.end_region(),
        }
    }

    /// Takes the buffer back after a write of zeros. A failed write does no harm: zeros only save time.
    pub(super) fn complete_write(&mut self, buffer: Option<SectorBuffer>) {
        let Some(FillPosition { region, chunk, .. }) = self.filling else {
            return;
        };
        let first_block = region * REGION_BLOCKS;
        let blocks = (self.layout.geometry.blocks as usize - first_block).min(REGION_BLOCKS) as u64;
        match buffer {
            Some(buffer) if chunk + 1 < blocks => {
                self.filling = Some(FillPosition { region, chunk: chunk + 1, checked: false });
                self.buffer = Some(buffer);
            }
            _ => self.end_region(),
        }
    }

    fn end_region(&mut self) {
        if let Some(filling) = self.filling.take() {
            self.states[filling.region] = RegionState::Ready;
        }
        self.buffer = None;
    }
}
