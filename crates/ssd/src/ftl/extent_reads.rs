//! Reads of values that lie in extents: in runs of pages past the page cache, each page by its own proof.
//!
//! Input: a record with extents, and a range of its value. Output: the bytes in a sink; or the runs that must be read first.
//! Invariant: a byte is returned only from an intact page of the life of its block that the record names, or from the rest of
//! the value in an intact record.

use super::{Ftl, RecordPieces, StallReason};
use crate::command::ReadCaching;
use crate::log::extent_list::Extent;
use crate::log::extent_reads::{EndedRun, ExtentRun, ReadRun};
use crate::log::flash_log::EXTENT_JOB_PAGES;
use crate::log::record::{HEADER_BYTES, RecordAddress, RecordHeader};
use crate::media::Media;
use crate::media::geometry::{BLOCK_DATA_BYTES, BlockId, PAGE_DATA_BYTES, PAGE_SPARE_BYTES, PageAddress};
use crate::mutant::{Mutant, mutant};
use headwater_dma::mover::MoveMemory;
use headwater_host::copy::prefetch;
use headwater_host::width::narrow;
use std::ops::Range;

/// Bytes prefetched of the next page while one is passed on.
const PREFETCH_BYTES: usize = 512;

/// The result of reading a range of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeRead {
    /// Its bytes were passed on.
    Done,
    /// A page or the record does not prove what was written.
    Damaged,
}

/// The place of a page of an extent in the memory of the device.
#[derive(Clone, Copy, Debug)]
pub(super) enum ExtentPage {
    /// In a run that was read for the caller, by the numbers of the run and of the page in it.
    InRun(usize, u8),
    /// In device DRAM, or shown by the medium.
    InMemory,
    /// Its read in a run came to nothing.
    Failed,
    /// It was not read yet.
    Missing,
}

impl<M: Media> Ftl<M> {
    /// Copies a range of a value's bytes, which lies within the value and has at most
    /// [`range_bytes_max`](Self::range_bytes_max) of them, to a sink, from offset `to` on. A call that stalls may have copied
    /// some: the caller drops them, unless it stalls on [moves](StallReason::Moves), which name what they copy.
    pub(crate) fn read_range(
        &mut self,
        (address, header): (RecordAddress, &RecordHeader),
        range: Range<usize>,
        (sink, mut to): (&mut MoveMemory, usize),
        caching: ReadCaching,
    ) -> Result<RangeRead, StallReason> {
        let in_extents = range.start..range.end.min(header.extent_bytes());
        let runs = if in_extents.is_empty() {
            Vec::new()
        } else {
            match self.runs_of(address, header, &in_extents)? {
                Some(runs) => runs,
                None => return Ok(RangeRead::Damaged),
            }
        };
        let extent_bytes = header.extent_bytes();
        let rest = range.start.max(extent_bytes)..range.end.max(extent_bytes);
        let skip =
            HEADER_BYTES + usize::from(header.key_bytes) + header.list_bytes() + rest.start - extent_bytes;
        let missing = RecordPieces::new(self, address, skip, rest.len()).missing();
        if !missing.is_empty() {
            return Err(self.stall_for(missing));
        }
        self.check_runs(&runs)?;
        // A job of a channel has the frames until it ends, and returns them without the numbers of their pages.
        let copied = if self.flash.has_channels() && caching == ReadCaching::ByLength {
            self.start_copies(&runs, &in_extents, (sink, to))?
        } else {
            self.copy_runs(&runs, &in_extents, (sink, to))?
        };
        if copied == RangeRead::Damaged {
            return Ok(RangeRead::Damaged);
        }
        to += in_extents.len();
        let mut left = rest.len();
        for piece in RecordPieces::new(self, address, skip, rest.len()) {
            let piece = piece.map_err(|page| self.stall_for(vec![page]))?;
            left -= piece.len();
            sink.put(to, piece);
            to += piece.len();
        }
        Ok(if left == 0 { RangeRead::Done } else { RangeRead::Damaged })
    }

    /// Copies the pages of runs to a sink in this call, each few of them when they are proven.
    fn copy_runs(
        &mut self,
        runs: &[ExtentRun],
        range: &Range<usize>,
        (sink, mut to): (&mut MoveMemory, usize),
    ) -> Result<RangeRead, StallReason> {
        let mut at = range.start;
        for run in runs {
            let mut nth = 0;
            while nth < run.pages {
                let from = at % PAGE_DATA_BYTES;
                let whole = if from == 0 { (range.end - at) / PAGE_DATA_BYTES } else { 0 };
                let copied = self.copy_with_proof((run, nth), whole, (sink, to));
                if copied > 0 {
                    let bytes = usize::from(copied) * PAGE_DATA_BYTES;
                    (at, to) = (at + bytes, to + bytes);
                    nth += copied;
                    continue;
                }
                let Some((pages, place)) = self.prove_pages(run, nth)? else {
                    return Ok(RangeRead::Damaged);
                };
                let end = (usize::from(pages) * PAGE_DATA_BYTES).min(from + range.end - at);
                self.copy_pages((run.page(nth), place, pages), from..end, (sink, to));
                (at, to) = (at + end - from, to + end - from);
                nth += pages;
            }
        }
        Ok(RangeRead::Done)
    }

    /// Copies the next whole pages of a run that lie together in memory to the end of a vector, at most `most` of them, and proves
    /// them by the checksums of what was copied: one pass over their bytes. Returns how many are proven. It is 0 if the next page
    /// needs another way: it is in no run, does not prove itself, or goes to client memory, which receives only proven bytes.
    fn copy_with_proof(
        &mut self,
        (run, nth): (&ExtentRun, u8),
        most: usize,
        (sink, to): (&mut MoveMemory, usize),
    ) -> u8 {
        let is_end_of_vector = matches!(&*sink, MoveMemory::Vec(bytes) if bytes.len() == to);
        let ExtentPage::InRun(at, in_run) = self.place_of(run.extent, run.page(nth)) else { return 0 };
        if !is_end_of_vector {
            return 0;
        }
        let most = most.min(EXTENT_JOB_PAGES).min(usize::from(run.pages - nth));
        let mut sums = [0; EXTENT_JOB_PAGES];
        let mut pages = 0;
        for sum in sums.iter_mut().take(most) {
            let Some(bytes) = self.read_runs[at].page(in_run + pages) else { break };
            prefetch(&bytes[..PREFETCH_BYTES]);
            let page = run.page(nth + pages);
            let Some(expected) = self.proof().data_checksum(bytes, page, run.extent.order) else { break };
            *sum = expected;
            pages += 1;
        }
        if pages == 0 {
            return 0;
        }
        let wanted = (in_run..in_run + pages, &sums[..]);
        let proven = self.flash.copy_pages_with_proof(&mut self.read_runs[at], wanted, (sink, to));
        self.read_runs[at].mark_proven(in_run..in_run + proven);
        proven
    }

    /// Proves the next pages of a run that lie together in memory, as many as one job of the mover copies. Returns their number,
    /// and the place of the first; `None` if it is damaged.
    pub(super) fn prove_pages(
        &mut self,
        run: &ExtentRun,
        nth: u8,
    ) -> Result<Option<(u8, ExtentPage)>, StallReason> {
        let page = run.page(nth);
        let place = self.place_of(run.extent, page);
        match place {
            ExtentPage::InRun(at, in_run) => {
                let most = (run.pages - nth).min(narrow(EXTENT_JOB_PAGES));
                let mut pages = 0;
                while let Some(bytes) = self.read_runs[at].page(in_run + pages).filter(|_| pages < most) {
                    if let Some(next) = self.read_runs[at].page(in_run + pages + 1) {
                        // The processor's own prefetch ends with the page.
                        prefetch(&next[..PREFETCH_BYTES]);
                        prefetch(&next[PAGE_DATA_BYTES..PAGE_DATA_BYTES + PAGE_SPARE_BYTES]);
                    }
                    let is_proven = self.proof().holds(bytes, run.page(nth + pages), run.extent.order);
                    if !is_proven && !mutant(Mutant::ExtentPageNotProven) {
                        break;
                    }
                    pages += 1;
                }
                if pages > 0 {
                    self.read_runs[at].mark_proven(in_run..in_run + pages);
                    return Ok(Some((pages, place)));
                }
                // It may have been another page: it is read once more, by itself.
                self.flash.give_up_page(&mut self.read_runs[at], in_run);
                Err(self.stall_for(vec![page]))
            }
            ExtentPage::InMemory => {
                let is_proven = self.page(page).is_some_and(|bytes| self.is_proven_extent(bytes, page));
                Ok(is_proven.then_some((1, place)))
            }
            ExtentPage::Failed | ExtentPage::Missing => Err(self.stall_for(vec![page])),
        }
    }

    /// Copies a part of the bytes of proven pages to a sink.
    fn copy_pages(
        &mut self,
        (first, place, pages): (PageAddress, ExtentPage, u8),
        part: Range<usize>,
        (sink, to): (&mut MoveMemory, usize),
    ) {
        if let ExtentPage::InRun(at, in_run) = place {
            let last = part.end - usize::from(pages - 1) * PAGE_DATA_BYTES;
            let range = (in_run..in_run + pages, part.start, last);
            self.flash.copy_run_pages(&mut self.read_runs[at], range, (sink, to));
        } else {
            let bytes = self.page(first).expect("a proven page is in memory");
            sink.put(to, &bytes[part]);
        }
    }

    fn place_of(&self, extent: Extent, page: PageAddress) -> ExtentPage {
        let in_runs = (0..).zip(&self.read_runs);
        let found =
            in_runs.filter_map(|(at, read)| Some((at, read.run.nth(extent, page.page)?, read))).next();
        match found {
            Some((at, nth, read)) if read.page(nth).is_some() => ExtentPage::InRun(at, nth),
            _ if self.page(page).is_some() => ExtentPage::InMemory,
            Some(_) => ExtentPage::Failed,
            None => ExtentPage::Missing,
        }
    }

    /// Checks that every page of these runs is in memory.
    fn check_runs(&self, runs: &[ExtentRun]) -> Result<(), StallReason> {
        let (mut missing, mut alone) = (Vec::new(), Vec::new());
        for (run, nth) in runs.iter().flat_map(|run| (0..run.pages).map(move |nth| (run, nth))) {
            let page = run.page(nth);
            match self.place_of(run.extent, page) {
                ExtentPage::InRun(..) | ExtentPage::InMemory => {}
                ExtentPage::Failed => alone.push(page),
                ExtentPage::Missing => missing.push(page),
            }
        }
        if !missing.is_empty() && alone.is_empty() && !self.flash.traits().addressable {
            // Pages that an earlier reader kept may leave while the missing ones are read. All are read, so that one round is enough.
            return Err(StallReason::Runs(runs.to_vec()));
        }
        alone.append(&mut missing);
        if alone.is_empty() { Ok(()) } else { Err(self.stall_for(alone)) }
    }

    /// Returns the runs of extents that hold a range of a value, one for each block; `None` if one of the blocks is not this
    /// value's any more.
    fn runs_of(
        &self,
        address: RecordAddress,
        header: &RecordHeader,
        range: &Range<usize>,
    ) -> Result<Option<Vec<ExtentRun>>, StallReason> {
        let Some(extents) = self.extents_of(address, header)? else { return Ok(None) };
        let blocks = range.start / BLOCK_DATA_BYTES..range.end.div_ceil(BLOCK_DATA_BYTES);
        let first_block = blocks.start;
        let own = &extents[blocks];
        if !own.iter().all(|extent| self.is_own_extent(*extent)) {
            return Ok(None);
        }
        let run_of = |(nth, extent): (usize, &Extent)| {
            let start = nth * BLOCK_DATA_BYTES;
            let from = range.start.saturating_sub(start) / PAGE_DATA_BYTES;
            let to = (range.end - start).min(BLOCK_DATA_BYTES).div_ceil(PAGE_DATA_BYTES);
            ExtentRun { extent: *extent, first: narrow(from), pages: narrow(to - from) }
        };
        Ok(Some((first_block..).zip(own).map(run_of).collect()))
    }

    /// Returns the most bytes of a value that one call may read: device DRAM has room for their pages.
    pub(crate) fn range_bytes_max(&self) -> usize {
        (self.flash.run_pages_max() - 1) * PAGE_DATA_BYTES
    }

    /// Queues the reads of runs, for an operation.
    pub(crate) fn request_runs(&mut self, operation: usize, runs: Vec<ExtentRun>) {
        self.flash.request_runs(operation, runs);
    }

    /// Takes the runs whose reads have ended.
    pub(crate) fn take_ended_runs(&mut self) -> Vec<EndedRun> {
        self.flash.take_ended_runs()
    }

    /// Takes a run back that its operation has used or does not need. With [`ReadCaching::Keep`] its proven pages stay in device
    /// DRAM.
    pub(crate) fn put_back_run(&mut self, run: ReadRun, caching: ReadCaching) {
        match caching {
            ReadCaching::ByLength => self.flash.put_back_run(run),
            ReadCaching::Keep => self.flash.keep_run(run),
        }
    }

    /// Exchanges the runs of the present caller. During a call they are here.
    #[inline]
    pub(crate) fn swap_read_runs(&mut self, runs: &mut Vec<ReadRun>) {
        std::mem::swap(&mut self.read_runs, runs);
    }

    /// Returns true if the block of an extent still has the life that its record names.
    pub(super) fn is_own_extent(&self, extent: Extent) -> bool {
        let entry = self.blocks().get_checked(extent.block);
        entry.is_some_and(|entry| entry.is_extent() && entry.order == extent.order)
    }

    /// Returns true if a page is the one that was programmed. A page in device DRAM was proven when it was read; one that the
    /// medium shows is not.
    fn is_proven_extent(&self, bytes: &[u8], page: PageAddress) -> bool {
        let order = self.blocks().get(page.block).order;
        !self.flash.traits().addressable
            || self.proof().holds(bytes, page, order)
            || mutant(Mutant::ReadChecksumIgnored)
    }

    /// Returns the stall of a caller that needs these pages, none of which is in memory.
    pub(super) fn stall_for(&self, missing: Vec<PageAddress>) -> StallReason {
        match missing.iter().find(|page| self.failed_pages.contains(page)) {
            Some(page) => StallReason::Unreadable(*page),
            None => StallReason::Pages(missing),
        }
    }

    /// Returns the blocks of a value's extents, for a reader that keeps them; none if its record names none.
    pub(super) fn extent_blocks_of(
        &self,
        address: RecordAddress,
        header: &RecordHeader,
    ) -> Result<Vec<BlockId>, StallReason> {
        if header.extents == 0 {
            return Ok(Vec::new());
        }
        let extents = self.extents_of(address, header)?.unwrap_or_default();
        let own = extents.into_iter().filter(|extent| self.is_own_extent(*extent));
        Ok(own.map(|extent| extent.block).collect())
    }
}
