//! The moves of long requests: copies between cached pages and the buffer of a request, as one job of a mover.
//!
//! ```text
//!   request --pages--> gathered --too short, refused--> copied page by page
//!                               --a job: a step for each run of adjacent pages--> done at once by the CPU
//!                                                                             --> running on a channel --poll--> ended
//! ```
//! Input: a request, and the frames of pages that are cached or were just filled. Output: bytes in its buffer, or in the
//! frames. Invariants: a frame that a job reads keeps its page and its bytes until the job has ended: it is not evicted, not
//! moved, and no request writes it; a frame that a job writes is [`FrameState::Filling`], so that nothing else reads, writes
//! or writes back its bytes; a request keeps its buffer until its jobs have ended.
//!
//! A mover ends every job: what a channel refuses or abandons the CPU does. So no request fails because of a job.

use super::BlockCache;
use super::frames::FrameState;
use super::page_mover::{PageDirection, PageMoveStart, PageMover, RunningPageMove, bytes_on};
use super::request::{CacheOperation, PendingCacheRequest};
use super::shape::to_u64;
use headwater_dma::mover::Mover;
use headwater_host::width::to_usize;
use std::collections::BTreeMap;

impl BlockCache {
    /// Gives the cache a mover. Copies between cached pages and the buffers of reads and writes that are long enough for the
    /// policy of the mover, or have [`LARGE_JOB_BYTES`](headwater_dma::mover::LARGE_JOB_BYTES) if it has no channels, are its
    /// jobs from now on.
    ///
    /// # Errors
    /// The mover, if the cache has one.
    pub fn set_mover(&mut self, mover: Mover) -> Result<(), Mover> {
        if self.page_mover.is_some() {
            return Err(mover);
        }
        self.page_mover = Some(Box::new(PageMover::new(mover)));
        Ok(())
    }

    /// Returns the mover, if the cache has one.
    #[must_use]
    pub fn mover(&self) -> Option<&Mover> {
        self.page_mover.as_ref().map(|moves| moves.mover())
    }

    /// Returns the number of jobs that channels of the mover have: [`poll`](Self::poll) finds their ends.
    #[must_use]
    pub fn moves_in_flight(&self) -> usize {
        self.page_mover.as_ref().map_or(0, |moves| moves.running())
    }

    /// Returns true if a job reads a frame, or is about to.
    #[inline]
    pub(super) fn is_read_by_job(&self, frame: u32) -> bool {
        self.page_mover.as_ref().is_some_and(|moves| moves.reads(frame))
    }

    /// Returns true if a request is long enough for a job: its pages are gathered.
    #[inline]
    pub(super) fn is_gathered(&self, pending: &PendingCacheRequest) -> bool {
        let Some(moves) = &self.page_mover else { return false };
        let is_copy = matches!(pending.operation, CacheOperation::Read | CacheOperation::Write { .. });
        is_copy && pending.data.is_some() && moves.is_long(to_usize(pending.bytes))
    }

    /// Adds a valid page to those gathered for a read, and keeps it as it is until the read has its bytes. Returns false, and
    /// does nothing, if a request or a shrink waits for the page: it must not wait for one read after another.
    pub(super) fn gather_read(&mut self, frame: u32, gathered: Option<&mut Vec<u32>>) -> bool {
        let is_awaited = frame >= self.retained_frames || self.waiters.contains_key(&frame);
        let Some(gathered) = gathered.filter(|_| !is_awaited) else { return false };
        self.pin(frame);
        gathered.push(frame);
        true
    }

    fn pin(&mut self, frame: u32) {
        if let Some(moves) = &mut self.page_mover {
            moves.pin(frame);
        }
    }

    /// Ends a job's use of a frame. Returns true if no other job reads it.
    fn unpin(&mut self, frame: u32) -> bool {
        self.page_mover.as_mut().is_none_or(|moves| moves.unpin(frame))
    }

    /// Moves the bytes of gathered pages, in the order of their numbers: as a job, or page by page.
    pub(super) fn move_gathered(&mut self, key: u64, pending: &mut PendingCacheRequest, frames: Vec<u32>) {
        if frames.is_empty() {
            return;
        }
        let direction = match pending.operation {
            CacheOperation::Write { .. } => PageDirection::ToPages,
            _ => PageDirection::FromPages,
        };
        let started = match (&mut self.page_mover, &pending.data) {
            (Some(moves), Some(data)) => moves.start(&self.frames, (&*pending, data), &frames, direction),
            _ => PageMoveStart::NotStarted,
        };
        match started {
            PageMoveStart::Done => {}
            PageMoveStart::NotStarted => {
                for &frame in &frames {
                    match direction {
                        PageDirection::FromPages => self.copy_out(frame, pending),
                        PageDirection::ToPages => self.copy_in(frame, pending),
                    }
                }
            }
            PageMoveStart::Running(number) => {
                pending.waiting += 1;
                pending.moves += 1;
                if let Some(moves) = &mut self.page_mover {
                    moves.note_running(RunningPageMove { number, request: key, frames, direction });
                }
                return;
            }
        }
        self.release_moved(&frames, direction);
    }

    /// Ends the use of frames by a move, and continues the requests that waited for it.
    fn release_moved(&mut self, frames: &[u32], direction: PageDirection) {
        // A parked request may wait for a frame that was kept for the move.
        self.progressed = true;
        for &frame in frames {
            match direction {
                PageDirection::ToPages => self.frames.frame_mut(frame).state = FrameState::Idle,
                PageDirection::FromPages if !self.unpin(frame) => continue,
                PageDirection::FromPages => {}
            }
            // A page that is being written back serves its waiters when that ends.
            if self.frames.frame(frame).state == FrameState::Idle {
                self.serve_waiters(frame);
            }
        }
    }

    /// Moves frames that were just filled to the long reads that wait for several of them.
    pub(super) fn move_filled(&mut self, filled: &[u32]) {
        let Some(moves) = &self.page_mover else { return };
        let mut readers: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        for &frame in filled {
            for waiter in self.waiters.get(&frame).into_iter().flatten().filter(|waiter| !waiter.written) {
                readers.entry(waiter.request).or_default().push(frame);
            }
        }
        let is_moved = |request: u64, frames: &[u32]| {
            self.requests.get(request).is_some_and(|pending| {
                let is_read = pending.operation == CacheOperation::Read && pending.data.is_some();
                is_read && !pending.is_cancelled && moves.is_long(bytes_on(&self.frames, pending, frames))
            })
        };
        readers.retain(|request, frames| is_moved(*request, frames));
        // All waits end before the first move, whose end serves the requests that still wait.
        for (request, frames) in &readers {
            for &frame in frames {
                self.end_wait(frame, *request);
                self.pin(frame);
            }
        }
        for (request, frames) in readers {
            let Some(mut pending) = self.requests.take(request) else {
                unreachable!("a request ended while its pages were moved")
            };
            pending.waiting -= to_u64(frames.len());
            self.move_gathered(request, &mut pending, frames);
            self.store_or_finish(request, pending, false);
        }
    }

    /// Removes a request from those that wait for the bytes of a frame.
    fn end_wait(&mut self, frame: u32, request: u64) {
        let Some(waiters) = self.waiters.get_mut(&frame) else { return };
        waiters.retain(|waiter| waiter.written || waiter.request != request);
        if waiters.is_empty() {
            self.waiters.remove(&frame);
        }
    }

    /// Continues the requests whose jobs have ended.
    pub(super) fn reap_moves(&mut self) {
        while let Some(ended) = self.page_mover.as_mut().and_then(|moves| moves.take_ended()) {
            let RunningPageMove { request, frames, direction, .. } = ended;
            if let Some(mut pending) = self.requests.take(request) {
                pending.waiting -= 1;
                pending.moves -= 1;
                if pending.is_cancelled && pending.moves == 0 {
                    self.finish(request, pending);
                } else {
                    self.store_or_finish(request, pending, false);
                }
            }
            self.release_moved(&frames, direction);
        }
    }

    /// Finishes a request that failed, once no job uses its buffer.
    pub(super) fn finish_after_moves(&mut self, key: u64, mut pending: PendingCacheRequest) {
        if pending.moves == 0 {
            return self.finish(key, pending);
        }
        pending.is_cancelled = true;
        self.requests.put_back(key, pending);
    }
}
