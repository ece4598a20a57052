//! The pages that the collector reads for its victim: their pins, their failures, and when a failed read is repeated.
//!
//! Input: the ends of the collector's reads. Output: whether it may go on, and what it cannot read. Invariant: every pin
//! that the collector got is released when it ends with its victim, whatever becomes of the block.

use super::Ftl;
use crate::log::page_reads::ReadResult;
use crate::media::{Media, PageAddress};
use headwater_host::clock::Nanos;
use std::collections::{BTreeMap, BTreeSet};

/// The page reads of the collector.
#[derive(Debug, Default)]
pub(super) struct VictimPages {
    waits: bool,
    /// Reads that were requested and have not ended.
    in_flight: usize,
    /// Pages with a pin of the collector, one entry a pin.
    pinned: Vec<PageAddress>,
    /// Pages that could not be read, also when repeated.
    pub(super) failed: BTreeSet<PageAddress>,
    /// Failed reads of each page so far.
    attempts: BTreeMap<PageAddress, usize>,
    /// The time at which failed reads are repeated.
    retry_at: Option<Nanos>,
    /// Pages that recovery could not read and that need not be read.
    passed_over: BTreeSet<PageAddress>,
}

impl VictimPages {
    /// Sets the pages that need not be read.
    pub(super) fn pass_over(&mut self, pages: BTreeSet<PageAddress>) {
        self.passed_over = pages;
    }

    /// Returns true if the page cannot be read and need not be.
    pub(super) fn is_passed_over(&self, page: PageAddress) -> bool {
        self.passed_over.contains(&page)
    }

    /// Returns true if the page could not be read.
    pub(super) fn has_failed(&self, page: PageAddress) -> bool {
        self.failed.contains(&page)
    }

    /// Makes collection wait for the reads of so many pages.
    pub(super) fn wait(&mut self, pages: usize) {
        self.waits = true;
        self.in_flight += pages;
    }

    /// Returns true if no read of the collector is in flight, whose pin a victim that ends now would not release.
    pub(super) fn is_quiet(&self) -> bool {
        self.in_flight == 0
    }

    /// Returns true if collection waits for a page, or for the time of a repeated read.
    pub(super) fn must_wait(&mut self, now: Nanos) -> bool {
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
        }
        self.waits || self.retry_at.is_some()
    }
}

impl<M: Media> Ftl<M> {
    /// Takes the end of a read of the collector.
    pub(crate) fn end_victim_read(&mut self, page: PageAddress, result: ReadResult, now: Nanos) {
        let pages = &mut self.collector.pages;
        pages.waits = false;
        pages.in_flight -= 1;
        match result {
            ReadResult::Pinned => pages.pinned.push(page),
            ReadResult::Outdated => {}
            ReadResult::Failed(error) => {
                let attempts = pages.attempts.entry(page).or_default();
                match error.retry_delays().get(*attempts) {
                    Some(delay) if !pages.passed_over.contains(&page) => {
                        *attempts += 1;
                        pages.retry_at = pages.retry_at.max(Some(now.after(*delay)));
                    }
                    _ => {
                        pages.failed.insert(page);
                    }
                }
            }
        }
    }

    /// Returns the time at which the collector repeats failed reads.
    pub(crate) fn victim_retry_at(&self) -> Option<Nanos> {
        self.collector.pages.retry_at
    }

    /// Releases the pages of a victim that the collector has ended with.
    pub(super) fn release_victim_pages(&mut self) {
        let pages = &mut self.collector.pages;
        pages.failed.clear();
        pages.attempts.clear();
        pages.retry_at = None;
        for page in std::mem::take(&mut pages.pinned) {
            self.flash.unpin(page, false);
        }
    }
}
