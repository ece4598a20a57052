//! The mover of a cache: its jobs between frames and the buffers of requests, and the frames that they read.
//!
//! Input: a request with frames. Output: the bytes moved at once, or by a job that ends later; each move once. Invariant: a job
//! has a handle to each memory that it accesses, and gives it back when it ends, before its request is returned.

use super::frames::FrameTable;
use super::request::PendingCacheRequest;
use super::shape::to_u64;
use crate::buffer::Buffer;
use headwater_dma::mover::policy::WorkShape;
use headwater_dma::mover::{
    LARGE_JOB_BYTES, MemoryPlace, MemoryRange, MoveJob, MoveStep, Mover, TicketNumber,
};
use std::collections::BTreeMap;

/// The direction of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageDirection {
    /// From pages to the buffer of a request.
    FromPages,
    /// From the buffer of a request to pages.
    ToPages,
}

/// A move that a channel works on.
#[derive(Debug)]
pub(super) struct RunningPageMove {
    pub(super) number: TicketNumber,
    /// The key of its request.
    pub(super) request: u64,
    pub(super) frames: Vec<u32>,
    pub(super) direction: PageDirection,
}

/// The result of starting a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageMoveStart {
    /// It is done.
    Done,
    /// A channel works on it.
    Running(TicketNumber),
    /// No job was started: it is too short, or the mover is full.
    NotStarted,
}

/// The mover of a cache, and the moves in progress.
#[derive(Debug)]
pub(super) struct PageMover {
    mover: Mover,
    running: Vec<RunningPageMove>,
    /// The frames that jobs read, with the number of jobs.
    read: BTreeMap<u32, u32>,
    /// A job without memories and steps, whose lists are used again.
    spare: Option<MoveJob>,
}

impl PageMover {
    pub(super) fn new(mover: Mover) -> Self {
        Self { mover, running: Vec::new(), read: BTreeMap::new(), spare: None }
    }

    pub(super) fn mover(&self) -> &Mover {
        &self.mover
    }

    /// Returns true if so many bytes are worth a job: the policy decides about them, or an engine could do it.
    pub(super) fn is_long(&self, bytes: usize) -> bool {
        match self.mover.policy() {
            Some(policy) => !policy.is_below_threshold(&WorkShape::copy(to_u64(bytes))),
            None => bytes >= LARGE_JOB_BYTES,
        }
    }

    /// Starts the move of a request's bytes on frames.
    pub(super) fn start(
        &mut self,
        table: &FrameTable,
        (pending, data): (&PendingCacheRequest, &Buffer),
        frames: &[u32],
        direction: PageDirection,
    ) -> PageMoveStart {
        if !self.is_long(bytes_on(table, pending, frames)) {
            return PageMoveStart::NotStarted;
        }
        if !self.running.is_empty() {
            self.mover.collect_ended();
        }
        let job = self.describe(table, (pending, data), frames, direction);
        match self.mover.start(job) {
            Ok(ticket) => match self.mover.poll(&ticket) {
                Some(job) => {
                    self.recycle(job);
                    PageMoveStart::Done
                }
                None => PageMoveStart::Running(ticket.number()),
            },
            Err(refused) => {
                self.recycle(*refused.job);
                PageMoveStart::NotStarted
            }
        }
    }

    /// Notes a move that a channel works on.
    pub(super) fn note_running(&mut self, running: RunningPageMove) {
        self.running.push(running);
    }

    /// Returns the number of moves that channels work on.
    pub(super) fn running(&self) -> usize {
        self.running.len()
    }

    /// Returns true if a job reads a frame, or is about to.
    #[inline]
    pub(super) fn reads(&self, frame: u32) -> bool {
        self.read.contains_key(&frame)
    }

    /// Notes that a job is about to read a frame.
    pub(super) fn pin(&mut self, frame: u32) {
        *self.read.entry(frame).or_default() += 1;
    }

    /// Notes that a job does not read a frame any more. Returns true if no other job does.
    pub(super) fn unpin(&mut self, frame: u32) -> bool {
        let Some(jobs) = self.read.get_mut(&frame) else { return true };
        *jobs -= 1;
        if *jobs > 0 {
            return false;
        }
        self.read.remove(&frame);
        true
    }

    /// Returns the job of a move: a step for each run of bytes that are adjacent in a block of memory and in the buffer.
    fn describe(
        &mut self,
        table: &FrameTable,
        (pending, data): (&PendingCacheRequest, &Buffer),
        frames: &[u32],
        direction: PageDirection,
    ) -> MoveJob {
        let mut job = self.spare.take().unwrap_or_default();
        let (memory, start) = data.memory();
        let own = job.add_memory(memory.clone());
        // Each block of frames, with the number of its memory in the job.
        let mut blocks: Vec<(usize, usize)> = Vec::new();
        let mut runs: Vec<(MemoryRange, usize)> = Vec::new();
        for &frame in frames {
            let part = pending.part(table.frame(frame).page);
            let (block, memory, offset) = table.place(frame);
            let known = blocks.iter().rev().find(|(known, _)| *known == block).map(|(_, number)| *number);
            let number = known.unwrap_or_else(|| {
                let number = job.add_memory(memory.clone());
                blocks.push((block, number));
                number
            });
            let place = MemoryPlace::new(number, offset + part.page_offset);
            if let Some((range, at)) = runs.last_mut()
                && range.start.memory == number
                && range.start.offset + range.bytes == place.offset
                && *at + range.bytes == part.request_offset
            {
                range.bytes += part.bytes;
            } else {
                runs.push((place.range(part.bytes), part.request_offset));
            }
        }
        for (pages, at) in runs {
            let buffer = MemoryPlace::new(own, start + at);
            job.add_step(match direction {
                PageDirection::FromPages => MoveStep::Copy { from: pages, to: buffer },
                PageDirection::ToPages => MoveStep::Copy { from: buffer.range(pages.bytes), to: pages.start },
            });
        }
        job
    }

    /// Releases the memories of a job, and keeps its lists.
    fn recycle(&mut self, mut job: MoveJob) {
        job.drain_memories().for_each(drop);
        self.spare = Some(job);
    }

    /// Returns the next move whose job has ended.
    pub(super) fn take_ended(&mut self) -> Option<RunningPageMove> {
        while !self.running.is_empty() {
            let (number, job) = self.mover.poll_any()?;
            self.recycle(job);
            if let Some(at) = self.running.iter().position(|running| running.number == number) {
                return Some(self.running.swap_remove(at));
            }
        }
        None
    }
}

/// Returns the bytes that a request has on frames.
pub(super) fn bytes_on(table: &FrameTable, pending: &PendingCacheRequest, frames: &[u32]) -> usize {
    frames.iter().map(|&frame| pending.part(table.frame(frame).page).bytes).sum()
}
