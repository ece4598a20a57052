//! The clock of a mover: the kernel's, or a virtual one that advances by what engines would take.
//!
//! Input: the steps that the CPU of the owner did, and the waits of the owner. Output: the time. Invariant: under the
//! kernel's clock none of this takes time of its own; under a virtual one nothing sleeps, and only the calls of this trait
//! and of channels advance it.

use super::job::{MoveJob, MoveStep};
use super::run::run;
use headwater_host::clock::{Clock, Nanos};
use std::fmt::Debug;

/// The virtual time of a mover, for the study of engines that this machine does not have. The mover moves every byte as
/// ever; only the time of doing so is another one.
pub trait VirtualTime: Debug + Send {
    /// Returns the virtual time.
    fn now(&self) -> Nanos;

    /// Advances by the time that the CPU of the owner takes for steps, which it has done.
    fn cpu_did(&self, steps: &[MoveStep]);

    /// Advances while the owner waits: to the next end of a job on a channel, or by a short time if that is earlier.
    fn wait(&self);
}

/// The clock of a mover.
#[derive(Debug)]
pub(super) enum MoverClock {
    Kernel(Clock),
    Virtual(Box<dyn VirtualTime>),
}

impl MoverClock {
    pub(super) fn now(&self) -> Nanos {
        match self {
            Self::Kernel(clock) => clock.now(),
            Self::Virtual(time) => time.now(),
        }
    }

    /// Does the steps of a checked job that have no result yet, by the CPU of the caller.
    pub(super) fn run_by_cpu(&self, job: &mut MoveJob) {
        let first = job.results.len();
        run(job);
        if let Self::Virtual(time) = self {
            time.cpu_did(&job.steps[first..]);
        }
    }

    /// Waits a moment.
    pub(super) fn wait(&self) {
        match self {
            Self::Kernel(_) => std::hint::spin_loop(),
            Self::Virtual(time) => time.wait(),
        }
    }
}
