//! The pieces of version 2 that are written around the blocks of a file of version 1.
//!
//! Input: an open file of version 1; blocks and commit records from the engine. Output: the same file with version 2.
//! Invariant: until [`FileUpgrade::switch`] nothing changes that version 1 reads, and from then on everything that version
//! 2 needs is durable. The steps are in `docs/formats/medium-2.md`.

use super::layout::{BLOCK_BYTES, FlashLayout, PIECE_BYTES, SUPERBLOCK_COPIES};
use super::startup::{system, write_superblocks, write_zeros};
use super::superblock::{FeatureBits, Superblock};
use super::superblock_choice::{ChosenSuperblock, PieceReader};
use super::version1;
use super::{FileMedia, FileMediaError, StartupFile, TransferRing};
use crate::media::{
    BlockId, CELL_BYTES, CELLS_PER_SIDE, CellNumber, MediaTraits, MediumVersion, PageAddress,
};
use headwater_host::copy::crc32c;
use std::io;
use std::path::{Path, PathBuf};

/// A commit record and its cell.
pub(crate) type CellRecord = (CellNumber, [u8; CELL_BYTES]);

/// The upgrade of one file.
#[derive(Debug)]
pub(crate) struct FileUpgrade<'f, F> {
    file: &'f F,
    path: PathBuf,
    superblock: Superblock,
    traits: MediaTraits,
}

impl<'f, F: StartupFile> FileUpgrade<'f, F> {
    /// Plans the upgrade of the file beneath a medium; `None` if it is not of version 1. Nothing is written.
    pub(crate) fn new<R: TransferRing>(media: &FileMedia<R>, file: &'f F) -> Option<Self> {
        let session = media.version_1_session()?;
        let FlashLayout { geometry, uuid, slots_offset, .. } = media.layout;
        let layout = FlashLayout::of_upgraded(geometry, uuid, (CELLS_PER_SIDE, CELLS_PER_SIDE), slots_offset);
        let traits = MediaTraits {
            version: MediumVersion::Two,
            cells: layout.cells,
            checksum_seed: crc32c(0, &uuid),
            ..super::super::Media::traits(media)
        };
        let superblock = Superblock::upgraded(layout, session);
        Some(Self { file, path: media.path.clone(), superblock, traits })
    }

    /// Returns the guarantees of the upgraded medium.
    pub(crate) fn traits(&self) -> &MediaTraits {
        &self.traits
    }

    /// Returns by how many bytes the file is longer than the upgraded file: nothing here shortens it.
    ///
    /// # Errors
    /// It cannot be examined.
    pub(crate) fn surplus_bytes(&self) -> Result<u64, FileMediaError> {
        let found_bytes = self.file.length().map_err(system(&self.path, "examine"))?;
        Ok(found_bytes.saturating_sub(self.superblock.layout.file_bytes))
    }

    /// Writes the slots of a free block, of which version 1 reads nothing.
    ///
    /// # Errors
    /// The write failed.
    ///
    /// # Panics
    /// These are not the bytes of a block.
    pub(crate) fn write_block(&self, block: BlockId, slots: &[u8]) -> Result<(), FileMediaError> {
        assert_eq!(slots.len(), BLOCK_BYTES, "the slots of a block are written together");
        let offset = self.superblock.layout.slot_offset(PageAddress::new(block, 0));
        self.file.write_at(slots, offset).map_err(system(&self.path, "write a checkpoint to"))
    }

    /// Writes what lies behind the blocks: a commit record of that side, then two copies of the superblock.
    ///
    /// # Errors
    /// A write or a sync failed. The file has version 1 still.
    pub(crate) fn write_tail(&self, record: &CellRecord) -> Result<(), FileMediaError> {
        let layout = &self.superblock.layout;
        let write = || {
            write_zeros(self.file, layout.tail_offset(), layout.file_bytes)?;
            write_cells(self.file, layout, std::slice::from_ref(record))?;
            self.file.sync()?;
            write_superblocks(self.file, &self.superblock, 2..SUPERBLOCK_COPIES)?;
            self.file.sync()
        };
        write().map_err(system(&self.path, "lengthen"))
    }

    /// Gives the file version 2, then writes what lies in front of the blocks.
    ///
    /// # Errors
    /// A write or a sync failed. The file has one of the two versions, and opening a file of version 2 finishes this.
    pub(crate) fn switch(&self, record: &CellRecord) -> Result<(), FileMediaError> {
        let write = || {
            write_superblocks(self.file, &self.superblock, [0])?;
            self.file.sync()?;
            finish(self.file, &self.superblock, std::slice::from_ref(record))?;
            write_superblocks(self.file, &self.superblock, [1])?;
            self.file.sync()
        };
        write().map_err(system(&self.path, "write the superblock of"))
    }
}

fn write_cells(file: &impl StartupFile, layout: &FlashLayout, records: &[CellRecord]) -> io::Result<()> {
    records.iter().try_for_each(|(cell, record)| {
        let offset = layout.cell_offset(*cell).ok_or(io::ErrorKind::InvalidInput)?;
        file.write_at(record, offset)
    })
}

/// Returns true if an upgrade was interrupted behind its switch: the place of the second copy of the superblock, which is
/// written last, holds a session record of version 1, so the front cells hold the rest of its tables.
pub(super) fn is_unfinished<F: StartupFile>(
    superblock: &Superblock,
    pieces: &mut PieceReader<'_, F>,
) -> bool {
    let FlashLayout { geometry, uuid, .. } = superblock.layout;
    superblock.features.incompatible & FeatureBits::HOLDS_VERSION_1 != 0
        && pieces.piece(PIECE_BYTES as u64).is_ok_and(|piece| version1::is_session(geometry, uuid, &piece))
}

/// Empties the front cells of the tables of version 1, and writes records into them.
pub(super) fn finish(
    file: &impl StartupFile,
    superblock: &Superblock,
    records: &[CellRecord],
) -> io::Result<()> {
    let layout = &superblock.layout;
    write_zeros(file, layout.superblock_offset(1) + PIECE_BYTES as u64, layout.slots_offset)?;
    write_cells(file, layout, records)?;
    file.sync()
}

/// Notes in an upgraded file that it holds no block of version 1 any more.
///
/// # Errors
/// The superblock cannot be read or written. It stays valid, as it was or as it should be.
pub(crate) fn clear_version_1(file: &impl StartupFile, path: &Path) -> Result<(), FileMediaError> {
    let found_bytes = file.length().map_err(system(path, "examine"))?;
    let chosen = PieceReader::new(file, found_bytes).choose();
    let ChosenSuperblock { superblock, .. } = chosen.map_err(|undecided| {
        FileMediaError::SuperblockDamaged { path: path.to_owned(), bad: undecided.bad }
    })?;
    write_revision(file, &superblock.without_version_1()).map_err(system(path, "write the superblock of"))
}

/// Writes the next revision of a superblock. Interrupted anywhere, the file has one of both.
pub(super) fn write_revision(file: &impl StartupFile, next: &Superblock) -> io::Result<()> {
    write_superblocks(file, next, 0..2)?;
    file.sync()?;
    write_superblocks(file, next, 2..SUPERBLOCK_COPIES)?;
    file.sync()
}
