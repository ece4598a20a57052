//! Page reads in flight, and who waits for each.
//!
//! In: pages that somebody needs. Out: media reads, one a page however many wait, and the waiters when it has come.
//! Invariant: a page is read at most once at a time; a page that arrives from an erased life of its block is not shown.

use crate::blocks::Blocks;
use crate::dram::Dram;
use crate::media::geometry::PageAddress;
use crate::media::{Media, MediaDone, MediaOp, MediaToken, PageState, Refused};
use headwater_host::clock::Nanos;
use std::collections::{BTreeMap, VecDeque};

/// Who waits for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiter {
    /// An operation of the slab.
    Operation(usize),
    /// The collector.
    Collector,
}

#[derive(Debug)]
struct Reading {
    order: u64,
    waiters: Vec<Waiter>,
    submitted: bool,
}

const READ_TOKENS: u64 = 2 << 60;

/// The page a token names, if it names a read.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "the token was made from these widths")]
pub const fn read_page(token: MediaToken) -> Option<PageAddress> {
    if token.0 >> 60 == 2 {
        let page = token.0 & (READ_TOKENS / 2 - 1);
        Some(PageAddress::new(crate::media::BlockId((page >> 8) as u32), page as u8))
    } else {
        None
    }
}

const fn token(page: PageAddress) -> MediaToken {
    MediaToken(READ_TOKENS | (page.block.0 as u64) << 8 | page.page as u64)
}

/// Reads in flight.
#[derive(Debug, Default)]
pub struct Reads {
    reading: BTreeMap<PageAddress, Reading>,
    queue: VecDeque<PageAddress>,
}

impl Reads {
    /// Asks for a page on behalf of a waiter.
    pub fn request(&mut self, page: PageAddress, waiter: Waiter, blocks: &Blocks) {
        let order = blocks.get(page.block).order;
        let reading = self.reading.entry(page).or_insert_with(|| {
            self.queue.push_back(page);
            Reading { order, waiters: Vec::new(), submitted: false }
        });
        reading.waiters.push(waiter);
    }

    /// Hands queued reads to the media while it takes them and frames last. Returns whether any went.
    pub fn submit<M: Media>(&mut self, media: &mut M, dram: &mut Dram, now: Nanos) -> bool {
        let mut moved = false;
        while let Some(&page) = self.queue.front() {
            let Some(frame) = dram.take_frame() else { break };
            match media.submit(token(page), MediaOp::Read { page, frame }, now) {
                Ok(()) => {
                    self.queue.pop_front();
                    if let Some(reading) = self.reading.get_mut(&page) {
                        reading.submitted = true;
                    }
                    moved = true;
                }
                Err(Refused { op: MediaOp::Read { frame, .. }, .. }) => {
                    dram.put_back(frame);
                    break;
                }
                Err(_) => break,
            }
        }
        moved
    }

    /// A read completed. The page goes into the cache, pinned once for every operation that waits, unless its block
    /// began another life meanwhile. Returns the waiters.
    pub fn done(
        &mut self,
        page: PageAddress,
        done: MediaDone,
        dram: &mut Dram,
        blocks: &Blocks,
    ) -> Vec<Waiter> {
        let Some(reading) = self.reading.remove(&page) else {
            return Vec::new();
        };
        let Some(mut frame) = done.frame else {
            return reading.waiters;
        };
        let same_life = blocks.get(page.block).order == reading.order && reading.order != 0;
        if same_life {
            if done.result != Ok(PageState::Programmed) {
                // Zeroes are no spare and no record: whoever looks finds damage, not somebody else's bytes.
                frame.fill(0);
            }
            dram.insert(page, frame);
            for _ in &reading.waiters {
                dram.pin(page);
            }
        } else {
            dram.put_back(frame);
        }
        reading.waiters
    }

    /// Reads not yet answered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.reading.len()
    }

    /// Whether nothing is being read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.reading.is_empty()
    }
}
