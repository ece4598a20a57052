//! Moves of values by the channels of the mover, and the operations that wait for them.
//!
//! Input: the pages of a range that its caller found in runs. Output: copies of all of them, or the range that jobs in flight
//! copy. Invariant: a page is proven before its job is described, and its frame belongs to the job from then on, so that what
//! was proven is what is copied. A call that started a copy ends with its stall, whatever the next page is.

use super::extent_reads::{ExtentPage, RangeRead};
use super::{Ftl, StallReason};
use crate::log::extent_reads::ExtentRun;
use crate::log::flash_log::{EndedCopy, add_run_pages};
use crate::media::Media;
use crate::media::geometry::{PAGE_DATA_BYTES, PageAddress};
use headwater_dma::mover::{MoveJob, MoveMemory, Mover};
use headwater_host::clock::Nanos;
use std::ops::Range;
use std::os::fd::BorrowedFd;

impl<M: Media> Ftl<M> {
    /// Sets the mover of the bytes of values in extents.
    ///
    /// # Panics
    /// Jobs of the present mover are in flight.
    pub(crate) fn set_mover(&mut self, mover: Mover) {
        self.flash.set_mover(mover);
    }

    /// Returns true if jobs of the mover are in flight.
    pub(crate) fn has_moves(&self) -> bool {
        self.flash.has_moves()
    }

    /// Returns the time at which jobs in flight must be looked for, unless a descriptor says their ends.
    pub(crate) fn moves_due(&self, now: Nanos) -> Option<Nanos> {
        self.flash.moves_due(now)
    }

    /// Returns the descriptors that say the ends of jobs.
    pub(crate) fn move_descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.flash.move_descriptors()
    }

    /// Prepares a sleep on the descriptors of the mover. Returns false if a job in flight has ended or must be polled.
    pub(crate) fn prepare_sleep(&mut self) -> bool {
        self.flash.prepare_sleep()
    }

    /// Names the operation that waits for the copies that its call started. Returns their number.
    pub(crate) fn claim_copies(&mut self, operation: usize) -> usize {
        self.flash.claim_copies(operation)
    }

    /// Takes the copies that have ended.
    pub(crate) fn take_ended_copies(&mut self) -> Vec<EndedCopy> {
        self.flash.take_ended_copies()
    }

    /// Copies the pages of runs, of which every page is in memory, as far as it proves them, by jobs that it starts: one for each
    /// few pages where the sink is client memory, and one for all of them where it is a vector, which only one job can own.
    /// `range` is that of the value in the runs, and `to` the offset of its first byte in the sink. Stalls with the range that is
    /// copied when the jobs in flight have ended; the vector returns with its job.
    pub(super) fn start_copies(
        &mut self,
        runs: &[ExtentRun],
        range: &Range<usize>,
        (sink, to): (&mut MoveMemory, usize),
    ) -> Result<RangeRead, StallReason> {
        let mut copy = RangeCopy { at: range.start, to, whole: None, in_flight: false };
        'runs: for run in runs {
            let mut nth = 0;
            while nth < run.pages {
                let (pages, place) = match self.prove_pages(run, nth) {
                    Ok(Some(proven)) => proven,
                    _ if copy.at > range.start => break 'runs,
                    Ok(None) => return Ok(RangeRead::Damaged),
                    Err(stall) => return Err(stall),
                };
                if copy.whole.is_some() && !matches!(place, ExtentPage::InRun(..)) {
                    // The job has the vector.
                    break 'runs;
                }
                self.copy_group(&mut copy, (run.page(nth), place, pages), range.end, sink);
                nth += pages;
            }
        }
        if let Some(job) = copy.whole {
            match self.flash.start_copy(job) {
                Some(ended) => *sink = ended,
                None => copy.in_flight = true,
            }
        }
        if copy.in_flight || copy.at < range.end {
            return Err(StallReason::Moves(range.start..copy.at));
        }
        Ok(RangeRead::Done)
    }

    /// Copies the next proven pages: starts their job, or adds them to the one that is started when all are there.
    fn copy_group(
        &mut self,
        copy: &mut RangeCopy,
        (first, place, pages): (PageAddress, ExtentPage, u8),
        range_end: usize,
        sink: &mut MoveMemory,
    ) {
        let from = copy.at % PAGE_DATA_BYTES;
        let end = (usize::from(pages) * PAGE_DATA_BYTES).min(from + range_end - copy.at);
        match (place, &*sink) {
            (ExtentPage::InRun(read, in_run), MoveMemory::Client(segments)) => {
                let mut job = self.flash.begin_copy(segments.clone().into());
                let part = (in_run..in_run + pages, from, end - usize::from(pages - 1) * PAGE_DATA_BYTES);
                add_run_pages(&mut job, &mut self.read_runs[read], part, copy.to);
                copy.in_flight |= self.flash.start_copy(job).is_none();
            }
            (ExtentPage::InRun(read, in_run), _) => {
                let job = copy.whole.get_or_insert_with(|| self.flash.begin_copy(std::mem::take(sink)));
                let part = (in_run..in_run + pages, from, end - usize::from(pages - 1) * PAGE_DATA_BYTES);
                add_run_pages(job, &mut self.read_runs[read], part, copy.to);
            }
            _ => {
                let bytes = self.page(first).expect("a proven page is in memory");
                sink.put(copy.to, &bytes[from..end]);
            }
        }
        (copy.at, copy.to) = (copy.at + end - from, copy.to + end - from);
    }
}

/// The copy of a range, as far as it is described.
struct RangeCopy {
    /// The next byte, in the value and in the sink.
    at: usize,
    to: usize,
    /// The job with the vector.
    whole: Option<MoveJob>,
    in_flight: bool,
}
