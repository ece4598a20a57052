//! The mover: moves payload between memories, in jobs.
//!
//! Input: a [`MoveJob`]: memories that it owns, and steps (copy, copy with CRC-32C, dualcast, fill, compare, CRC-32C, flush)
//! over ranges of them. Output: the job, done, with a result a step. Invariant: a job is done as a whole, or is not begun
//! because a step of it is invalid.
//!
//! A list of copies is a scatter or a gather with one completion: a part of a value that lies in many pages is one job. What
//! is read or written by a single short copy needs no job: it calls the kernels of [`headwater_host::copy`].
//!
//! # What this does not do
//! It has no channel to a DMA engine yet: the CPU does every job at once. [`policy`] decides what channels will do.

mod counters;
mod error;
mod job;
mod memory;
pub mod policy;
mod run;

pub use counters::{LARGE_JOB_BYTES, MoverCounters};
pub use error::InvalidStep;
pub use job::{CacheIntent, MemoryPlace, MemoryRange, MoveDurability, MoveJob, MoveStep, StepResult};
pub use memory::MoveMemory;

/// A mover of payload. A device has one.
#[derive(Debug, Default)]
pub struct Mover {
    counters: MoverCounters,
}

impl Mover {
    /// Does a job.
    ///
    /// # Errors
    /// [`InvalidStep`] if a step names what the job does not have, or may not write; nothing was done.
    pub fn run(&mut self, job: &mut MoveJob) -> Result<(), InvalidStep> {
        job.check()?;
        self.counters.count(job.bytes());
        run::run(job);
        Ok(())
    }

    /// Returns the counters of the jobs that were done.
    #[must_use]
    pub fn counters(&self) -> MoverCounters {
        self.counters
    }
}
