//! The reads of extents: runs of pages that lie behind each other, each into frames of the operation that asked for it.
//!
//! Input: runs and the operation that waits for them, and the completions of reads. Output: each run once, with the frames of
//! the pages that the medium read. Invariant: the frames of all runs, asked for and not yet returned, are at most a share of
//! device DRAM, and an operation gets those of all its runs at once, so that none waits for another. No page is proven here:
//! who copies it proves it, while its bytes are close to the processor. A page that was not read, or does not prove itself, is
//! read again by [`PageReads`](super::page_reads::PageReads), which decides if it is damaged.

use super::blocks::{BlockState, BlockTable};
use super::extent_list::Extent;
use super::page_cache::PageCache;
use crate::media::geometry::{PAGES_PER_BLOCK, PageAddress};
use crate::media::token::MediaPurpose;
use crate::media::{Media, MediaCompletion, MediaOp, PageState, RefusedOp};
use crate::mutant::{Mutant, mutant};
use headwater_dma::frame::MediaFrame;
use headwater_host::clock::Nanos;
use std::collections::VecDeque;
use std::ops::Range;

/// The part of device DRAM that runs may take, and the fewest pages that they may: those of an extent and one more, which bytes
/// that do not begin with a page lie in.
const RUNS_SHARE: usize = 4;
const RUN_PAGES_MIN: usize = PAGES_PER_BLOCK + 1;

/// A bit for each page of a block.
const _: () = assert!(PAGES_PER_BLOCK <= u64::BITS as usize);

/// Pages of an extent that lie behind each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExtentRun {
    pub(crate) extent: Extent,
    /// The first page, in the block.
    pub(crate) first: u8,
    pub(crate) pages: u8,
}

impl ExtentRun {
    /// Returns a page by its number in the run.
    pub(crate) const fn page(&self, nth: u8) -> PageAddress {
        PageAddress::new(self.extent.block, self.first + nth)
    }

    /// Returns the number of a page in the run; `None` if it is another page, or of another life of the block.
    pub(crate) fn nth(&self, extent: Extent, page: u8) -> Option<u8> {
        let nth = page.checked_sub(self.first)?;
        (extent == self.extent && nth < self.pages).then_some(nth)
    }
}

/// A run whose reads have ended.
#[derive(Debug)]
pub(crate) struct ReadRun {
    pub(crate) run: ExtentRun,
    /// The pages that were read.
    frames: Vec<Option<MediaFrame>>,
    /// The pages that were proven since, a bit for each.
    proven: u64,
}

impl ReadRun {
    /// Returns the bytes of a page (data, then spare); `None` if they were not read or were given up, or are not in the run.
    #[inline]
    pub(crate) fn page(&self, nth: u8) -> Option<&[u8]> {
        self.frames.get(usize::from(nth))?.as_deref()
    }

    /// Notes that these pages were proven.
    pub(crate) fn mark_proven(&mut self, pages: Range<u8>) {
        for nth in pages {
            self.proven |= 1_u64 << nth;
        }
    }

    /// Takes a page that was read, for a copy; [`put_frame`](Self::put_frame) puts it back, or
    /// [`ExtentReads::return_frame`] when the copy has ended.
    pub(crate) fn take_frame(&mut self, nth: u8) -> Option<MediaFrame> {
        self.frames.get_mut(usize::from(nth))?.take()
    }

    /// Puts a page back that was taken.
    pub(crate) fn put_frame(&mut self, nth: u8, frame: MediaFrame) {
        let before = self.frames[usize::from(nth)].replace(frame);
        assert!(before.is_none(), "two frames for one page of a run");
    }
}

/// The end of the reads of a run.
#[derive(Debug)]
pub(crate) struct EndedRun {
    /// The operation that waits for it, by its slab index.
    pub(crate) operation: usize,
    pub(crate) run: ReadRun,
}

#[derive(Debug)]
struct RunInFlight {
    operation: usize,
    read: ReadRun,
    /// Pages that the medium accepted, and that it has not completed or not accepted.
    submitted: u8,
    left: u8,
}

#[derive(Debug)]
struct RunRequest {
    operation: usize,
    runs: Vec<ExtentRun>,
    pages: usize,
}

/// The runs that are waited for.
#[derive(Debug, Default)]
pub(super) struct ExtentReads {
    /// Requests that wait for frames, in order.
    waiting: VecDeque<RunRequest>,
    slots: Vec<Option<RunInFlight>>,
    free: Vec<usize>,
    /// Runs of which pages are not submitted, in order.
    queue: VecDeque<usize>,
    ended: Vec<EndedRun>,
    /// Frames promised to runs in flight, or in runs that were not returned.
    frames: usize,
    /// Vectors of returned runs.
    spare: Vec<Vec<Option<MediaFrame>>>,
}

impl ExtentReads {
    /// Returns the most pages that an operation may ask for at once.
    pub(super) fn pages_max(dram: &PageCache) -> usize {
        (dram.frames_max() / RUNS_SHARE).max(RUN_PAGES_MIN)
    }

    /// Queues the reads of an operation's runs.
    ///
    /// # Panics
    /// They have more pages than device DRAM ever has for them.
    pub(super) fn request(&mut self, operation: usize, runs: Vec<ExtentRun>, dram: &PageCache) {
        let pages = runs.iter().map(|run| usize::from(run.pages)).sum();
        let most = Self::pages_max(dram);
        assert!(pages <= most, "an operation asks for {pages} pages of extents at once, of at most {most}");
        self.waiting.push_back(RunRequest { operation, runs, pages });
    }

    /// Submits reads to the medium while it accepts them and frames are available. Returns true if any was submitted.
    ///
    /// # Panics
    /// The medium rejects a read and returns another operation.
    pub(super) fn submit<M: Media>(&mut self, media: &mut M, dram: &mut PageCache, now: Nanos) -> bool {
        let most = Self::pages_max(dram);
        while let Some(request) = self.waiting.pop_front_if(|request| self.frames + request.pages <= most) {
            self.frames += request.pages;
            for run in request.runs {
                self.start(request.operation, run);
            }
        }
        let mut moved = false;
        while let Some(&slot) = self.queue.front() {
            let flight = self.slots[slot].as_mut().expect("a queued run is in flight");
            while flight.submitted < flight.read.run.pages {
                let nth = flight.submitted;
                let page = flight.read.run.page(nth);
                let Some(frame) = dram.take_frame() else { return moved };
                let token = MediaPurpose::ExtentRead { slot: slot as u64, nth }.encode();
                match media.submit(token, MediaOp::Read { page, frame }, now) {
                    Ok(()) => flight.submitted += 1,
                    Err(RefusedOp { op: MediaOp::Read { frame, .. }, .. }) => {
                        dram.return_frame(frame);
                        return moved;
                    }
                    Err(RefusedOp { op, .. }) => {
                        unreachable!("the medium rejected a read of {page} and returned {op:?}")
                    }
                }
                moved = true;
            }
            self.queue.pop_front();
        }
        moved
    }

    fn start(&mut self, operation: usize, run: ExtentRun) {
        let mut frames = self.spare.pop().unwrap_or_default();
        frames.resize_with(usize::from(run.pages), || None);
        let read = ReadRun { run, frames, proven: 0 };
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(RunInFlight { operation, read, submitted: 0, left: run.pages });
        self.queue.push_back(slot);
    }

    /// Completes the read of a page. One that failed or found no page leaves its place empty.
    ///
    /// # Panics
    /// No read of the page was submitted.
    pub(super) fn complete(&mut self, slot: u64, nth: u8, done: MediaCompletion, dram: &mut PageCache) {
        let at = usize::try_from(slot).unwrap_or(usize::MAX);
        let flight = self.slots.get_mut(at).and_then(Option::as_mut).filter(|flight| nth < flight.submitted);
        let flight = flight
            .unwrap_or_else(|| panic!("the medium completed a read of run {slot} that was not submitted"));
        match (done.result, done.frame) {
            (Ok(PageState::Programmed), Some(frame)) => {
                flight.read.frames[usize::from(nth)] = Some(frame);
            }
            (_, frame) => {
                self.frames -= 1;
                frame.into_iter().for_each(|frame| dram.return_frame(frame));
            }
        }
        flight.left -= 1;
        if flight.left == 0
            && let Some(RunInFlight { operation, read, .. }) = self.slots[at].take()
        {
            self.free.push(at);
            self.ended.push(EndedRun { operation, run: read });
        }
    }

    /// Takes the runs that ended, in order.
    pub(super) fn take_ended(&mut self) -> Vec<EndedRun> {
        std::mem::take(&mut self.ended)
    }

    /// Takes a page out of a run, because it does not prove itself.
    pub(super) fn give_up_page(&mut self, run: &mut ReadRun, nth: u8, dram: &mut PageCache) {
        if let Some(frame) = run.frames[usize::from(nth)].take() {
            self.frames -= 1;
            dram.return_frame(frame);
        }
    }

    /// Takes a frame back that was taken out of a run.
    pub(super) fn return_frame(&mut self, frame: MediaFrame, dram: &mut PageCache) {
        self.frames -= 1;
        dram.return_frame(frame);
    }

    /// Takes the frames of a run back, the last one first: the next run gets them in the order of their addresses, so that its
    /// transfer has few ranges of memory.
    pub(super) fn put_back(&mut self, mut run: ReadRun, dram: &mut PageCache) {
        for frame in run.frames.drain(..).rev().flatten() {
            self.return_frame(frame, dram);
        }
        self.spare.push(run.frames);
    }

    /// Moves the proven pages of a run into the page cache, and takes the other frames back. A page whose block was erased or
    /// reopened since, or is being erased, is another one by now.
    pub(super) fn keep(&mut self, mut run: ReadRun, dram: &mut PageCache, blocks: &BlockTable) {
        let extent = run.run.extent;
        let block = blocks.get(extent.block);
        let is_same_life = block.order == extent.order && block.state != BlockState::Erasing
            || mutant(Mutant::KeptAcrossLives);
        for nth in 0..run.run.pages {
            let Some(frame) = run.take_frame(nth) else { continue };
            if is_same_life && run.proven >> nth & 1 == 1 {
                self.frames -= 1;
                dram.insert(run.run.page(nth), frame);
            } else {
                self.return_frame(frame, dram);
            }
        }
        run.frames.clear();
        self.spare.push(run.frames);
    }

    /// Returns true if no run is waited for.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.slots.len() == self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Sequence;
    use crate::log::blocks::BlockUse;
    use crate::media::geometry::{BlockId, FlashGeometry};
    use headwater_dma::pool::Pool;

    /// Keeps a run of two pages, of which the first is proven, after what happened to its block since it was read. Returns for
    /// each page if it is in device DRAM.
    fn kept_after(change: fn(&mut BlockTable, BlockId)) -> [bool; 2] {
        let geometry = FlashGeometry::with_blocks(1);
        let mut dram = PageCache::new(geometry, 4, Pool::of_process().expect("a process has a pool"));
        let mut blocks = BlockTable::new(geometry);
        let block = blocks.take_dirty().unwrap();
        blocks.complete_erase(block);
        assert_eq!(blocks.open(Sequence(1), BlockUse::Extent), Some(block));
        let run = ExtentRun { extent: Extent { block, order: blocks.get(block).order }, first: 3, pages: 2 };
        let frames = (0..run.pages).map(|_| dram.take_frame()).collect();
        let mut read = ReadRun { run, frames, proven: 0 };
        read.mark_proven(0..1);
        let mut reads = ExtentReads { frames: 2, ..ExtentReads::default() };
        change(&mut blocks, block);
        reads.keep(read, &mut dram, &blocks);
        assert_eq!(reads.frames, 0, "every frame was kept or returned");
        [0, 1].map(|nth| dram.peek(run.page(nth)).is_some())
    }

    fn begin_erase(blocks: &mut BlockTable, block: BlockId) {
        blocks.mark_evacuated(block);
        blocks.mark_erasing(block);
    }

    fn erase(blocks: &mut BlockTable, block: BlockId) {
        begin_erase(blocks, block);
        blocks.complete_erase(block);
    }

    fn reopen(blocks: &mut BlockTable, block: BlockId) {
        erase(blocks, block);
        assert_eq!(blocks.open(Sequence(2), BlockUse::Extent), Some(block));
    }

    /// The steps that end the life of a block, each with those before it.
    const ENDS: [fn(&mut BlockTable, BlockId); 3] = [begin_erase, erase, reopen];

    #[test]
    fn proven_pages_of_a_run_are_kept_while_their_block_has_the_same_life() {
        assert_eq!(kept_after(|_, _| {}), [true, false]);
        assert_eq!(kept_after(BlockTable::mark_evacuated), [true, false], "nothing was erased yet");
    }

    #[test]
    fn no_page_of_an_earlier_life_of_its_block_is_kept() {
        for (nth, end) in ENDS.into_iter().enumerate() {
            assert_eq!(kept_after(end), [false, false], "end {nth}");
        }
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn without_the_guard_each_end_of_a_life_would_keep_a_page() {
        crate::mutant::plant(Some(Mutant::KeptAcrossLives));
        let kept = ENDS.map(kept_after);
        crate::mutant::plant(None);
        assert_eq!(kept, [[true, false]; 3]);
    }
}
