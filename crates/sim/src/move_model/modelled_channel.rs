//! A channel of the model behind the trait of the mover: it moves the bytes of its jobs, and ends them in virtual time.
//!
//! Input: jobs of a mover. Output: the jobs, done at the time at which the engine of the model would be done. Invariant: a
//! job returns once: done, abandoned behind the steps that have a result, or taken back before an engine began it. Some steps
//! are done when a job is submitted and the rest when it has ended, as the seed draws it, unless the job may be taken back.
//!
//! # What this does not do
//! No DMA engine runs. The ends are a model's.

use super::modelled_machine::ModelledMachine;
use fastrand::Rng;
use headwater_dma::mover::policy::ChannelTraits;
use headwater_dma::mover::{ChannelRefusal, EndedJob, JobEnd, MoveChannel, MoveJob, MoveStep, RefusedJob};
use headwater_host::clock::Nanos;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;

const LINE_BYTES: usize = 64;

/// The faults of a channel. The default has none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ChannelFaults {
    /// The share of submissions that find the queue full, as one that other processes use.
    pub refused_share: f64,
    /// The share of jobs that take twice as long for each byte, because other processes use the engine.
    pub shared_share: f64,
    /// The jobs after which the channel stops for good, at one of the next looks at it.
    pub dies_after: Option<u64>,
    /// The permission to take a job back that no engine has begun. Work queues of DSA devices never return one.
    pub takes_back: TakeBack,
}

/// The permission to take a job back from a channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TakeBack {
    /// A submitted job stays until it has ended.
    #[default]
    Never,
    /// A job may be taken back until an engine begins it.
    BeforeBegin,
}

/// A channel whose engine is a model.
#[derive(Debug)]
pub struct ModelledChannel {
    machine: ModelledMachine,
    index: usize,
    traits: ChannelTraits,
    faults: ChannelFaults,
    rng: Rng,
    jobs: BTreeMap<u64, HeldJob>,
    /// Jobs that it abandoned when it died.
    abandoned: VecDeque<EndedJob>,
    taken: u64,
    is_dead: bool,
}

/// A job on the channel.
#[derive(Debug)]
struct HeldJob {
    job: MoveJob,
    /// The virtual time of its submission, in nanoseconds.
    submitted: f64,
}

impl ModelledChannel {
    /// Creates the channel with this number of a machine; `seed` draws its faults and the times of its copies.
    pub(super) fn new(
        machine: ModelledMachine,
        index: usize,
        traits: ChannelTraits,
        (faults, seed): (ChannelFaults, u64),
    ) -> Self {
        Self {
            machine,
            index,
            traits,
            faults,
            rng: Rng::with_seed(seed),
            jobs: BTreeMap::new(),
            abandoned: VecDeque::new(),
            taken: 0,
            is_dead: false,
        }
    }

    /// Stops for good: every job returns, abandoned behind some step.
    fn die(&mut self) {
        self.is_dead = true;
        let mut state = self.machine.lock();
        state.kill(self.index);
        for (token, held) in std::mem::take(&mut self.jobs) {
            let mut job = held.job;
            let left = job.steps().len() - job.results().len();
            job.run_steps(self.rng.usize(..=left));
            let elapsed = nanos(state.now() - held.submitted);
            self.abandoned.push_back(EndedJob { token, job, end: JobEnd::Abandoned, elapsed });
        }
    }

    /// Returns the time of the CPU to write what the channel left in the cache back to persistent memory.
    fn flush_ns(job: &MoveJob, flush_line_ns: f64) -> f64 {
        if !job.needs_flush() {
            return 0.0;
        }
        let lines = job.steps().iter().map(MoveStep::bytes).fold(0_u32, |sum, bytes| {
            sum.saturating_add(u32::try_from(bytes.div_ceil(LINE_BYTES)).unwrap_or(u32::MAX))
        });
        f64::from(lines) * flush_line_ns
    }
}

impl MoveChannel for ModelledChannel {
    fn traits(&self) -> ChannelTraits {
        self.traits
    }

    fn submit(&mut self, token: u64, mut job: MoveJob, now: Nanos) -> Result<(), RefusedJob> {
        if self.is_dead {
            return Err(RefusedJob { job, reason: ChannelRefusal::Dead });
        }
        let mut state = self.machine.lock();
        state.catch_up(now);
        let is_refused = self.faults.refused_share > 0.0 && self.rng.f64() < self.faults.refused_share;
        if is_refused || self.jobs.len() >= self.traits.depth {
            return Err(RefusedJob { job, reason: ChannelRefusal::Full });
        }
        let submitted = state.now();
        let is_shared = self.faults.shared_share > 0.0 && self.rng.f64() < self.faults.shared_share;
        state.submit(self.index, token, (job.steps(), if is_shared { 2.0 } else { 1.0 }));
        if self.faults.takes_back == TakeBack::Never {
            job.run_steps(self.rng.usize(..=job.steps().len()));
        }
        self.taken += 1;
        self.jobs.insert(token, HeldJob { job, submitted });
        Ok(())
    }

    fn poll(&mut self, now: Nanos) -> Option<EndedJob> {
        let is_due = self.faults.dies_after.is_some_and(|jobs| self.taken >= jobs);
        if is_due && !self.is_dead && self.rng.bool() {
            self.die();
        }
        let mut state = self.machine.lock();
        state.catch_up(now);
        if let Some((token, end)) = state.take_ended(self.index)
            && let Some(HeldJob { mut job, submitted, .. }) = self.jobs.remove(&token)
        {
            job.run_steps(usize::MAX);
            let flush = Self::flush_ns(&job, state.costs().flush_line_ns);
            state.cpu_works(flush);
            return Some(EndedJob { token, job, end: JobEnd::Done, elapsed: nanos(end + flush - submitted) });
        }
        self.abandoned.pop_front()
    }

    fn take_back(&mut self, token: u64) -> Option<MoveJob> {
        let may_take = self.faults.takes_back == TakeBack::BeforeBegin;
        let is_taken = may_take && self.machine.lock().cancel(self.index, token);
        if is_taken { self.jobs.remove(&token).map(|held| held.job) } else { None }
    }

    fn prepare_sleep(&mut self) -> bool {
        false
    }

    fn wake_descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a time in nanoseconds, positive and far below 2^53"
)]
fn nanos(span: f64) -> Nanos {
    Nanos((span + 0.5) as u64)
}
