//! The erase table: which life of each block counts.
//!
//! In: erases and first programs. Out: the generation that a programmed page must carry, and the pieces of the table
//! that a flush has to write. Invariant: a generation given out was never given out before, in this session or an
//! earlier one, whether or not it became durable; and a piece is only ever written over its copy that is not needed.
//!
//! Generation 0 means that no page of the block was ever programmed.

use super::layout::{GENERATIONS_PER_PIECE, Layout, PIECE_BYTES, Twin};
use crate::media::BlockId;
use headwater_host::region::{SECTOR_BYTES, SectorBuffer};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Sessions count in the upper half of a generation, erases of a session in the lower.
const SESSION_SHIFT: u32 = 32;

/// One page of the table in the file.
#[derive(Clone, Copy, Debug)]
struct Piece {
    /// Writes of this page that are durable.
    write: u64,
    /// The copy that holds the last of them.
    durable: Twin,
    /// Whether memory is ahead of the file.
    dirty: bool,
    /// Whether it was taken and is not yet settled.
    writing: bool,
}

/// A page of the table on its way to the file.
#[derive(Debug)]
pub(super) struct PieceWrite {
    pub(super) offset: u64,
    pub(super) buffer: SectorBuffer,
}

/// One generation a block.
#[derive(Debug)]
pub(super) struct EraseTable {
    generations: Vec<u64>,
    pieces: Vec<Piece>,
    writing: Vec<usize>,
    next_generation: u64,
}

/// Why a table could not be loaded.
#[derive(Debug)]
pub(super) enum TableFault {
    /// No copy of this page of the table passes its check.
    Damaged(usize),
    /// The file could not be read.
    Io(io::Error),
}

impl EraseTable {
    /// Reads the table. [`begin_session`](Self::begin_session) must follow before a generation is given out.
    pub(super) fn load(layout: &Layout, file: &File) -> Result<Self, TableFault> {
        let mut generations = vec![0; layout.geometry.blocks as usize];
        let mut pieces = Vec::with_capacity(layout.table_pieces());
        let mut found = [0; PIECE_BYTES];
        for (number, part) in generations.chunks_mut(GENERATIONS_PER_PIECE).enumerate() {
            let mut best: Option<Piece> = None;
            for copy in Twin::BOTH {
                file.read_exact_at(&mut found, layout.table_offset(number, copy)).map_err(TableFault::Io)?;
                let mut read = [0; GENERATIONS_PER_PIECE];
                let Some(write) = layout.read_table(number, &found, &mut read) else {
                    continue;
                };
                if best.is_none_or(|best| write > best.write) {
                    part.copy_from_slice(&read[..part.len()]);
                    best = Some(Piece { write, durable: copy, dirty: false, writing: false });
                }
            }
            pieces.push(best.ok_or(TableFault::Damaged(number))?);
        }
        Ok(Self { generations, pieces, writing: Vec::new(), next_generation: 0 })
    }

    /// The first write of every page of the table, into a new file.
    pub(super) fn create(layout: &Layout, file: &File) -> io::Result<()> {
        let mut piece = [0; PIECE_BYTES];
        for number in 0..layout.table_pieces() {
            layout.write_table(number, 1, &[], &mut piece);
            file.write_all_at(&piece, layout.table_offset(number, Twin::First))?;
        }
        Ok(())
    }

    /// The lowest session that no generation in the table belongs to.
    pub(super) fn session_after(&self) -> u64 {
        let highest = self.generations.iter().max().copied().unwrap_or(0);
        (highest >> SESSION_SHIFT) + 1
    }

    /// Generations of this session come next. The session must be durable in the file before one is used.
    pub(super) fn begin_session(&mut self, session: u64) {
        self.next_generation = (session << SESSION_SHIFT) + 1;
    }

    pub(super) fn generation(&self, block: BlockId) -> u64 {
        self.generations.get(block.index()).copied().unwrap_or(0)
    }

    pub(super) fn generations(&self) -> &[u64] {
        &self.generations
    }

    /// Begins a new life of the block; every page of it is blank.
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

    /// The next pages, `most` of them, that have to be written before the table is durable; empty when all were taken.
    /// [`settle`](Self::settle) must follow before a page that changes meanwhile is taken again.
    pub(super) fn take_writes(&mut self, layout: &Layout, most: usize) -> Vec<PieceWrite> {
        let mut writes = Vec::new();
        for (number, piece) in self.pieces.iter_mut().enumerate() {
            if !piece.dirty || piece.writing {
                continue;
            }
            if writes.len() == most {
                break;
            }
            piece.dirty = false;
            piece.writing = true;
            self.writing.push(number);
            let mut buffer = SectorBuffer::zeroed(PIECE_BYTES / SECTOR_BYTES);
            let first = number * GENERATIONS_PER_PIECE;
            let last = self.generations.len().min(first + GENERATIONS_PER_PIECE);
            layout.write_table(number, piece.write + 1, &self.generations[first..last], &mut buffer);
            writes.push(PieceWrite { offset: layout.table_offset(number, piece.durable.other()), buffer });
        }
        writes
    }

    /// Hears whether what was taken is durable now.
    pub(super) fn settle(&mut self, durable: bool) {
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
