//! The erase table of version 1: the current generation of each block.
//!
//! Input: a file. Output: the generations. Invariant: of two copies of a piece the newer intact one counts.
//!
//! Generation 0 means that no page of the block was ever programmed.

use super::super::backing::StartupFile;
use super::super::layout::PIECE_BYTES;
use super::Version1Fault;
use super::layout::{CopyNumber, GENERATIONS_PER_PIECE, Version1Layout};

/// Reads the generations of all blocks.
pub(super) fn load(layout: &Version1Layout, file: &impl StartupFile) -> Result<Vec<u64>, Version1Fault> {
    let mut generations = vec![0; layout.geometry.blocks as usize];
    let mut piece = [0; PIECE_BYTES];
    for (number, part) in generations.chunks_mut(GENERATIONS_PER_PIECE).enumerate() {
        let mut best: Option<u64> = None;
        for copy in CopyNumber::BOTH {
            file.read_at(&mut piece, layout.table_offset(number, copy)).map_err(Version1Fault::Io)?;
            let mut read = [0; GENERATIONS_PER_PIECE];
            let Some(write) = layout.read_table(number, &piece, &mut read) else {
                continue;
            };
            if best.is_none_or(|best| write > best) {
                part.copy_from_slice(&read[..part.len()]);
                best = Some(write);
            }
        }
        best.ok_or(Version1Fault::Table(number))?;
    }
    Ok(generations)
}
