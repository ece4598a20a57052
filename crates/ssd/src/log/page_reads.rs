//! The page reads of the log: at most one in flight for each page, whatever the number of its waiters.
//!
//! Input: pages and who waits for them, and the completions of reads. Output: pages in device DRAM, with one pin for each
//! waiter, and the end of each read. Invariant: a page that is not the one that was programmed there is read once more,
//! because the read may have been of another page, and then fails; nothing of a failed read is kept, and the next request
//! asks the medium again.

use crate::log::blocks::{BlockState, BlockTable};
use crate::log::page_cache::PageCache;
use crate::log::page_proof::PageProof;
use crate::media::geometry::PageAddress;
use crate::media::token::MediaPurpose;
use crate::media::{Media, MediaCompletion, MediaError, MediaOp, PageState, RefusedOp};
use crate::mutant::{Mutant, mutant};
use headwater_host::clock::Nanos;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A waiter for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadWaiter {
    /// An operation, by its slab index.
    Operation(usize),
    /// The collector.
    Collector,
}

/// The end of a read, for one waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndedRead {
    pub(crate) waiter: ReadWaiter,
    pub(crate) page: PageAddress,
    pub(crate) result: ReadResult,
}

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadResult {
    /// The page is in device DRAM, with a pin for this waiter.
    Pinned,
    /// The block was erased or reopened since the request: the page of then is no longer needed.
    Outdated,
    /// The medium could not read the page.
    Failed(MediaError),
}

/// The check of the bytes of a completed read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadCheck {
    /// They are those of the page, or are not needed any more.
    Passed,
    /// They are not; the page is read once more.
    Repeated,
    /// They are not, for the second time.
    Damaged,
}

#[derive(Debug)]
struct PageRead {
    order: u64,
    waiters: Vec<ReadWaiter>,
    submitted: bool,
    /// True if the medium returned other bytes than were programmed once before.
    repeated: bool,
}

/// The reads in flight.
#[derive(Debug)]
pub(super) struct PageReads {
    proof: PageProof,
    in_flight: BTreeMap<PageAddress, PageRead>,
    queue: VecDeque<PageAddress>,
    /// Pages that did not prove themselves in a read of another kind: the next read of one is its second.
    unproven: BTreeSet<PageAddress>,
}

impl PageReads {
    /// Makes the reads of a medium whose pages are checked by this proof.
    pub(super) fn new(proof: PageProof) -> Self {
        Self { proof, in_flight: BTreeMap::new(), queue: VecDeque::new(), unproven: BTreeSet::new() }
    }

    /// Sets what pages are checked by.
    pub(super) fn set_proof(&mut self, proof: PageProof) {
        self.proof = proof;
    }

    /// Returns what pages are checked by.
    pub(super) fn proof(&self) -> PageProof {
        self.proof
    }

    /// Adds a waiter for a page, and queues a read of the page if none is in flight.
    pub(super) fn request(&mut self, page: PageAddress, waiter: ReadWaiter, blocks: &BlockTable) {
        let order = blocks.get(page.block).order;
        let repeated = self.unproven.remove(&page);
        let reading = self.in_flight.entry(page).or_insert_with(|| {
            self.queue.push_back(page);
            PageRead { order, waiters: Vec::new(), submitted: false, repeated }
        });
        reading.waiters.push(waiter);
    }

    /// Notes that a page did not prove itself when it was read for a caller, who asks for it now.
    pub(super) fn note_unproven(&mut self, page: PageAddress) {
        self.unproven.insert(page);
    }

    /// Submits queued reads to the medium while it accepts them and frames are available. Returns true if any was
    /// submitted.
    ///
    /// # Panics
    /// The medium rejects a read and returns another operation.
    pub(super) fn submit<M: Media>(&mut self, media: &mut M, dram: &mut PageCache, now: Nanos) -> bool {
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

    /// Completes a read and appends its end to `ended`, once for each waiter. The page goes into the cache with one pin per
    /// waiter, unless the read failed, or the block is being erased, or was erased or reopened since the request. A page
    /// that does not prove itself is queued again the first time.
    ///
    /// # Panics
    /// No read of the page was submitted.
    pub(super) fn complete(
        &mut self,
        page: PageAddress,
        done: MediaCompletion,
        dram: &mut PageCache,
        blocks: &BlockTable,
        ended: &mut Vec<EndedRead>,
    ) -> ReadCheck {
        let reading = self.in_flight.remove(&page).filter(|reading| reading.submitted);
        let mut reading =
            reading.unwrap_or_else(|| panic!("the medium completed a read of {page} that was not submitted"));
        // A block keeps its order until its erase completes, but its pages left the cache when the erase was submitted.
        let block = blocks.get(page.block);
        let same_life =
            block.order == reading.order && reading.order != 0 && block.state != BlockState::Erasing;
        let is_damaged = match (&done.result, &done.frame) {
            (Ok(state), Some(frame)) if same_life && !mutant(Mutant::PageNotProven) => {
                !self.proof.holds_read(*state, frame, page, reading.order)
            }
            _ => false,
        };
        let result = match (done.result, done.frame) {
            (Ok(_), Some(frame)) if is_damaged => {
                dram.return_frame(frame);
                if !reading.repeated {
                    (reading.repeated, reading.submitted) = (true, false);
                    self.in_flight.insert(page, reading);
                    self.queue.push_back(page);
                    return ReadCheck::Repeated;
                }
                ReadResult::Failed(MediaError::Damaged { page })
            }
            (Ok(state), Some(mut frame)) if same_life => {
                if state == PageState::Blank {
                    // The reader gets zeroes, which are neither a spare nor a record, instead of another page's bytes.
                    frame.fill(0);
                }
                dram.insert(page, frame);
                ReadResult::Pinned
            }
            (result, frame) => {
                if let Some(frame) = frame {
                    dram.return_frame(frame);
                }
                result.err().filter(|_| same_life).map_or(ReadResult::Outdated, ReadResult::Failed)
            }
        };
        for waiter in reading.waiters {
            if result == ReadResult::Pinned {
                dram.pin(page);
            }
            ended.push(EndedRead { waiter, page, result });
        }
        if is_damaged { ReadCheck::Damaged } else { ReadCheck::Passed }
    }

    /// Returns true if no read is in flight.
    pub(super) fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Sequence;
    use crate::media::geometry::FlashGeometry;
    use crate::media::memory::MemoryMedia;
    use headwater_dma::pool::Pool;

    /// Repeats what broke: a read that ended during the erase of its block put the old page into the cache, and the page
    /// that was programmed there after the erase did not replace it.
    #[test]
    fn page_read_before_an_erase_is_not_kept_when_the_read_ends_during_the_erase() {
        let geometry = FlashGeometry::with_blocks(1);
        // On a medium of version 1 a page that was never programmed proves itself.
        let mut media = MemoryMedia::erased(geometry).unwrap().as_version_1();
        let mut dram = PageCache::new(geometry, 4, Pool::of_process().unwrap());
        let mut blocks = BlockTable::new(geometry);
        let erased = blocks.take_dirty().unwrap();
        blocks.complete_erase(erased);
        let block = blocks.open(Sequence(1), crate::log::blocks::BlockUse::Log).unwrap();
        blocks.close(block, 1);
        let page = PageAddress::new(block, 0);
        let proof = PageProof::new(media.traits(), 0);
        for (erases, expected) in [(false, ReadResult::Pinned), (true, ReadResult::Outdated)] {
            let (mut reads, mut done, mut ended) = (PageReads::new(proof), Vec::new(), Vec::new());
            reads.request(page, ReadWaiter::Collector, &blocks);
            assert!(reads.submit(&mut media, &mut dram, Nanos::ZERO));
            if erases {
                blocks.mark_evacuated(block);
                dram.drop_block(block);
                blocks.mark_erasing(block);
            }
            media.poll(Nanos::ZERO, &mut done);
            reads.complete(page, done.pop().unwrap(), &mut dram, &blocks, &mut ended);
            assert_eq!(ended, [EndedRead { waiter: ReadWaiter::Collector, page, result: expected }]);
            assert_eq!(dram.peek(page).is_some(), !erases);
        }
    }
}
