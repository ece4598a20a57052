//! Page reads in flight, and the waiters of each.
//!
//! Input: pages that operations need. Output: one read per page for any number of waiters, and the waiters when it
//! completes. Invariant: a page has at most one read in flight; a page read before its block was erased is not shown
//! afterwards.

use crate::log::blocks::BlockTable;
use crate::log::page_cache::PageCache;
use crate::media::geometry::PageAddress;
use crate::media::token::MediaPurpose;
use crate::media::{Media, MediaCompletion, MediaOp, PageState, RefusedOp};
use headwater_host::clock::Nanos;
use std::collections::{BTreeMap, VecDeque};

/// A waiter for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadWaiter {
    /// An operation, by its slab index.
    Operation(usize),
    /// The collector.
    Collector,
}

#[derive(Debug)]
struct PageRead {
    order: u64,
    waiters: Vec<ReadWaiter>,
    submitted: bool,
}

/// The reads in flight.
#[derive(Debug, Default)]
pub struct PageReads {
    in_flight: BTreeMap<PageAddress, PageRead>,
    queue: VecDeque<PageAddress>,
}

impl PageReads {
    /// Adds a waiter for a page, and queues a read of the page if none is in flight.
    pub fn request(&mut self, page: PageAddress, waiter: ReadWaiter, blocks: &BlockTable) {
        let order = blocks.get(page.block).order;
        let reading = self.in_flight.entry(page).or_insert_with(|| {
            self.queue.push_back(page);
            PageRead { order, waiters: Vec::new(), submitted: false }
        });
        reading.waiters.push(waiter);
    }

    /// Submits queued reads to the medium while it accepts them and frames are available. Returns true if any was
    /// submitted.
    ///
    /// # Panics
    /// The medium rejects a read and returns another operation.
    pub fn submit<M: Media>(&mut self, media: &mut M, dram: &mut PageCache, now: Nanos) -> bool {
        let mut moved = false;
        while let Some(&page) = self.queue.front() {
            let Some(frame) = dram.take_frame() else { break };
            match media.submit(MediaPurpose::Read(page).encode(), MediaOp::Read { page, frame }, now) {
                Ok(()) => {
                    self.queue.pop_front();
                    let reading = self.in_flight.get_mut(&page).expect("a queued read has waiters");
                    reading.submitted = true;
                    moved = true;
                }
                Err(RefusedOp { op: MediaOp::Read { frame, .. }, .. }) => {
                    dram.return_frame(frame);
                    break;
                }
                Err(RefusedOp { op, .. }) => {
                    unreachable!("the medium rejected a read of {page} and returned {op:?}")
                }
            }
        }
        moved
    }

    /// Completes a read and returns its waiters. The page goes into the cache with one pin per waiter, unless its block
    /// was erased or reopened since the request.
    ///
    /// # Panics
    /// No read of the page was submitted.
    pub fn complete(
        &mut self,
        page: PageAddress,
        done: MediaCompletion,
        dram: &mut PageCache,
        blocks: &BlockTable,
    ) -> Vec<ReadWaiter> {
        let reading = self.in_flight.remove(&page).filter(|reading| reading.submitted);
        let reading =
            reading.unwrap_or_else(|| panic!("the medium completed a read of {page} that was not submitted"));
        let Some(mut frame) = done.frame else {
            return reading.waiters;
        };
        let same_life = blocks.get(page.block).order == reading.order && reading.order != 0;
        if same_life {
            if done.result != Ok(PageState::Programmed) {
                // The reader gets zeroes, which are neither a spare nor a record, instead of another page's bytes.
                frame.fill(0);
            }
            dram.insert(page, frame);
            for _ in &reading.waiters {
                dram.pin(page);
            }
        } else {
            dram.return_frame(frame);
        }
        reading.waiters
    }

    /// Returns the number of reads without a completion.
    #[must_use]
    pub fn len(&self) -> usize {
        self.in_flight.len()
    }

    /// Returns true if no read is in flight.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }
}
