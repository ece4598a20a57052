//! The mover: moves payload between memories, in jobs.
//!
//! Input: a [`MoveJob`]: memories that it owns, and steps (copy, copy with CRC-32C, dualcast, fill, compare, CRC-32C, flush)
//! over ranges of them. Output: the job, done, with a result a step. Invariant: a job is done as a whole, or is not begun
//! because a step of it is invalid.
//!
//! A list of copies is a scatter or a gather with one completion: a part of a value that lies in many pages is one job. What
//! is read or written by a single short copy needs no job: it calls the kernels of [`headwater_host::copy`].
//!
//! # Engines
//! The CPU does every job of a mover without channels. [`Mover::with_channels`] has some beside it: the [`policy`] decides
//! which of them does a job, or which steps of it. A [`SoftwareChannel`] is a thread; a `DsaChannel` gives jobs to the work
//! queue of a DSA device, and was not yet run on silicon. A `GpuChannel` moves them through the memory of a GPU, and was not yet
//! run on one. A simulation brings channels of its own, which take [virtual time](VirtualTime).

mod channel;
#[cfg(not(loom))]
mod channel_job;
mod counters;
#[cfg(not(loom))]
mod dsa_channel;
mod engines;
mod error;
#[cfg(not(loom))]
mod gpu_channel;
mod job;
mod job_exchange;
mod job_properties;
mod memory;
mod merge;
mod mover_clock;
pub mod policy;
mod prefault;
mod run;
mod software_channel;
mod split;
#[cfg(all(test, not(loom)))]
mod tests;

pub use channel::{ChannelRefusal, EndedJob, JobEnd, MoveChannel, PageFaultCounters, RefusedJob};
pub use counters::{ChannelCounters, LARGE_JOB_BYTES, MoverCounters};
#[cfg(not(loom))]
pub use dsa_channel::{DsaChannel, DsaChannelError, DsaConfig, DsaCounters, DsaCountersReader};
pub use error::{InvalidStep, JobNotStarted, StartRefusal};
#[cfg(not(loom))]
pub use gpu_channel::{GpuChannel, GpuChannelError, GpuConfig, GpuCounters, GpuCountersReader};
pub use job::{MemoryPlace, MemoryRange, MoveJob, MoveStep, StepResult};
pub use job_properties::{CacheIntent, MemoryNodes, MoveDurability, SourceKind, StreamingBorder};
pub use memory::MoveMemory;
pub use mover_clock::VirtualTime;
pub use software_channel::{ChannelStartError, SoftwareChannel};

use engines::MoveEngines;
use headwater_host::clock::{Clock, Nanos};
use mover_clock::MoverClock;
use policy::{MovePolicy, PolicyConfig};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// The most jobs of a mover that were started and not taken.
pub const STARTED_JOBS_MAX: usize = 1_024;

/// A mover of payload. A device has one.
#[derive(Debug, Default)]
pub struct Mover {
    counters: MoverCounters,
    streaming_border: StreamingBorder,
    /// Channels; `None` if the CPU does everything.
    engines: Option<Box<MoveEngines>>,
    /// Jobs that were started without channels.
    done: Vec<(u64, MoveJob)>,
    next_token: u64,
    /// Its address is the identity of the mover.
    identity: Arc<()>,
}

/// A started job. Its mover returns the job to it.
#[derive(Debug)]
#[must_use = "the memories of a started job return only to its ticket"]
pub struct MoveTicket {
    mover: Arc<()>,
    token: u64,
}

/// The number of a ticket, unique among those of its mover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TicketNumber(u64);

impl MoveTicket {
    /// Returns the number by which [`Mover::poll_any`] names the ticket.
    #[must_use]
    pub const fn number(&self) -> TicketNumber {
        TicketNumber(self.token)
    }
}

impl Mover {
    /// Creates a mover with channels, of which the policy uses at most [`policy::CHANNELS_MAX`]. `clock` measures what
    /// engines take, for the policy.
    #[must_use]
    pub fn with_channels(channels: Vec<Box<dyn MoveChannel>>, config: PolicyConfig, clock: Clock) -> Self {
        let has_channels = !channels.is_empty();
        let clock = MoverClock::Kernel(clock);
        let engines = has_channels.then(|| Box::new(MoveEngines::new(channels, config, clock)));
        Self { engines, ..Self::default() }
    }

    /// Creates a mover whose engines take virtual time: the mover of a simulation, whose channels are models. It moves the
    /// bytes as every mover does, and never sleeps. Without channels only the CPU's own time passes.
    #[must_use]
    pub fn with_virtual_time(
        channels: Vec<Box<dyn MoveChannel>>,
        config: PolicyConfig,
        time: Box<dyn VirtualTime>,
    ) -> Self {
        let engines = Some(Box::new(MoveEngines::new(channels, config, MoverClock::Virtual(time))));
        Self { engines, ..Self::default() }
    }

    /// Sets the length from which its jobs may pass the cache by, as a calibration of the machine found it.
    #[must_use]
    pub fn with_streaming_border(mut self, border: StreamingBorder) -> Self {
        self.streaming_border = border;
        self
    }

    /// Returns the length from which its jobs may pass the cache by.
    #[must_use]
    pub fn streaming_border(&self) -> StreamingBorder {
        self.streaming_border
    }

    /// Does a job, and returns when it is done. With channels, steps of it run on several engines at once where none needs
    /// what another writes. Ranges of client memory count as apart, also if the client gave the same bytes twice.
    ///
    /// # Errors
    /// [`InvalidStep`] if a step names what the job does not have, or may not write; nothing was done.
    pub fn run(&mut self, job: &mut MoveJob) -> Result<(), InvalidStep> {
        job.begin(self.streaming_border);
        job.check()?;
        self.counters.count(job.bytes());
        match &mut self.engines {
            None => run::run(job),
            Some(engines) => engines.run(job),
        }
        Ok(())
    }

    /// Starts a job, as a whole, on the engine that the policy chooses. The CPU does its jobs before this returns. A job whose
    /// ticket is dropped stays with the mover.
    ///
    /// # Errors
    /// [`JobNotStarted`] returns the job if a step cannot be run, or if [`STARTED_JOBS_MAX`] jobs were started and not taken;
    /// nothing was done.
    pub fn start(&mut self, mut job: MoveJob) -> Result<MoveTicket, JobNotStarted> {
        let untaken = self.engines.as_ref().map_or(self.done.len(), |engines| engines.untaken());
        job.begin(self.streaming_border);
        let refusal = if untaken >= STARTED_JOBS_MAX {
            Err(StartRefusal::Full { max: STARTED_JOBS_MAX })
        } else {
            job.check().map_err(StartRefusal::Invalid)
        };
        if let Err(reason) = refusal {
            return Err(JobNotStarted { job: Box::new(job), reason });
        }
        self.counters.count(job.bytes());
        let token = if let Some(engines) = &mut self.engines {
            engines.start(job)
        } else {
            run::run(&mut job);
            self.next_token += 1;
            self.done.push((self.next_token, job));
            self.next_token
        };
        Ok(MoveTicket { mover: Arc::clone(&self.identity), token })
    }

    /// Returns a started job if it is done; each once. Never blocks. A ticket of another mover has no job here.
    pub fn poll(&mut self, ticket: &MoveTicket) -> Option<MoveJob> {
        self.wait(ticket, Nanos::ZERO)
    }

    /// Returns a started job when it is done; `None` if it is not after `longest`, or if the ticket has no job here. Polls for
    /// a short time, then sleeps.
    pub fn wait(&mut self, ticket: &MoveTicket, longest: Nanos) -> Option<MoveJob> {
        if !Arc::ptr_eq(&ticket.mover, &self.identity) {
            return None;
        }
        if let Some(engines) = &mut self.engines {
            return engines.wait(ticket.token, longest);
        }
        let at = self.done.iter().position(|(done, _)| *done == ticket.token)?;
        Some(self.done.swap_remove(at).1)
    }

    /// Returns any started job that is done, with the number of its ticket; each once, in no order. Never blocks. For
    /// an owner that serves many tickets, and for jobs whose tickets were dropped.
    pub fn poll_any(&mut self) -> Option<(TicketNumber, MoveJob)> {
        let (token, job) = match &mut self.engines {
            Some(engines) => engines.take_any()?,
            None if self.done.is_empty() => return None,
            None => self.done.remove(0),
        };
        Some((TicketNumber(token), job))
    }

    /// Waits until every started job has ended, for at most `longest`, and returns true if all have. The jobs stay with the mover
    /// until they are taken. Polls for a short time, then sleeps.
    pub fn drain(&mut self, longest: Nanos) -> bool {
        self.engines.as_mut().is_none_or(|engines| engines.drain(longest))
    }

    /// Prepares a sleep on the descriptors of all channels, each of which becomes readable when a job of it ends. Returns
    /// `None` if a job has ended that was not taken, or a channel must be polled: the owner does not sleep then.
    pub fn prepare_sleep(&mut self) -> Option<Vec<BorrowedFd<'_>>> {
        match &mut self.engines {
            Some(engines) if engines.has_ended() => None,
            Some(engines) => engines.prepare_sleep(),
            None => self.done.is_empty().then(Vec::new),
        }
    }

    /// Returns true if it has channels. Without any the CPU does every job, also a started one before the start returns.
    #[must_use]
    pub fn has_channels(&self) -> bool {
        self.engines.as_ref().is_some_and(|engines| engines.has_channels())
    }

    /// Takes what the channels have ended, so that the next start knows how busy each is. The jobs wait to be polled. Never
    /// blocks.
    pub fn collect_ended(&mut self) {
        if let Some(engines) = &mut self.engines {
            engines.collect_all();
        }
    }

    /// Returns the descriptors of the channels that have one. They stay the same, and are readable at the ends that
    /// [`prepare_sleep`](Self::prepare_sleep) says.
    pub fn wake_descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.engines.iter().flat_map(|engines| engines.wake_descriptors()).flatten()
    }

    /// Returns true if a channel has no descriptor: jobs on it are only found by polling.
    #[must_use]
    pub fn must_be_polled(&self) -> bool {
        self.engines.iter().flat_map(|engines| engines.wake_descriptors()).any(|wake| wake.is_none())
    }

    /// Returns the counters of the jobs that were started.
    #[must_use]
    pub fn counters(&self) -> MoverCounters {
        self.counters
    }

    /// Returns the counters of the channels; zeroes without any.
    #[must_use]
    pub fn channel_counters(&self) -> ChannelCounters {
        self.engines.as_ref().map_or_else(ChannelCounters::default, |engines| engines.counters())
    }

    /// Returns the policy over the channels; `None` without any.
    #[must_use]
    pub fn policy(&self) -> Option<&MovePolicy> {
        self.engines.as_ref().map(|engines| engines.policy())
    }

    /// Returns the policy, to freeze it or to resume it.
    pub fn policy_mut(&mut self) -> Option<&mut MovePolicy> {
        self.engines.as_mut().map(|engines| engines.policy_mut())
    }
}
