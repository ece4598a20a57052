//! Jobs of the mover that go on after their start: channels move bytes of values while operations run.
//!
//! ```text
//!  fill:  described --start--> in flight --ended, and those before it of the same store--> pages sealed, queued for the medium
//!  copy:  described --start--> in flight --ended--> frames back in device DRAM, sink back with its operation
//! ```
//! Input: jobs that fill pages of extents, or copy pages to a sink. Output: sealed pages in the order of their blocks, and the
//! ends of copies. Invariant: a job owns every memory that it reads or writes until the mover returns it: frames, a vector, or
//! handles that keep the client's regions mapped. Nothing that ends earlier (an operation, a store, a client, the device) frees
//! one of them. A page of a fill counts as one that its store waits for, so that its block keeps its life until the page is
//! programmed.
//!
//! Without channels nothing is here: the CPU does a job in the turn that describes it.

use super::FlashLog;
use crate::log::extent_list::Extent;
use crate::log::extent_reads::ReadRun;
use crate::log::extent_writes::ExtentWriter;
use crate::media::Media;
use crate::media::geometry::PAGE_DATA_BYTES;
use crate::mutant::{Mutant, mutant};
use headwater_dma::mover::{JobNotStarted, MemoryPlace, MoveJob, MoveMemory, MoveStep, Mover, TicketNumber};
use headwater_host::clock::Nanos;
use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::BorrowedFd;

/// The time after which jobs on a channel without a descriptor are looked for again.
const LOOK_EVERY: Nanos = Nanos(500);
/// The time after which jobs on channels with descriptors are looked for, whatever the descriptors say.
const LOOK_AT_LEAST_EVERY: Nanos = Nanos::from_millis(10);
/// Most jobs that are kept to be filled again.
const KEPT_JOBS_MAX: usize = 64;

/// The mover of values, and its jobs in flight.
#[derive(Debug, Default)]
pub(super) struct ValueMoves {
    pub(super) mover: Mover,
    /// Jobs to fill again, without memories.
    kept: Vec<MoveJob>,
    /// Fills whose pages are not queued for the medium, in the order of their start.
    fills: VecDeque<ExtentFill>,
    copies: Vec<RunCopy>,
    ended: Vec<EndedCopy>,
    waited: u64,
}

/// A job that fills pages of an extent.
#[derive(Debug)]
struct ExtentFill {
    writer: ExtentWriter,
    extent: Extent,
    /// The first page, in the block.
    first: u8,
    pages: usize,
    /// The number of its ticket; `None` if the CPU did it.
    number: Option<TicketNumber>,
    /// The job, once it has ended.
    ended: Option<MoveJob>,
}

/// A job that copies pages of runs.
#[derive(Debug)]
struct RunCopy {
    number: TicketNumber,
    /// The operation that waits for it, by its slab index; `None` until the call that started it has stalled.
    operation: Option<usize>,
}

/// The end of a copy.
#[derive(Debug)]
pub(crate) struct EndedCopy {
    /// The operation that waits for it, by its slab index.
    pub(crate) operation: usize,
    /// The vector that the bytes are in; `None` if they are in client memory.
    pub(crate) sink: Option<Vec<u8>>,
}

impl ValueMoves {
    /// Returns true if no job is in flight.
    pub(super) fn is_empty(&self) -> bool {
        self.fills.is_empty() && self.copies.is_empty()
    }

    /// Returns the pages of fills, of one writer and of all.
    pub(super) fn filling_pages(&self, writer: ExtentWriter) -> (usize, usize) {
        let pages = |own: bool| {
            let fills = self.fills.iter().filter(|fill| !own || fill.writer == writer);
            fills.map(|fill| fill.pages).sum()
        };
        if self.fills.is_empty() || mutant(Mutant::FillsNotAwaited) {
            (0, 0)
        } else {
            (pages(true), pages(false))
        }
    }

    /// Takes a job without memories and steps.
    pub(super) fn take_job(&mut self) -> MoveJob {
        self.kept.pop().unwrap_or_default()
    }

    /// Keeps a job, which has no memories, to be filled again.
    pub(super) fn keep_job(&mut self, job: MoveJob) {
        if self.kept.len() < KEPT_JOBS_MAX {
            self.kept.push(job);
        }
    }

    /// Starts a job. Returns the number of its ticket, and the job if it has ended.
    fn start(&mut self, job: MoveJob) -> (Option<TicketNumber>, Option<MoveJob>) {
        // The policy knows what the channels still have.
        self.mover.collect_ended();
        match self.mover.start(job) {
            Ok(ticket) => {
                let ended = self.mover.poll(&ticket);
                self.waited += u64::from(ended.is_none());
                (Some(ticket.number()), ended)
            }
            Err(JobNotStarted { mut job, .. }) => {
                // There are too many jobs in flight.
                self.mover.run(&mut job).expect("the steps of a job over pages of a value can be run");
                (None, Some(*job))
            }
        }
    }
}

impl<M: Media> FlashLog<M> {
    /// Returns the mover, for its counters, and the jobs that operations waited for.
    pub(crate) fn mover(&self) -> (&Mover, u64) {
        (&self.moves.mover, self.moves.waited)
    }

    /// Sets the mover of values.
    ///
    /// # Panics
    /// Jobs of the present mover are in flight: their memories would be lost.
    pub(crate) fn set_mover(&mut self, mover: Mover) {
        assert!(self.moves.is_empty(), "the mover is replaced while it has jobs in flight");
        self.moves.mover = mover;
    }

    /// Returns true if channels do jobs beside the CPU.
    pub(crate) fn has_channels(&self) -> bool {
        self.moves.mover.has_channels()
    }

    /// Returns true if jobs of the mover are in flight.
    pub(crate) fn has_moves(&self) -> bool {
        !self.moves.is_empty()
    }

    /// Returns the time at which jobs in flight must be looked for; `None` if there are none. Where a descriptor says their ends,
    /// the time is a bound: a channel whose wake-up fails says nothing.
    pub(crate) fn moves_due(&self, now: Nanos) -> Option<Nanos> {
        let interval = if self.moves.mover.must_be_polled() { LOOK_EVERY } else { LOOK_AT_LEAST_EVERY };
        self.has_moves().then(|| now.after(interval))
    }

    /// Returns the descriptors that say the ends of jobs.
    pub(crate) fn move_descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.moves.mover.wake_descriptors()
    }

    /// Prepares a sleep on the descriptors of the mover. Returns false if a job in flight has ended or must be polled.
    pub(crate) fn prepare_sleep(&mut self) -> bool {
        self.moves.mover.prepare_sleep().is_some() || self.moves.is_empty()
    }

    /// Takes the jobs that have ended. Returns true if there were any.
    pub(crate) fn poll_moves(&mut self) -> bool {
        if self.moves.is_empty() {
            return false;
        }
        let mut moved = false;
        while let Some((number, job)) = self.moves.mover.poll_any() {
            self.end_move(number, job);
            moved = true;
        }
        if moved {
            self.seal_ended_fills();
        }
        moved
    }

    fn end_move(&mut self, number: TicketNumber, job: MoveJob) {
        if let Some(fill) = self.moves.fills.iter_mut().find(|fill| fill.number == Some(number)) {
            fill.ended = Some(job);
            return;
        }
        let at = self.moves.copies.iter().position(|copy| copy.number == number);
        let RunCopy { operation, .. } =
            self.moves.copies.swap_remove(at.expect("the mover returned a job that is not in flight"));
        let operation = operation.expect("a copy ended inside of the call that started it");
        let sink = self.end_copy(job).into_vec();
        self.moves.ended.push(EndedCopy { operation, sink });
    }

    /// Starts a job that fills pages of an extent from `first` on.
    pub(super) fn start_fill(&mut self, writer: ExtentWriter, (extent, first): (Extent, u8), job: MoveJob) {
        let pages = job.steps().len();
        let is_behind = self.moves.fills.iter().any(|fill| fill.writer == writer);
        match self.moves.start(job) {
            (_, Some(mut job)) if !is_behind => {
                self.seal_filled(writer, (extent, first), &mut job);
                self.moves.keep_job(job);
            }
            (number, ended) => {
                self.moves.fills.push_back(ExtentFill { writer, extent, first, pages, number, ended });
            }
        }
    }

    /// Seals the pages of ended fills. Those of one store are sealed in the order of its pages, which lie behind each other in
    /// blocks.
    fn seal_ended_fills(&mut self) {
        let mut at = 0;
        while let Some(fill) = self.moves.fills.get(at) {
            let is_behind = self.moves.fills.iter().take(at).any(|earlier| earlier.writer == fill.writer);
            if fill.ended.is_none() || is_behind && !mutant(Mutant::FillsOutOfOrder) {
                at += 1;
                continue;
            }
            let Some(ExtentFill { writer, extent, first, ended: Some(mut job), .. }) =
                self.moves.fills.remove(at)
            else {
                unreachable!("a fill that has ended has its job");
            };
            self.seal_filled(writer, (extent, first), &mut job);
            self.moves.keep_job(job);
        }
    }

    /// Describes a copy to a sink.
    pub(crate) fn begin_copy(&mut self, sink: MoveMemory) -> MoveJob {
        let mut job = self.moves.take_job();
        job.add_memory(sink);
        job
    }

    /// Starts a copy, which takes the frames of its pages along. Returns the sink if it has ended.
    pub(crate) fn start_copy(&mut self, job: MoveJob) -> Option<MoveMemory> {
        match self.moves.start(job) {
            (_, Some(job)) => Some(self.end_copy(job)),
            (Some(number), None) => {
                self.moves.copies.push(RunCopy { number, operation: None });
                None
            }
            (None, None) => unreachable!("a job that was not started was run"),
        }
    }

    /// Takes the memories of a copy that has ended. Returns its sink.
    fn end_copy(&mut self, mut job: MoveJob) -> MoveMemory {
        let mut memories = job.drain_memories();
        let sink = memories.next().expect("the job has its sink");
        for frame in memories.filter_map(MoveMemory::into_frame) {
            self.extent_reads.return_frame(frame, &mut self.page_cache);
        }
        self.moves.keep_job(job);
        sink
    }

    /// Names the operation that waits for the copies that its call started. Returns their number.
    pub(crate) fn claim_copies(&mut self, operation: usize) -> usize {
        let own = self.moves.copies.iter_mut().filter(|copy| copy.operation.is_none());
        own.map(|copy| copy.operation = Some(operation)).count()
    }

    /// Takes the copies that have ended, in order.
    pub(crate) fn take_ended_copies(&mut self) -> Vec<EndedCopy> {
        std::mem::take(&mut self.moves.ended)
    }
}

/// Adds a copy of pages of a run, whose frames the job takes, to its first memory, from `at` on. The first page gives its bytes
/// from `from` on, the last one those before `to`.
pub(crate) fn add_run_pages(
    job: &mut MoveJob,
    run: &mut ReadRun,
    (pages, from, to): (Range<u8>, usize, usize),
    mut at: usize,
) {
    for page in pages.clone() {
        let frame = job.add_memory(run.take_frame(page).expect("a proven page is in its run"));
        let from = if page == pages.start { from } else { 0 };
        let to = if page + 1 == pages.end { to } else { PAGE_DATA_BYTES };
        job.add_step(MoveStep::Copy {
            from: MemoryPlace::new(frame, from).range(to - from),
            to: MemoryPlace::new(0, at),
        });
        at += to - from;
    }
}
