//! Reads the commit records of a medium.
//!
//! Input: the commit cells. Output: the records that are intact, oldest first. Invariant: a cell that cannot be read, or
//! holds no intact record, contributes nothing.

use super::page_reads::run_alone;
use crate::ftl::recovering::PageSource;
use crate::log::commit_record::CommitRecord;
use crate::media::unreadable::READ_RETRY_DELAYS;
use crate::media::{CELL_BYTES, CellNumber, Media, MediaCompletion, MediaOp};
use headwater_dma::frame::MediaFrame;
use headwater_host::clock::Nanos;

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

impl FoundRecords {
    /// Returns true if both records of the newest commit may lie in cells that cannot be read; `sides` are the numbers of
    /// cells in front and at the end.
    pub(super) fn may_hide_newest(&self, sides: (u16, u16)) -> bool {
        let front = self.unreadable.iter().filter(|cell| cell.0 < sides.0).count();
        let is_any = !self.unreadable.is_empty();
        is_any && (self.records.is_empty() || front > 0 && front < self.unreadable.len())
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
