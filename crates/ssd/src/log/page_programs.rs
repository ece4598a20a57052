//! The programs of filled pages: those that wait for the medium, and those in flight.
//!
//! Input: filled pages, in order, and completions of the medium. Output: programs for the medium, in the same order.
//! Invariant: a page gets its checksums when it leaves, because the header of its last record is complete only then. The data
//! of a page whose checksum was kept while it was filled is not read again for it.

use super::page::{PAGE_CRC, PageKind, PageSpare};
use super::page_cache::PageCache;
use super::page_sum::PageSum;
use crate::media::geometry::{PAGE_DATA_BYTES, PAGE_SPARE_BYTES, PageAddress};
use crate::media::token::MediaPurpose;
use crate::media::{Media, MediaOp, MediaTraits, RefusalReason, RefusedOp};
use headwater_dma::frame::MediaFrame;
use headwater_host::clock::Nanos;
use headwater_host::copy::{StreamingCopies, crc32c};
use headwater_host::width::to_usize;
use std::collections::{BTreeMap, VecDeque};

/// Maximum of pages submitted at once: what a long record filled leaves in parts.
const PAGES_AT_ONCE: usize = 128;

/// Data and spare; the bytes of a frame behind them belong to the medium.
const PAGE_BYTES: usize = PAGE_DATA_BYTES + PAGE_SPARE_BYTES;

#[derive(Debug)]
struct FilledPage {
    id: u64,
    page: PageAddress,
    frame: MediaFrame,
    kind: PageKind,
    sum: PageSum,
    /// True if the page has its checksums: the medium did not accept it yet, but nothing changes it any more.
    is_sealed: bool,
}

/// Consecutive pages of one block: the id and the address of the first, and the number of pages.
#[derive(Clone, Copy, Debug)]
struct PageRun {
    id: u64,
    first: PageAddress,
    pages: u64,
}

impl PageRun {
    /// Returns the id of a page, if the run has it.
    #[inline]
    fn id_of(&self, page: PageAddress) -> Option<u64> {
        let behind = u64::from(page.page.checked_sub(self.first.page)?);
        (page.block == self.first.block && behind < self.pages).then_some(self.id + behind)
    }
}

/// The programs of a log.
#[derive(Debug, Default)]
pub(super) struct PagePrograms {
    filled: VecDeque<FilledPage>,
    /// The runs of consecutive pages in `filled`, oldest first; the first ones may be gone from it.
    runs: VecDeque<PageRun>,
    in_flight: BTreeMap<u64, PageAddress>,
    next: u64,
    programmed_pages: u64,
}

impl PagePrograms {
    /// Returns the id that the next filled page gets.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Returns the number of filled pages that the medium has not accepted yet.
    pub(super) fn filled(&self) -> usize {
        self.filled.len()
    }

    /// Returns the pages that the medium accepted so far.
    pub(super) fn programmed_pages(&self) -> u64 {
        self.programmed_pages
    }

    /// Adds a filled page, with the checksum of its data.
    pub(super) fn push(&mut self, page: PageAddress, frame: MediaFrame, kind: PageKind, sum: PageSum) {
        let oldest = self.filled.front().map_or(self.next, |filled| filled.id);
        while self.runs.front().is_some_and(|run| run.id + run.pages <= oldest) {
            self.runs.pop_front();
        }
        match self.runs.back_mut() {
            Some(run)
                if run.first.block == page.block
                    && u64::from(run.first.page) + run.pages == u64::from(page.page) =>
            {
                run.pages += 1;
            }
            _ => self.runs.push_back(PageRun { id: self.next, first: page, pages: 1 }),
        }
        self.filled.push_back(FilledPage { id: self.next, page, frame, kind, sum, is_sealed: false });
        self.next += 1;
    }

    /// Returns the filled page at a position of the queue and its checksum, if it is this page.
    pub(super) fn filled_page(
        &mut self,
        at: usize,
        page: PageAddress,
    ) -> Option<(&mut MediaFrame, &mut PageSum)> {
        let filled = self.filled.get_mut(at).filter(|filled| filled.page == page)?;
        Some((&mut filled.frame, &mut filled.sum))
    }

    /// Submits filled pages to the medium, in order, until it rejects one or [`PAGES_AT_ONCE`] are submitted. Returns true
    /// if any was submitted.
    ///
    /// # Panics
    /// The medium reports a NAND rule: the log broke its invariant.
    pub(super) fn submit<M: Media>(
        &mut self,
        traits: MediaTraits,
        media: &mut M,
        dram: &mut PageCache,
        now: Nanos,
    ) -> bool {
        let mut moved = false;
        let mut streaming = StreamingCopies::default();
        for _ in 0..PAGES_AT_ONCE {
            let Some(FilledPage { id, page, mut frame, kind, sum, is_sealed }) = self.filled.pop_front()
            else {
                break;
            };
            let seed = traits.checksum_seed;
            if !is_sealed {
                match sum.known() {
                    Some(crc) => {
                        // Not in release builds: that the page is not read again is what the checksum is kept for.
                        debug_assert_eq!(crc, crc32c(0, &frame[..PAGE_DATA_BYTES]), "checksum of {page}");
                        PageSpare::set_known_checksum(&mut frame, PAGE_CRC.join(seed, crc), seed);
                    }
                    None => PageSpare::set_checksums(&mut frame, seed),
                }
            }
            let is_sealed = true;
            // Only the collector reads a guard page, long after this.
            if !traits.addressable && kind != PageKind::Guard && dram.peek(page).is_none() {
                let Some(mut shown) = dram.take_frame() else {
                    self.filled.push_front(FilledPage { id, page, frame, kind, sum, is_sealed });
                    break;
                };
                // A frame from the cache is cold: a streaming copy does not first read the lines that it overwrites.
                streaming.copy(&mut shown[..PAGE_BYTES], &frame[..PAGE_BYTES]);
                dram.insert(page, shown);
            }
            // It does nothing where the medium shows its pages.
            dram.pin(page);
            match media.submit(MediaPurpose::Program(id).encode(), MediaOp::Program { page, frame }, now) {
                Ok(()) => {
                    self.in_flight.insert(id, page);
                    self.programmed_pages += 1;
                    moved = true;
                }
                Err(RefusedOp { op, reason }) => {
                    let MediaOp::Program { frame, .. } = op else {
                        unreachable!("the medium returned another operation")
                    };
                    dram.unpin(page);
                    self.filled.push_front(FilledPage { id, page, frame, kind, sum, is_sealed });
                    assert!(
                        reason == RefusalReason::QueueFull,
                        "the log broke a NAND rule at {page}: {reason:?}"
                    );
                    break;
                }
            }
        }
        moved
    }

    /// Completes a program: unpins its page, returns its frame, and returns the page.
    ///
    /// # Panics
    /// No program with this id is in flight.
    pub(super) fn complete(
        &mut self,
        id: u64,
        frame: Option<MediaFrame>,
        dram: &mut PageCache,
    ) -> PageAddress {
        let page = self.in_flight.remove(&id);
        let page =
            page.unwrap_or_else(|| panic!("the medium completed program {id}, which is not in flight"));
        dram.unpin(page);
        if let Some(frame) = frame {
            dram.return_frame(frame);
        }
        page
    }

    /// Returns true if every program with an id below `barrier` has completed.
    pub(super) fn is_completed_below(&self, barrier: u64) -> bool {
        let waiting = self.filled.front().map(|filled| filled.id);
        let flying = self.in_flight.keys().next().copied();
        waiting.into_iter().chain(flying).all(|id| id >= barrier)
    }

    /// Returns the bytes of a filled page that the medium has not accepted yet.
    #[inline]
    pub(super) fn peek(&self, page: PageAddress) -> Option<&[u8]> {
        let oldest = self.filled.front()?.id;
        // Filled pages are in one or two runs, except for a record that spans more blocks.
        let id = self.runs.iter().find_map(|run| run.id_of(page))?;
        let filled = self.filled.get(to_usize(id.checked_sub(oldest)?))?;
        assert!(filled.page == page, "the queue of programs has {} in the place of {page}", filled.page);
        Some(&*filled.frame)
    }
}
