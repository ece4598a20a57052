//! The engines of a mover: the CPU of its owner, and channels beside it.
//!
//! ```text
//!  run:    policy --> parts to channels, the CPU does its own --> each part: ended | taken back, done by the CPU --> joined
//!  start:  policy --> a channel | the CPU at once --> ended --poll or wait--> owner
//! ```
//! Input: checked jobs. Output: the jobs, done. Invariant: every step is done exactly once, and what a channel refuses,
//! abandons or does not begin in time the CPU does.

mod ended_jobs;
mod handed_parts;

use super::channel::{ChannelRefusal, EndedJob, JobEnd, MoveChannel, RefusedJob};
use super::counters::ChannelCounters;
use super::job::MoveJob;
use super::job_properties::MoveDurability;
use super::mover_clock::MoverClock;
use super::policy::{
    CacheWrites, ChannelLoad, ChannelTraits, DecisionReason, JobSplit, MoveEngine, MoveObservation, MovePlan,
    MovePolicy, OwnerState, PolicyConfig, WorkShape,
};
use handed_parts::{HandedPart, PartInFlight};
use headwater_host::clock::Nanos;
use std::os::fd::BorrowedFd;

/// The least time that a channel gets to begin a part, before the CPU takes it back.
const BEGIN_MIN: Nanos = Nanos::from_micros(2);
/// Times that the owner looks for the end of a part before it lets other threads of its core run.
const LOOKS_BEFORE_YIELD: u32 = 1_000;
/// Decisions in which a channel gets nothing after it held up its owner: its thread has no core of its own now.
const REST_DECISIONS: u32 = 512;
/// A part that ends after so many times the time that its channel had to begin it held up the owner.
const LATE_FACTOR: u64 = 8;
/// The rest of a channel that has died.
const REST_FOR_EVER: u32 = u32::MAX;

/// The channels of a mover, and the policy over them.
#[derive(Debug)]
pub(super) struct MoveEngines {
    channels: Vec<UsedChannel>,
    /// The loads of the channels as the policy sees them.
    loads: Vec<ChannelLoad>,
    policy: MovePolicy,
    clock: MoverClock,
    next_token: u64,
    /// The time of the last job that was run.
    last_run: Nanos,
    /// Jobs that were started and not ended.
    started: Vec<StartedJob>,
    /// Jobs and parts that have ended and were not taken.
    ended: Vec<EndedMove>,
    counters: ChannelCounters,
}

/// A channel, and its use by this mover.
#[derive(Debug)]
struct UsedChannel {
    channel: Box<dyn MoveChannel>,
    load: ChannelLoad,
    /// The decisions in which it gets nothing.
    rest: u32,
}

/// A job that was started on a channel.
#[derive(Debug)]
struct StartedJob {
    token: u64,
    channel: usize,
    shape: WorkShape,
    ahead: ChannelLoad,
    together: usize,
}

/// A job or a part that has ended.
#[derive(Debug)]
struct EndedMove {
    token: u64,
    job: MoveJob,
    /// The time from its submission to its end.
    elapsed: Nanos,
}

impl MoveEngines {
    pub(super) fn new(channels: Vec<Box<dyn MoveChannel>>, config: PolicyConfig, clock: MoverClock) -> Self {
        let traits: Vec<ChannelTraits> = channels.iter().map(|channel| channel.traits()).collect();
        let used = |channel| UsedChannel { channel, load: ChannelLoad::default(), rest: 0 };
        Self {
            loads: Vec::with_capacity(channels.len()),
            channels: channels.into_iter().map(used).collect(),
            policy: MovePolicy::new(&traits, config),
            clock,
            next_token: 0,
            last_run: Nanos::ZERO,
            started: Vec::new(),
            ended: Vec::new(),
            counters: ChannelCounters::default(),
        }
    }

    pub(super) fn policy(&self) -> &MovePolicy {
        &self.policy
    }

    pub(super) fn policy_mut(&mut self) -> &mut MovePolicy {
        &mut self.policy
    }

    pub(super) fn counters(&self) -> ChannelCounters {
        let faults = self.channels.iter().map(|used| used.channel.page_faults());
        faults.fold(self.counters, |sum, channel| ChannelCounters {
            page_faults: sum.page_faults + channel.faults,
            finished_bytes: sum.finished_bytes + channel.finished_bytes,
            ..sum
        })
    }

    /// Returns true if a job is too short for a decision: the CPU does it, without a question to channels or a read of the clock.
    #[inline]
    fn is_short(&self, job: &MoveJob) -> bool {
        self.policy.is_short(job.source_kind.direction(job.durability), job.bytes() as u64)
    }

    /// Does a job, parts of it on channels, and returns when all of it is done.
    pub(super) fn run(&mut self, job: &mut MoveJob) {
        if self.is_short(job) {
            return self.clock.run_by_cpu(job);
        }
        let mut shape = shape_of(job, JobSplit::Forbidden);
        if job.may_split() {
            shape.split = JobSplit::Allowed;
        }
        let begun = self.clock.now();
        shape.time_left = job.deadline.map(|deadline| deadline.since(begun));
        let apart = begun.since(std::mem::replace(&mut self.last_run, begun));
        let plan = self.decide(&shape, job, |channel| {
            let is_awake = channel.is_awake();
            if !is_awake {
                channel.rouse(apart);
            }
            is_awake
        });
        let mut parts = self.hand_out(job, &plan, shape.split, begun);
        let bytes = self.run_kept(job, &mut parts);
        let elapsed = self.clock.now().since(begun);
        if bytes > 0 {
            self.observe(
                &shape,
                MoveEngine::Cpu,
                (bytes, elapsed),
                (ChannelLoad::default(), plan.together()),
            );
        }
        let patience = BEGIN_MIN.max(Nanos(plan.predicted().0.saturating_mul(2)));
        for part in parts.into_iter().rev() {
            let part = match part {
                HandedPart::OnChannel(part) => part,
                HandedPart::Kept { job: done, rest } => {
                    job.join(done, rest);
                    continue;
                }
            };
            let begins_within = self.begins_within(&shape, &plan, (part.bytes, begun), patience);
            let (EndedMove { job: done, elapsed, .. }, engine) = self.finish(&part, begun, begins_within);
            self.unload(part.channel, part.bytes);
            // A part that was taken back for the deadline says nothing of the time of its channel.
            if engine != MoveEngine::Cpu || begins_within >= patience {
                let load = (part.ahead, plan.together());
                self.observe(&shape, MoveEngine::Channel(part.channel), (part.bytes, elapsed), load);
            }
            if elapsed.0 > patience.0.saturating_mul(LATE_FACTOR) {
                self.counters.late += 1;
                let rest = &mut self.channels[part.channel].rest;
                *rest = (*rest).max(REST_DECISIONS);
            }
            job.join(done, part.rest);
        }
    }

    /// Returns the time from the begin of a job within which a channel must begin a part. A part that the CPU can still end
    /// before the deadline is taken back while it can; one that it cannot stays with the engine that is expected to end first.
    fn begins_within(
        &self,
        shape: &WorkShape,
        plan: &MovePlan,
        (bytes, begun): (u64, Nanos),
        patience: Nanos,
    ) -> Nanos {
        if plan.reason() == DecisionReason::DeadlineMissed {
            return patience;
        }
        let Some(left) = shape.time_left else { return patience };
        match self.policy.cpu_time(&WorkShape { bytes, ..*shape }) {
            Some(cpu) if self.clock.now().since(begun).after(cpu) <= left => patience.min(left.since(cpu)),
            _ => patience,
        }
    }

    /// Asks the policy. A channel that rests, or is not one for this job, gets nothing.
    fn decide(
        &mut self,
        shape: &WorkShape,
        job: &MoveJob,
        mut may_use: impl FnMut(&mut Box<dyn MoveChannel>) -> bool,
    ) -> MovePlan {
        self.loads.clear();
        for UsedChannel { channel, load, rest } in &mut self.channels {
            let can_reach = *rest > 0 || channel.can_reach(job);
            self.counters.unreachable += u64::from(!can_reach);
            let is_usable = *rest == 0 && can_reach && may_use(channel);
            self.loads.push(if is_usable { *load } else { ChannelLoad::UNAVAILABLE });
            if *rest != REST_FOR_EVER {
                *rest = rest.saturating_sub(1);
            }
        }
        self.policy.decide(shape, &self.loads)
    }

    /// Submits a job to a channel of its plan. Returns the job if the channel does not take it.
    fn submit(
        &mut self,
        channel: usize,
        mut job: MoveJob,
        plan: &MovePlan,
        (token, now): (u64, Nanos),
    ) -> Option<MoveJob> {
        job.skips_flush = !plan.needs_flush(channel);
        let (bytes, durability) = (job.bytes() as u64, job.durability);
        let merged_steps = job.merge_steps() as u64;
        match self.channels[channel].channel.submit(token, job, now) {
            Ok(()) => {
                self.load(channel, bytes);
                self.counters.merged_steps += merged_steps;
                if durability == MoveDurability::Persistent {
                    self.count_flush(channel);
                }
                None
            }
            Err(RefusedJob { mut job, reason }) => {
                self.note_refusal(channel, reason);
                job.restore_steps();
                Some(job)
            }
        }
    }

    /// Counts a persistent job of a channel by the reason that it is flushed, or is not.
    fn count_flush(&mut self, channel: usize) {
        let count = match self.policy.cache_writes(channel) {
            CacheWrites::Allocating => &mut self.counters.flushed_allocating,
            CacheWrites::Unknown => &mut self.counters.flushed_unknown,
            CacheWrites::NonAllocating => &mut self.counters.not_flushed,
        };
        *count += 1;
    }

    /// Notes that a channel took no job. A dead one gets none from now on.
    fn note_refusal(&mut self, channel: usize, reason: ChannelRefusal) {
        self.counters.refused += 1;
        if reason == ChannelRefusal::Dead {
            self.channels[channel].rest = REST_FOR_EVER;
        }
    }

    /// Returns a part when it is done, and the engine that did it. One that its channel has not begun in time the CPU does.
    fn finish(&mut self, part: &PartInFlight, begun: Nanos, begins_within: Nanos) -> (EndedMove, MoveEngine) {
        let PartInFlight { token, channel, .. } = *part;
        let mut looks = 0_u32;
        loop {
            self.collect(channel);
            if let Some(at) = self.ended.iter().position(|ended| ended.token == token) {
                return (self.ended.swap_remove(at), MoveEngine::Channel(channel));
            }
            if self.clock.now() >= begun.after(begins_within)
                && let Some(mut job) = self.channels[channel].channel.take_back(token)
            {
                self.counters.taken_back += 1;
                job.restore_steps();
                self.clock.run_by_cpu(&mut job);
                let elapsed = self.clock.now().since(begun);
                return (EndedMove { token, job, elapsed }, MoveEngine::Cpu);
            }
            looks += 1;
            if looks.is_multiple_of(LOOKS_BEFORE_YIELD) {
                std::thread::yield_now();
            } else {
                self.clock.wait();
            }
        }
    }

    /// Starts a job on the engine that the policy chooses, and returns its token. The CPU does its jobs at once.
    pub(super) fn start(&mut self, mut job: MoveJob) -> u64 {
        let token = self.token();
        if self.is_short(&job) {
            self.clock.run_by_cpu(&mut job);
            self.ended.push(EndedMove { token, job, elapsed: Nanos::ZERO });
            return token;
        }
        let mut shape = shape_of(&job, JobSplit::Forbidden);
        shape.owner = OwnerState::Working;
        shape.time_left = job.deadline.map(|deadline| deadline.since(self.clock.now()));
        let plan = self.decide(&shape, &job, |_| true);
        let begun = self.clock.now();
        let channel = plan.channel_parts().next().map(|(channel, _)| channel);
        if let Some(channel) = channel {
            let (ahead, together) = (self.channels[channel].load, plan.together());
            let Some(refused) = self.submit(channel, job, &plan, (token, begun)) else {
                self.started.push(StartedJob { token, channel, shape, ahead, together });
                return token;
            };
            job = refused;
        }
        self.clock.run_by_cpu(&mut job);
        let elapsed = self.clock.now().since(begun);
        let load = (ChannelLoad::default(), plan.together());
        self.observe(&shape, MoveEngine::Cpu, (shape.bytes, elapsed), load);
        self.ended.push(EndedMove { token, job, elapsed });
        token
    }

    /// Returns the jobs that were started and not taken.
    pub(super) fn untaken(&self) -> usize {
        self.started.len() + self.ended.len()
    }

    /// Returns true if it has channels.
    pub(super) fn has_channels(&self) -> bool {
        !self.channels.is_empty()
    }

    /// Returns the descriptor of each channel; `None` for one that must be polled.
    pub(super) fn wake_descriptors(&self) -> impl Iterator<Item = Option<BorrowedFd<'_>>> {
        self.channels.iter().map(|used| used.channel.wake_descriptor())
    }

    /// Takes what a channel ended, and does what it abandoned.
    fn collect(&mut self, channel: usize) {
        while let Some(ended) = self.channels[channel].channel.poll(self.clock.now()) {
            let EndedJob { token, mut job, end, mut elapsed } = ended;
            job.restore_steps();
            if end == JobEnd::Abandoned {
                self.counters.abandoned += 1;
                let begun = self.clock.now();
                self.clock.run_by_cpu(&mut job);
                elapsed = elapsed.after(self.clock.now().since(begun));
            }
            if let Some(at) = self.started.iter().position(|started| started.token == token) {
                let StartedJob { shape, ahead, together, .. } = self.started.swap_remove(at);
                self.unload(channel, shape.bytes);
                let engine = MoveEngine::Channel(channel);
                self.observe(&shape, engine, (shape.bytes, elapsed), (ahead, together));
            }
            self.ended.push(EndedMove { token, job, elapsed });
        }
    }

    fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    fn load(&mut self, channel: usize, bytes: u64) {
        let load = &mut self.channels[channel].load;
        (load.jobs, load.bytes) = (load.jobs + 1, load.bytes + bytes);
        self.counters.channel_jobs += 1;
        self.counters.channel_bytes += bytes;
    }

    fn unload(&mut self, channel: usize, bytes: u64) {
        let load = &mut self.channels[channel].load;
        (load.jobs, load.bytes) = (load.jobs - 1, load.bytes - bytes);
    }

    fn observe(
        &mut self,
        shape: &WorkShape,
        engine: MoveEngine,
        (bytes, elapsed): (u64, Nanos),
        (ahead, together): (ChannelLoad, usize),
    ) {
        self.policy.observe(&MoveObservation { shape: *shape, engine, bytes, together, ahead, elapsed });
    }
}

/// Returns what the policy decides about. The operation is that of the first step: the steps of a job are alike, except for
/// short ones at its ends.
fn shape_of(job: &MoveJob, split: JobSplit) -> WorkShape {
    let direction = job.source_kind.direction(job.durability);
    let copy = WorkShape::copy(job.bytes() as u64);
    let operation = job.steps().first().map_or(copy.operation, super::MoveStep::operation);
    let (source, target) = (job.nodes.source, job.nodes.target);
    WorkShape { operation, direction, source, target, split, ..copy }
}
