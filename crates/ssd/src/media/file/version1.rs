//! Files of version 1, which are only read (`docs/formats/flash-file.md`).
//!
//! Input: a file whose superblock has version 1. Output: its layout, and the state of each page from its block's
//! generation. Invariant: nothing here writes; a page reads as programmed exactly when its slot carries the current
//! generation of its block.

mod layout;
mod table;

use super::backing::StartupFile;
use super::layout::{FlashLayout, PIECE_BYTES};
use super::superblock::SuperblockFault;
use crate::media::{BlockId, FlashGeometry, PageAddress};
use layout::{CopyNumber, Version1Layout};
use std::io;

/// The version of these files.
pub(super) const VERSION: u32 = 1;

/// The reason why a file of version 1 could not be opened.
#[derive(Debug)]
pub(super) enum Version1Fault {
    /// The file is shorter than its superblock says.
    Length {
        /// The length in the superblock.
        expected_bytes: u64,
    },
    /// Neither session record passes its check.
    Session,
    /// No copy of this piece of the erase table passes its check.
    Table(usize),
    /// The file could not be read.
    Io(io::Error),
}

/// The generations that tell programmed pages from blank ones.
#[derive(Debug)]
pub(super) struct Version1Pages {
    layout: Version1Layout,
    generations: Vec<u64>,
    session: u64,
}

impl Version1Pages {
    /// Checks a superblock, and the file that it describes.
    ///
    /// # Errors
    /// The fault of the superblock, or of the file.
    pub(super) fn open(
        file: &impl StartupFile,
        file_bytes: u64,
        piece: &[u8; PIECE_BYTES],
    ) -> Result<Result<Self, Version1Fault>, SuperblockFault> {
        let layout = Version1Layout::from_superblock(piece)?;
        Ok(Self::check(file, file_bytes, layout))
    }

    fn check(
        file: &impl StartupFile,
        file_bytes: u64,
        layout: Version1Layout,
    ) -> Result<Self, Version1Fault> {
        // A longer file is accepted: bytes behind the last slot are not read.
        if file_bytes < layout.file_bytes() {
            return Err(Version1Fault::Length { expected_bytes: layout.file_bytes() });
        }
        let generations = table::load(&layout, file)?;
        let session = last_session(&layout, file)?;
        Ok(Self { layout, generations, session })
    }

    /// Returns the shape of the file.
    pub(super) fn flash_layout(&self) -> FlashLayout {
        FlashLayout {
            geometry: self.geometry(),
            uuid: self.layout.uuid,
            cells: (0, 0),
            slots_offset: self.layout.slots_offset(),
            file_bytes: self.layout.file_bytes(),
        }
    }

    fn geometry(&self) -> FlashGeometry {
        self.layout.geometry
    }

    /// Returns the last session that began.
    pub(super) fn session(&self) -> u64 {
        self.session
    }

    /// Returns true if no page of the block was ever made durable.
    pub(super) fn is_unused(&self, block: BlockId) -> bool {
        self.generation(block) == 0
    }

    /// Returns true if a slot was programmed in its block's current generation.
    pub(super) fn is_programmed(&self, page: PageAddress, slot: &[u8]) -> bool {
        let generation = self.generation(page.block);
        generation != 0 && self.layout.is_programmed(page, generation, slot)
    }

    fn generation(&self, block: BlockId) -> u64 {
        self.generations.get(block.index()).copied().unwrap_or(0)
    }
}

/// Returns true if a piece is a session record that version 1 wrote to a file.
pub(super) fn is_session(geometry: FlashGeometry, uuid: [u8; 16], piece: &[u8; PIECE_BYTES]) -> bool {
    Version1Layout::new(geometry, uuid).read_session(piece).is_some()
}

/// Returns the last session that began: the highest of the two records.
fn last_session(layout: &Version1Layout, file: &impl StartupFile) -> Result<u64, Version1Fault> {
    let mut best = None;
    let mut piece = [0; PIECE_BYTES];
    for copy in CopyNumber::BOTH {
        file.read_at(&mut piece, Version1Layout::session_offset(copy)).map_err(Version1Fault::Io)?;
        best = best.max(layout.read_session(&piece));
    }
    best.ok_or(Version1Fault::Session)
}
