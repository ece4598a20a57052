//! The programs of extents: pages of values that wait for the medium, and those in flight.
//!
//! Input: filled pages, each for a writer, and completions of the medium. Output: programs for the medium, in order, and the
//! pages of a writer that are not programmed yet. Invariant: a writer that has none left has every page on the medium, or the
//! medium failed.

use super::page_cache::PageCache;
use crate::media::geometry::PageAddress;
use crate::media::token::MediaPurpose;
use crate::media::{Media, MediaOp, RefusalReason, RefusedOp};
use headwater_dma::frame::MediaFrame;
use headwater_host::clock::Nanos;
use std::collections::{BTreeMap, VecDeque};

/// The number of a store that writes extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ExtentWriter(u64);

impl ExtentWriter {
    /// Returns the writer with this number.
    pub(crate) const fn of_number(number: u64) -> Self {
        Self(number)
    }
}

#[derive(Debug)]
struct WaitingPage {
    writer: ExtentWriter,
    page: PageAddress,
    frame: MediaFrame,
}

/// The programs of extents.
#[derive(Debug, Default)]
pub(super) struct ExtentWrites {
    waiting: VecDeque<WaitingPage>,
    /// The pages of each writer that are not programmed yet, of which it has any.
    pages: BTreeMap<ExtentWriter, usize>,
    total: usize,
    writer_next: u64,
    programmed_pages: u64,
}

impl ExtentWrites {
    /// Makes a writer.
    pub(super) fn begin(&mut self) -> ExtentWriter {
        self.writer_next += 1;
        ExtentWriter(self.writer_next)
    }

    /// Returns the pages of a writer that are not programmed yet.
    pub(super) fn pages_of(&self, writer: ExtentWriter) -> usize {
        self.pages.get(&writer).copied().unwrap_or(0)
    }

    /// Returns the pages of all writers that are not programmed yet.
    pub(super) fn pages(&self) -> usize {
        self.total
    }

    /// Returns the pages that the medium accepted so far.
    pub(super) fn programmed_pages(&self) -> u64 {
        self.programmed_pages
    }

    /// Adds a filled page with its checksums.
    pub(super) fn push(&mut self, writer: ExtentWriter, page: PageAddress, frame: MediaFrame) {
        *self.pages.entry(writer).or_insert(0) += 1;
        self.total += 1;
        self.waiting.push_back(WaitingPage { writer, page, frame });
    }

    /// Submits waiting pages to the medium, in order, until it rejects one. Returns true if any was submitted.
    ///
    /// # Panics
    /// The medium reports a NAND rule: an extent was opened twice, or filled out of order.
    pub(super) fn submit<M: Media>(&mut self, media: &mut M, now: Nanos) -> bool {
        let mut moved = false;
        while let Some(WaitingPage { writer, page, frame }) = self.waiting.pop_front() {
            let token = MediaPurpose::Extent(writer.0).encode();
            match media.submit(token, MediaOp::Program { page, frame }, now) {
                Ok(()) => {
                    self.programmed_pages += 1;
                    moved = true;
                }
                Err(RefusedOp { op: MediaOp::Program { frame, .. }, reason }) => {
                    assert!(
                        reason == RefusalReason::QueueFull,
                        "an extent broke a NAND rule at {page}: {reason:?}"
                    );
                    self.waiting.push_front(WaitingPage { writer, page, frame });
                    break;
                }
                Err(RefusedOp { op, .. }) => {
                    unreachable!("the medium rejected a program of {page} and returned {op:?}")
                }
            }
        }
        moved
    }

    /// Completes the program of a page, and returns its frame.
    ///
    /// # Panics
    /// The writer has no page in flight.
    pub(super) fn complete(&mut self, writer: ExtentWriter, frame: Option<MediaFrame>, dram: &mut PageCache) {
        let left = self.pages.get_mut(&writer);
        let left =
            left.unwrap_or_else(|| panic!("the medium completed a page of {writer:?}, which has none"));
        *left -= 1;
        self.total -= 1;
        if *left == 0 {
            self.pages.remove(&writer);
        }
        if let Some(frame) = frame {
            dram.return_frame(frame);
        }
    }
}
