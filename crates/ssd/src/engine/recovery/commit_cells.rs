//! Reads the commit records of a medium.
//!
//! Input: the commit cells. Output: the records that are intact, oldest first. Invariant: a cell that cannot be read, or
//! holds no intact record, contributes nothing.

use super::page_reads::run_alone;
use crate::ftl::recovering::PageSource;
use crate::log::commit_record::CommitRecord;
use crate::media::unreadable::READ_RETRY_DELAYS;
use crate::media::{CELL_BYTES, CellNumber, Media, MediaCompletion, MediaOp, MediaTraits};
use headwater_dma::frame::MediaFrame;
use headwater_host::clock::Nanos;
use std::collections::{BTreeMap, BTreeSet};

/// The commit records of a medium.
#[derive(Debug, Default)]
pub(super) struct FoundRecords {
    /// The intact records by their numbers, lowest first.
    pub(super) records: Vec<CommitRecord>,
    /// Cells that hold something, but no intact record.
    pub(super) damaged: Vec<CellNumber>,
    /// Cells that cannot be read.
    pub(super) unreadable: Vec<CellNumber>,
}

/// Numbers behind that of a record after which it is durable: the flush of its commit was answered before the record of
/// the commit behind it was written, and an idle record may lie between them.
const NUMBERS_UNTIL_DURABLE: u64 = 4;

impl FoundRecords {
    /// Returns true if both records of the newest commit may lie in cells that cannot be read; `sides` are the numbers of
    /// cells in front and at the end.
    pub(super) fn may_hide_newest(&self, sides: (u16, u16)) -> bool {
        let front = self.unreadable.iter().filter(|cell| cell.0 < sides.0).count();
        let is_any = !self.unreadable.is_empty();
        is_any && (self.records.is_empty() || front > 0 && front < self.unreadable.len())
    }

    /// Returns the cells that hold an older record than the one that was durable there: its write was lost, or the cell is
    /// as it was before. Records of the same epoch around its number are the proof.
    pub(super) fn stale(&self, traits: &MediaTraits) -> Vec<CellNumber> {
        let Some(newest) = self.records.last() else { return Vec::new() };
        let known: BTreeMap<u64, u64> =
            self.records.iter().map(|record| (record.number, record.epoch)).collect();
        let oldest = newest.number.saturating_sub(2 * u64::from(traits.cells.0.max(traits.cells.1)));
        let is_durable = |number: u64| {
            let before = known.range(..number).next_back().map(|(_, epoch)| *epoch);
            let behind = known.range(number + NUMBERS_UNTIL_DURABLE..).next().map(|(_, epoch)| *epoch);
            before.is_some() && before == behind
        };
        let sides = [traits.cells.0, traits.cells.1];
        let is_kept = |number: u64| {
            // A side with fewer cells forgets its records sooner.
            let cells = u64::from(sides[usize::from(!number.is_multiple_of(2))]);
            newest.number - number < 2 * cells
        };
        let lost = (oldest + 1..newest.number).filter(|number| !known.contains_key(number));
        let cells = lost.filter(|number| is_kept(*number) && is_durable(*number));
        let cells: BTreeSet<CellNumber> = cells.map(|number| traits.cell_of(number)).collect();
        let damaged = |cell: &CellNumber| self.damaged.contains(cell) || self.unreadable.contains(cell);
        cells.into_iter().filter(|cell| !damaged(cell)).collect()
    }
}

/// Reads every commit cell.
pub(super) fn read_commit_cells<M: Media>(source: &mut PageSource<'_, M>, now: &mut Nanos) -> FoundRecords {
    let traits = source.media.traits();
    let mut found = FoundRecords::default();
    let mut frame = source.frames.take().unwrap_or_else(MediaFrame::zeroed);
    for cell in (0..traits.cell_count()).map(CellNumber) {
        // What is no record of this cell is read once more: the read may have been of another place.
        for is_last in [false, true] {
            let completion = read_cell(source, cell, frame, now);
            frame = completion.frame.unwrap_or_else(MediaFrame::zeroed);
            if completion.result.is_err() {
                found.unreadable.push(cell);
                break;
            }
            let bytes = &frame[..CELL_BYTES];
            match CommitRecord::decode(bytes, traits.checksum_seed) {
                Some(record) if traits.cell_of(record.number) == cell => {
                    found.records.push(record);
                    break;
                }
                None if bytes.iter().all(|byte| *byte == 0) => {}
                Some(_) | None if is_last => found.damaged.push(cell),
                Some(_) | None => {}
            }
        }
    }
    source.frames.put_back(frame);
    found.records.sort_unstable_by_key(|record| record.number);
    found
}

/// Reads a cell, again after each delay while its read fails.
fn read_cell<M: Media>(
    source: &mut PageSource<'_, M>,
    cell: CellNumber,
    frame: MediaFrame,
    now: &mut Nanos,
) -> MediaCompletion {
    let mut completion = run_alone(source.media, MediaOp::ReadCell { cell, frame }, now);
    for delay in READ_RETRY_DELAYS {
        if !completion.result.is_err_and(|error| error.may_pass()) || !source.failures.may_wait() {
            break;
        }
        *now = source.media.wait_until(*now, now.after(delay));
        let frame = completion.frame.unwrap_or_else(MediaFrame::zeroed);
        completion = run_alone(source.media, MediaOp::ReadCell { cell, frame }, now);
    }
    completion
}
