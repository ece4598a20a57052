//! The reasons that a job cannot be run.

use super::MoveJob;
use thiserror::Error;

/// The reason that a job cannot be run as it was described. Nothing of it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidStep {
    /// The step names a memory that the job does not have.
    #[error(
        "step {step} names memory {memory} of a job that has {memories}; add the memory to the job first"
    )]
    NoMemory {
        /// The step, counted from 0.
        step: usize,
        /// The memory it names.
        memory: usize,
        /// The memories that the job has.
        memories: usize,
    },
    /// The range does not lie in its memory.
    #[error(
        "step {step}: {bytes} bytes at offset {offset} do not lie in a memory of {memory_bytes} bytes; name a range \
         inside it"
    )]
    OutOfMemory {
        /// The step, counted from 0.
        step: usize,
        /// The first byte of the range.
        offset: usize,
        /// The length of the range.
        bytes: usize,
        /// The length of the memory.
        memory_bytes: usize,
    },
    /// The step writes to memory that can only be read.
    #[error(
        "step {step} writes to memory {memory}, which can only be read; name a writable memory as its target"
    )]
    ReadOnly {
        /// The step, counted from 0.
        step: usize,
        /// The memory it names.
        memory: usize,
    },
    /// Two ranges of the step overlap, and one of them is written.
    #[error(
        "step {step} writes to a range of memory {memory} that it also reads or writes; name ranges apart"
    )]
    Overlap {
        /// The step, counted from 0.
        step: usize,
        /// The memory that both ranges lie in.
        memory: usize,
    },
    /// The step asks for persistence in memory of another process.
    #[error(
        "step {step} asks for persistence in memory {memory} of a client; name memory of this process, or ask for \
         visibility"
    )]
    NotPersistent {
        /// The step, counted from 0.
        step: usize,
        /// The memory it names.
        memory: usize,
    },
}

/// The reason that a job was not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StartRefusal {
    /// A step of it cannot be run.
    #[error(transparent)]
    Invalid(#[from] InvalidStep),
    /// The mover has as many jobs that were started and not taken as it may.
    #[error("{max} jobs were started and not taken; poll a ticket of them first")]
    Full {
        /// The most jobs.
        max: usize,
    },
}

/// A job that was not started.
#[derive(Debug, Error)]
#[error("{reason}")]
pub struct JobNotStarted {
    /// The job, with its memories and steps.
    pub job: Box<MoveJob>,
    /// The reason.
    #[source]
    pub reason: StartRefusal,
}
