//! A channel: does jobs beside the CPU of its owner.
//!
//! Input: checked jobs, each with a token. Output: each job once, with its token. Invariant: `Ok` from
//! [`MoveChannel::submit`] means that the job returns exactly once, by [`poll`](MoveChannel::poll) or by
//! [`take_back`](MoveChannel::take_back); `Err` returns it at once. The channel owns the job's memories in between, so that
//! no other code accesses them while it works.

use super::MoveJob;
use super::policy::ChannelTraits;
use headwater_host::clock::Nanos;
use std::fmt::Debug;
use std::os::fd::BorrowedFd;

/// The end of a job on a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobEnd {
    /// All steps were done.
    Done,
    /// The channel stopped before or during the step behind the [results](MoveJob::results) that the job has; of that step
    /// any bytes may be written. The mover does it and the rest.
    Abandoned,
}

/// A job that a channel returns.
#[derive(Debug)]
pub struct EndedJob {
    /// The token that it was submitted with.
    pub token: u64,
    /// The job.
    pub job: MoveJob,
    /// The state of its steps.
    pub end: JobEnd,
    /// The time from its submission to its end.
    pub elapsed: Nanos,
}

/// The reason that a channel takes no job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChannelRefusal {
    /// It has as many jobs as its depth.
    #[error("the channel is full; take an ended job first")]
    Full,
    /// It can do no operation of the job, or may not.
    #[error("the channel does no operation of the job; let the CPU do it")]
    NotPermitted,
    /// It has stopped for good.
    #[error("the channel has stopped; let the CPU do the job")]
    Dead,
}

/// A job that a channel did not take.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct RefusedJob {
    /// The job, unchanged.
    pub job: MoveJob,
    /// The reason.
    #[source]
    pub reason: ChannelRefusal,
}

/// The page faults of a channel, from its start on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageFaultCounters {
    /// Operations that ended at a missing page.
    pub faults: u64,
    /// Bytes behind them, which the CPU did.
    pub finished_bytes: u64,
}

/// An engine that does jobs beside the CPU of its owner.
///
/// Whatever the durability of a job, the channel gives its guarantee itself before the job has ended. For what its device wrote
/// that takes a flush by the CPU if [`MoveJob::needs_flush`] says so.
///
/// Steps that continue each other reach a channel merged, up to 1 MiB together: a list of copies from and to adjacent pages is one
/// copy. The owner of the job gets the steps back as it gave them, each with its result.
pub trait MoveChannel: Debug + Send {
    /// Returns the properties of the channel; they never change.
    fn traits(&self) -> ChannelTraits;

    /// Submits a checked job. `Ok` means that it returns exactly once; `Err` means that it has returned.
    ///
    /// # Errors
    /// [`RefusedJob`] returns the job with the reason.
    fn submit(&mut self, token: u64, job: MoveJob, now: Nanos) -> Result<(), RefusedJob>;

    /// Returns the next job that has ended. Never blocks: a device that does not answer any more is stopped beside its owner,
    /// and its jobs end when it is. Only where the system has no thread left for that, it blocks until the device is stopped.
    fn poll(&mut self, now: Nanos) -> Option<EndedJob>;

    /// Returns a job that the channel has not begun; `None` if it has, or if the job was returned.
    fn take_back(&mut self, token: u64) -> Option<MoveJob>;

    /// Returns true if the channel begins a job at once when it gets it; false if it sleeps, and an owner that waits for the job
    /// had better do it itself.
    fn is_awake(&self) -> bool {
        true
    }

    /// Wakes a channel that sleeps for the next job, if it stays awake for as long as the jobs are apart.
    fn rouse(&mut self, apart: Nanos) {
        let _ = apart;
    }

    /// Returns true if the channel can access the memories of a job, as far as its first and its last step name them. A job that
    /// it cannot reach is not offered to it.
    fn can_reach(&mut self, job: &MoveJob) -> bool {
        let _ = job;
        true
    }

    /// Returns the page faults; none for a channel that has none.
    fn page_faults(&self) -> PageFaultCounters {
        PageFaultCounters::default()
    }

    /// Prepares the sleep of the owner: the [wake descriptor](Self::wake_descriptor) becomes readable with the next end of a
    /// job. Returns false if a job has ended that was not polled: the owner does not sleep then.
    fn prepare_sleep(&mut self) -> bool;

    /// Returns the descriptor that ends the sleep of the owner; `None` if the channel must be polled.
    fn wake_descriptor(&self) -> Option<BorrowedFd<'_>>;
}
