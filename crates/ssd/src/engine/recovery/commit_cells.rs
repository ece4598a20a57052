//! Reads the commit records of a medium.
//!
//! Input: the commit cells. Output: the records that are intact, oldest first. Invariant: a cell that cannot be read, or
//! holds no intact record, contributes nothing.

use crate::ftl::recovering::PageSource;
use crate::limits::RECOVERY_FRAMES;
use crate::log::commit_record::CommitRecord;
use crate::media::unreadable::READ_RETRY_DELAYS;
use crate::media::{
    CELL_BYTES, CellNumber, Media, MediaCompletion, MediaError, MediaOp, MediaToken, MediaTraits,
    RefusalReason, RefusedOp,
};
use headwater_dma::frame::MediaFrame;
use headwater_host::clock::Nanos;
use headwater_host::copy::is_zero;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

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

/// Numbers behind the newest one found whose cells may hold a newer record: a commit or an opening writes two, and an idle
/// record may follow.
const NUMBERS_AHEAD: u64 = 4;

/// Reads every commit cell. What is no record of its cell is read once more, because the read may have been of another
/// place; a cell of zeros only if a record could be in it, which on a young medium is true for few.
pub(super) fn read_commit_cells<M: Media>(source: &mut PageSource<'_, M>, now: &mut Nanos) -> FoundRecords {
    let traits = source.media.traits();
    let mut found = FoundRecords::default();
    let mut again = Vec::new();
    let mut blank = BTreeSet::new();
    let all = (0..traits.cell_count()).map(CellNumber).collect();
    found.unreadable = read_cells(source, now, all, |cell, bytes| match record_of(&traits, cell, bytes) {
        Some(record) => found.records.push(record),
        None if is_zero(bytes) => drop(blank.insert(cell)),
        None => again.push(cell),
    });
    let newest = found.records.iter().map(|record| record.number).max().unwrap_or(0);
    let newest = newest.saturating_add(NUMBERS_AHEAD);
    let oldest = newest.saturating_sub(u64::from(traits.cell_count())).max(1);
    again.extend((oldest..=newest).map(|number| traits.cell_of(number)).filter(|cell| blank.remove(cell)));
    let lost = read_cells(source, now, again, |cell, bytes| match record_of(&traits, cell, bytes) {
        Some(record) => found.records.push(record),
        None if is_zero(bytes) => {}
        None => found.damaged.push(cell),
    });
    found.unreadable.extend(lost);
    found.unreadable.sort_unstable();
    found.damaged.sort_unstable();
    found.records.sort_unstable_by_key(|record| record.number);
    found
}

/// Returns the intact record of a cell.
fn record_of(traits: &MediaTraits, cell: CellNumber, bytes: &[u8]) -> Option<CommitRecord> {
    let record = CommitRecord::decode(bytes, traits.checksum_seed);
    record.filter(|record| traits.cell_of(record.number) == cell)
}

/// Reads cells and passes each to `each`, those whose reads fail again after each delay. Returns the cells that cannot be
/// read.
fn read_cells<M: Media>(
    source: &mut PageSource<'_, M>,
    now: &mut Nanos,
    cells: Vec<CellNumber>,
    mut each: impl FnMut(CellNumber, &[u8]),
) -> Vec<CellNumber> {
    let mut failed = read_once(source, now, cells, &mut each);
    for delay in READ_RETRY_DELAYS {
        let passing = |(_, error): &mut (CellNumber, MediaError)| error.may_pass();
        let again: Vec<_> = failed.extract_if(.., passing).map(|(cell, _)| cell).collect();
        if again.is_empty() || !source.failures.may_wait() {
            let left = again.into_iter();
            return left.chain(failed.into_iter().map(|(cell, _)| cell)).collect();
        }
        *now = source.media.wait_until(*now, now.after(delay));
        failed.extend(read_once(source, now, again, &mut each));
    }
    failed.into_iter().map(|(cell, _)| cell).collect()
}

/// Reads cells, several in flight, and passes each to `each`. Returns those whose reads failed.
fn read_once<M: Media>(
    source: &mut PageSource<'_, M>,
    now: &mut Nanos,
    cells: Vec<CellNumber>,
    each: &mut impl FnMut(CellNumber, &[u8]),
) -> Vec<(CellNumber, MediaError)> {
    let depth = source.media.traits().queue_max.clamp(1, RECOVERY_FRAMES);
    let (mut failed, mut done) = (Vec::new(), Vec::new());
    let (mut waiting, mut in_flight) = (VecDeque::from(cells), 0);
    while in_flight > 0 || !waiting.is_empty() {
        while in_flight < depth
            && let Some(cell) = waiting.front().copied()
        {
            // Recovery must go on even if the medium did not return its frames.
            let last_resort = || (in_flight == 0).then(MediaFrame::zeroed);
            let Some(frame) = source.frames.take().or_else(last_resort) else { break };
            let token = MediaToken(u64::from(cell.0));
            match source.media.submit(token, MediaOp::ReadCell { cell, frame }, *now) {
                Ok(()) => {
                    waiting.pop_front();
                    in_flight += 1;
                }
                Err(RefusedOp { op: MediaOp::ReadCell { frame, .. }, reason: RefusalReason::QueueFull }) => {
                    source.frames.put_back(frame);
                    break;
                }
                Err(RefusedOp { op, reason }) => unreachable!("the medium refused {op:?}: {reason:?}"),
            }
        }
        source.media.poll(*now, &mut done);
        if done.is_empty() {
            *now = source.media.wait(*now);
            source.media.poll(*now, &mut done);
        }
        for MediaCompletion { token, frame, result } in done.drain(..) {
            let cell = CellNumber(u16::try_from(token.0).expect("the token of a cell is its number"));
            in_flight -= 1;
            match (result, frame) {
                (Ok(_), Some(frame)) => {
                    each(cell, &frame[..CELL_BYTES]);
                    source.frames.put_back(frame);
                }
                (Err(error), frame) => {
                    failed.push((cell, error));
                    frame.into_iter().for_each(|frame| source.frames.put_back(frame));
                }
                (Ok(_), None) => unreachable!("the medium kept the frame of a read of {cell:?}"),
            }
        }
    }
    failed
}
