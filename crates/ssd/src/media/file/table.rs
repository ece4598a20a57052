//! The erase table: the current generation of each block.
//!
//! Input: erases and first programs. Output: the generation that a programmed page must carry, and the table pages that
//! a flush has to write. Invariant: no generation is given out twice, in this session or an earlier one, durable or
//! not; a table page is only ever written over the copy that is not needed.
//!
//! Generation 0 means that no page of the block was ever programmed.

use super::backing::StartupFile;
use super::layout::{CopyNumber, FlashLayout, GENERATIONS_PER_PIECE, PIECE_BYTES};
use crate::media::BlockId;
use headwater_host::mapped_region::{SECTOR_BYTES, SectorBuffer};
use std::io;

/// Bits of a generation below its session: they count the generations of the session.
const SESSION_SHIFT: u32 = 32;

/// One page of the table in the file.
#[derive(Clone, Copy, Debug)]
struct TablePiece {
    /// Writes of this page that are durable.
    write: u64,
    /// The copy that holds the last durable write.
    durable: CopyNumber,
    /// True if memory has changes that the file lacks.
    dirty: bool,
    /// True while a write of it is in flight.
    writing: bool,
}

/// A write of one table page to the file.
#[derive(Debug)]
pub(super) struct TablePieceWrite {
    pub(super) offset: u64,
    pub(super) buffer: SectorBuffer,
}

/// The generations of all blocks.
#[derive(Debug)]
pub(super) struct EraseTable {
    generations: Vec<u64>,
    pieces: Vec<TablePiece>,
    writing: Vec<usize>,
    next_generation: u64,
}

/// The reason why a table could not be loaded.
#[derive(Debug)]
pub(super) enum TableFault {
    /// No copy of this page of the table passes its check.
    Damaged(usize),
    /// The file could not be read.
    Io(io::Error),
}

impl EraseTable {
    /// Reads the table. [`begin_session`](Self::begin_session) must follow before a generation is given out.
    pub(super) fn load(layout: &FlashLayout, file: &impl StartupFile) -> Result<Self, TableFault> {
        let mut generations = vec![0; layout.geometry.blocks as usize];
        let mut pieces = Vec::with_capacity(layout.table_pieces());
        let mut found = [0; PIECE_BYTES];
        for (number, part) in generations.chunks_mut(GENERATIONS_PER_PIECE).enumerate() {
            let mut best: Option<TablePiece> = None;
            for copy in CopyNumber::BOTH {
                file.read_at(&mut found, layout.table_offset(number, copy)).map_err(TableFault::Io)?;
                let mut read = [0; GENERATIONS_PER_PIECE];
                let Some(write) = layout.read_table(number, &found, &mut read) else {
                    continue;
                };
                if best.is_none_or(|best| write > best.write) {
                    part.copy_from_slice(&read[..part.len()]);
                    best = Some(TablePiece { write, durable: copy, dirty: false, writing: false });
                }
            }
            pieces.push(best.ok_or(TableFault::Damaged(number))?);
        }
        Ok(Self { generations, pieces, writing: Vec::new(), next_generation: 0 })
    }

    /// Writes the first version of every table page into a new file.
    pub(super) fn create(layout: &FlashLayout, file: &impl StartupFile) -> io::Result<()> {
        let mut piece = [0; PIECE_BYTES];
        for number in 0..layout.table_pieces() {
            layout.write_table(number, 1, &[], &mut piece);
            file.write_at(&piece, layout.table_offset(number, CopyNumber::First))?;
        }
        Ok(())
    }

    /// Returns the lowest session that no generation in the table belongs to.
    pub(super) fn session_after(&self) -> u64 {
        let highest = self.generations.iter().max().copied().unwrap_or(0);
        (highest >> SESSION_SHIFT) + 1
    }

    /// Sets the session of the next generations. It must be durable in the file before a generation is used.
    pub(super) fn begin_session(&mut self, session: u64) {
        self.next_generation = (session << SESSION_SHIFT) + 1;
    }

    pub(super) fn generation(&self, block: BlockId) -> u64 {
        self.generations.get(block.index()).copied().unwrap_or(0)
    }

    pub(super) fn generations(&self) -> &[u64] {
        &self.generations
    }

    /// Gives the block its next generation; every page of it becomes blank.
    pub(super) fn advance(&mut self, block: BlockId) {
        let index = block.index();
        if let (Some(generation), Some(piece)) =
            (self.generations.get_mut(index), self.pieces.get_mut(index / GENERATIONS_PER_PIECE))
        {
            *generation = self.next_generation;
            self.next_generation += 1;
            piece.dirty = true;
        }
    }

    /// Returns writes of changed table pages, at most `max`; empty when every change was taken.
    /// [`complete_writes`](Self::complete_writes) must follow before a page that changes again is taken again.
    pub(super) fn take_writes(&mut self, layout: &FlashLayout, max: usize) -> Vec<TablePieceWrite> {
        let mut writes = Vec::new();
        for (number, piece) in self.pieces.iter_mut().enumerate() {
            if !piece.dirty || piece.writing {
                continue;
            }
            if writes.len() == max {
                break;
            }
            piece.dirty = false;
            piece.writing = true;
            self.writing.push(number);
            let mut buffer = SectorBuffer::zeroed(PIECE_BYTES / SECTOR_BYTES);
            let first = number * GENERATIONS_PER_PIECE;
            let last = self.generations.len().min(first + GENERATIONS_PER_PIECE);
            layout.write_table(number, piece.write + 1, &self.generations[first..last], &mut buffer);
            writes
                .push(TablePieceWrite { offset: layout.table_offset(number, piece.durable.other()), buffer });
        }
        writes
    }

    /// Completes the writes that were taken; failed ones are due again.
    pub(super) fn complete_writes(&mut self, durable: bool) {
        for number in self.writing.drain(..) {
            let piece = &mut self.pieces[number];
            piece.writing = false;
            if durable {
                piece.write += 1;
                piece.durable = piece.durable.other();
            } else {
                piece.dirty = true;
            }
        }
    }
}
