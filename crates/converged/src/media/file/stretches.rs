//! Writing zeros ahead of first use, so that a commit never has to turn reserved space into written space.
//!
//! In: first programs of blocks that were never used. Out: which blocks must wait, and the zeros to write next, one
//! chunk at a time. Invariant: zeros are written only where no page was ever programmed, and nothing is programmed
//! where zeros are on their way.
//!
//! ```text
//!  Untouched --first program in the stretch before--> Filling --last chunk written--> Ready
//!  Untouched --first program in it----------------------------------------------------> Ready
//! ```

use super::layout::{Layout, SLOT_BYTES};
use crate::media::{BlockId, PAGES_PER_BLOCK};
use headwater_host::region::{SECTOR_BYTES, SectorBuffer};

/// Blocks of a stretch.
const STRETCH_BLOCKS: usize = 16;
/// Bytes of a stretch.
pub(super) const STRETCH_BYTES: u64 = (STRETCH_BLOCKS * CHUNK_BYTES) as u64;
/// Zeros written at a time: one block, so that a commit is never behind more than that.
const CHUNK_BYTES: usize = PAGES_PER_BLOCK * SLOT_BYTES;
const _: () = assert!(CHUNK_BYTES.is_multiple_of(SECTOR_BYTES));

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stretch {
    /// No page of it was ever programmed, and its space is reserved only.
    Untouched,
    /// Zeros are on their way.
    Filling,
    /// Pages may be programmed.
    Ready,
}

/// Zeros on their way to the file.
#[derive(Debug)]
pub(super) struct ZeroWrite {
    pub(super) offset: u64,
    pub(super) buffer: SectorBuffer,
}

/// The stretches of one file.
#[derive(Debug)]
pub(super) struct Stretches {
    states: Vec<Stretch>,
    /// The stretch being filled, and the next of its chunks.
    filling: Option<(usize, u64)>,
    next: Option<usize>,
    zeros: Option<SectorBuffer>,
    layout: Layout,
}

impl Stretches {
    /// A stretch with a used block is ready; the others are not known to have been written.
    pub(super) fn new(layout: Layout, generations: &[u64]) -> Self {
        let states = generations.chunks(STRETCH_BLOCKS).enumerate().map(|(index, part)| {
            let used = part.iter().any(|&generation| generation != 0);
            // The first one was written when the file was made.
            if used || index == 0 { Stretch::Ready } else { Stretch::Untouched }
        });
        Self { states: states.collect(), filling: None, next: None, zeros: None, layout }
    }

    /// Whether programs of the block must wait for zeros on their way.
    pub(super) fn must_wait(&self, block: BlockId) -> bool {
        self.filling.is_some_and(|(stretch, _)| stretch == block.index() / STRETCH_BLOCKS)
    }

    /// Hears that a block that was never used is about to be programmed.
    pub(super) fn touch(&mut self, block: BlockId) {
        let index = block.index() / STRETCH_BLOCKS;
        if let Some(state) = self.states.get_mut(index)
            && *state == Stretch::Untouched
        {
            *state = Stretch::Ready;
        }
        if self.states.get(index + 1) == Some(&Stretch::Untouched) {
            self.next = Some(index + 1);
        }
    }

    /// The next zeros to write, if it is time for some. [`written`](Self::written) must follow before the next call.
    pub(super) fn take_write(&mut self) -> Option<ZeroWrite> {
        if self.filling.is_none() {
            let index = self.next.take()?;
            if self.states[index] != Stretch::Untouched {
                return None;
            }
            self.states[index] = Stretch::Filling;
            self.filling = Some((index, 0));
            self.zeros = Some(SectorBuffer::zeroed(CHUNK_BYTES / SECTOR_BYTES));
        }
        let (index, chunk) = self.filling?;
        let buffer = self.zeros.take()?;
        let offset = self.layout.slots_offset() + index as u64 * STRETCH_BYTES + chunk * CHUNK_BYTES as u64;
        Some(ZeroWrite { offset, buffer })
    }

    /// Takes the zeros back. Whether they arrived does not matter: they only save time.
    pub(super) fn written(&mut self, buffer: Option<SectorBuffer>) {
        let Some((index, chunk)) = self.filling else {
            return;
        };
        let first_block = index * STRETCH_BLOCKS;
        let blocks = (self.layout.geometry.blocks as usize - first_block).min(STRETCH_BLOCKS) as u64;
        match buffer {
            Some(buffer) if chunk + 1 < blocks => {
                self.filling = Some((index, chunk + 1));
                self.zeros = Some(buffer);
            }
            _ => {
                self.states[index] = Stretch::Ready;
                self.filling = None;
                self.zeros = None;
            }
        }
    }
}
