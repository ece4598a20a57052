//! The parts of a flash file that make up a snapshot of it.
//!
//! Input: a snapshot. Output: ranges of the file, and bytes to write. Invariant: a file of the same length with these
//! parts, and zeros elsewhere, opens with the state of the snapshot.

use super::layout::{BLOCK_BYTES, PIECE_BYTES, SLOT_BYTES, SUPERBLOCK_COPIES};
use super::{FileMedia, TransferRing};
use crate::media::snapshot::SnapshotContents;
use crate::media::{BlockId, PageAddress};

/// The pages of one block in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageBlock {
    /// The offset of its first page, in bytes.
    pub offset: u64,
    /// The number of its pages in the snapshot, from the first one.
    pub pages: u8,
    /// The order of its life: a block with an equal offset and an equal order holds equal pages.
    pub order: u64,
}

/// The parts of a flash file in a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileImage {
    /// The bytes of the file.
    pub file_bytes: u64,
    /// The bytes of one page in the file.
    pub page_bytes: u32,
    /// The offsets of the copies of the superblock, of [`SUPERBLOCK_BYTES`] each. They do not change.
    pub superblocks: Vec<u64>,
    /// Commit records, with their offsets.
    pub records: Vec<(u64, Box<[u8]>)>,
    /// The blocks, by offset.
    pub blocks: Vec<ImageBlock>,
}

/// The bytes of one copy of the superblock.
pub const SUPERBLOCK_BYTES: usize = PIECE_BYTES;

impl<R: TransferRing> FileMedia<R> {
    /// Returns the block whose first page lies at an offset in the file; `None` if there is no such block.
    #[must_use]
    pub fn block_at(&self, offset: u64) -> Option<BlockId> {
        let within = offset.checked_sub(self.layout.slots_offset)?;
        let block = u32::try_from(within / BLOCK_BYTES as u64).ok()?;
        let is_start = within.is_multiple_of(BLOCK_BYTES as u64) && block < self.layout.geometry.blocks;
        is_start.then_some(BlockId(block))
    }

    /// Returns the parts of the file that make up a snapshot.
    ///
    /// # Panics
    /// The snapshot names a cell that the file does not have: it is of another medium.
    #[must_use]
    pub fn image_of(&self, snapshot: &SnapshotContents) -> FileImage {
        let offset_of = |cell| self.layout.cell_offset(cell).expect("the snapshot is of this medium");
        let blocks = snapshot.blocks.iter().map(|kept| ImageBlock {
            offset: self.layout.slot_offset(PageAddress::new(kept.block, 0)),
            pages: kept.pages,
            order: kept.order,
        });
        FileImage {
            file_bytes: self.layout.file_bytes,
            page_bytes: u32::try_from(SLOT_BYTES).expect("a page has 4,608 bytes in the file"),
            superblocks: (0..SUPERBLOCK_COPIES).map(|copy| self.layout.superblock_offset(copy)).collect(),
            records: snapshot.records.iter().map(|(cell, bytes)| (offset_of(*cell), bytes.clone())).collect(),
            blocks: blocks.collect(),
        }
    }
}
