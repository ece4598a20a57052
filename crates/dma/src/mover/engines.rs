//! The engines of a mover: the CPU of its owner, and channels beside it.
//!
//! ```text
//!  run:    policy --> parts to channels, the CPU does its own --> each part: ended | taken back, done by the CPU --> joined
//!  start:  policy --> a channel | the CPU at once --> ended --poll or wait--> owner
//! ```
//! Input: checked jobs. Output: the jobs, done. Invariant: every step is done exactly once, and what a channel refuses,
//! abandons or does not begin in time the CPU does.

use super::MoveTicket;
use super::channel::{ChannelRefusal, EndedJob, JobEnd, MoveChannel};
use super::counters::ChannelCounters;
use super::job::{MoveDurability, MoveJob};
use super::policy::{
    ChannelLoad, ChannelTraits, DecisionReason, JobSplit, MoveDirection, MoveEngine, MoveObservation,
    MovePlan, MovePolicy, PolicyConfig, WorkShape,
};
use super::run::run;
use super::split::JobRest;
use headwater_host::clock::{Clock, Nanos};
use rustix::event::{PollFd, PollFlags, poll};

/// The least time that a channel gets to begin a part, before the CPU takes it back.
const BEGIN_MIN: Nanos = Nanos::from_micros(2);
/// Times that the owner looks for the end of a part before it lets other threads of its core run.
const LOOKS_BEFORE_YIELD: u32 = 1_000;
/// The time that a waiting owner polls before it sleeps.
const SPIN_BEFORE_SLEEP: Nanos = Nanos::from_micros(20);

/// The jobs that a dead channel seems to have in flight: more than the depth of any.
const DEAD_JOBS: usize = usize::MAX / 2;

/// The channels of a mover, and the policy over them.
#[derive(Debug)]
pub(super) struct MoveEngines {
    channels: Vec<Box<dyn MoveChannel>>,
    loads: Vec<ChannelLoad>,
    policy: MovePolicy,
    clock: Clock,
    next_token: u64,
    /// Jobs that were started and not ended.
    started: Vec<StartedJob>,
    /// Jobs that have ended and were not taken.
    ended: Vec<(u64, MoveJob)>,
    counters: ChannelCounters,
}

#[derive(Debug)]
struct StartedJob {
    token: u64,
    channel: usize,
    bytes: u64,
}

/// A part of a job on a channel.
#[derive(Debug)]
struct PartInFlight {
    token: u64,
    channel: usize,
    bytes: u64,
    ahead: ChannelLoad,
    rest: JobRest,
}

impl MoveEngines {
    pub(super) fn new(channels: Vec<Box<dyn MoveChannel>>, config: PolicyConfig, clock: Clock) -> Self {
        let traits: Vec<ChannelTraits> = channels.iter().map(|channel| channel.traits()).collect();
        Self {
            loads: vec![ChannelLoad::default(); channels.len()],
            policy: MovePolicy::new(&traits, config),
            channels,
            clock,
            next_token: 0,
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
        self.counters
    }

    /// Does a job, parts of it on channels, and returns when all of it is done.
    pub(super) fn run(&mut self, job: &mut MoveJob) {
        let split = if job.may_split() { JobSplit::Allowed } else { JobSplit::Forbidden };
        let shape = shape_of(job, split);
        let plan = self.policy.decide(&shape, &self.loads);
        if plan.reason() == DecisionReason::BelowThreshold {
            return run(job);
        }
        let begun = self.clock.now();
        let parts = self.hand_out(job, &plan, begun);
        let bytes = job.bytes() as u64;
        run(job);
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
            let (token, channel) = (part.token, part.channel);
            let (done, elapsed) = self.finish(token, channel, begun.after(patience), begun);
            self.unload(channel, part.bytes);
            let load = (part.ahead, plan.together());
            self.observe(&shape, MoveEngine::Channel(channel), (part.bytes, elapsed), load);
            job.join(done, part.rest);
        }
    }

    /// Gives the parts of a plan to their channels, the last steps first. The job keeps what the CPU does.
    fn hand_out(&mut self, job: &mut MoveJob, plan: &MovePlan, now: Nanos) -> Vec<PartInFlight> {
        let mut parts = Vec::new();
        let mut before = job.bytes() as u64;
        let shares: Vec<(usize, u64)> = plan.channel_parts().collect();
        for (channel, share) in shares.into_iter().rev() {
            before = before.saturating_sub(share);
            let at = step_at(job, before);
            if at == job.steps().len() {
                continue;
            }
            let Some((part, rest)) = job.split_off(at) else {
                self.counters.not_split += 1;
                continue;
            };
            let (token, bytes, ahead) = (self.token(), part.bytes() as u64, self.loads[channel]);
            match self.channels[channel].submit(token, part, now) {
                Ok(()) => {
                    self.load(channel, bytes);
                    parts.push(PartInFlight { token, channel, bytes, ahead, rest });
                }
                Err(refused) => {
                    self.note_refusal(channel, refused.reason);
                    job.join(refused.job, rest);
                }
            }
        }
        parts
    }

    /// Notes that a channel took no job. A dead one counts as busy from now on, so that the policy gives it no more.
    fn note_refusal(&mut self, channel: usize, reason: ChannelRefusal) {
        self.counters.refused += 1;
        if reason == ChannelRefusal::Dead {
            self.loads[channel].jobs = DEAD_JOBS;
        }
    }

    /// Returns a part when it is done, and the time that it took from `begun` on. One that its channel has not begun by `until`
    /// the CPU does.
    fn finish(&mut self, token: u64, channel: usize, until: Nanos, begun: Nanos) -> (MoveJob, Nanos) {
        let mut looks = 0_u32;
        loop {
            self.collect(channel);
            if let Some(at) = self.ended.iter().position(|(ended, _)| *ended == token) {
                let (_, job) = self.ended.swap_remove(at);
                return (job, self.clock.now().since(begun));
            }
            if self.clock.now() >= until
                && let Some(mut job) = self.channels[channel].take_back(token)
            {
                self.counters.taken_back += 1;
                run(&mut job);
                return (job, self.clock.now().since(begun));
            }
            looks += 1;
            if looks.is_multiple_of(LOOKS_BEFORE_YIELD) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Starts a job on the engine that the policy chooses. The CPU does its jobs at once.
    pub(super) fn start(&mut self, mut job: MoveJob) -> MoveTicket {
        let token = self.token();
        let shape = shape_of(&job, JobSplit::Forbidden);
        let plan = self.policy.decide(&shape, &self.loads);
        let begun = self.clock.now();
        let channel = plan.channel_parts().next().map(|(channel, _)| channel);
        if let Some(channel) = channel {
            let bytes = job.bytes() as u64;
            match self.channels[channel].submit(token, job, begun) {
                Ok(()) => {
                    self.load(channel, bytes);
                    self.started.push(StartedJob { token, channel, bytes });
                    return MoveTicket(token);
                }
                Err(refused) => {
                    self.note_refusal(channel, refused.reason);
                    job = refused.job;
                }
            }
        }
        run(&mut job);
        let elapsed = self.clock.now().since(begun);
        self.observe(
            &shape,
            MoveEngine::Cpu,
            (shape.bytes, elapsed),
            (ChannelLoad::default(), plan.together()),
        );
        self.ended.push((token, job));
        MoveTicket(token)
    }

    /// Returns a started job if it has ended.
    pub(super) fn take(&mut self, MoveTicket(token): &MoveTicket) -> Option<MoveJob> {
        if let Some(started) = self.started.iter().find(|started| started.token == *token) {
            self.collect(started.channel);
        }
        let at = self.ended.iter().position(|(ended, _)| ended == token)?;
        Some(self.ended.swap_remove(at).1)
    }

    /// Returns a started job when it has ended, at the latest after `longest`: polls for a while, then sleeps.
    pub(super) fn wait(&mut self, ticket: &MoveTicket, longest: Nanos) -> Option<MoveJob> {
        let begun = self.clock.now();
        loop {
            if let Some(job) = self.take(ticket) {
                return Some(job);
            }
            let waited = self.clock.now().since(begun);
            let channel = self.started.iter().find(|started| started.token == ticket.0)?.channel;
            if waited >= longest {
                return None;
            }
            if waited < SPIN_BEFORE_SLEEP || !self.channels[channel].prepare_sleep() {
                std::hint::spin_loop();
                continue;
            }
            if let Some(wake) = self.channels[channel].wake_descriptor() {
                let timeout = longest.since(waited).to_timespec();
                // An error is a signal, or a kernel without memory: the loop looks again.
                let _ = poll(&mut [PollFd::from_borrowed_fd(wake, PollFlags::IN)], Some(&timeout));
            }
        }
    }

    /// Returns the channels, for a sleep on their descriptors.
    pub(super) fn channels_mut(&mut self) -> &mut [Box<dyn MoveChannel>] {
        &mut self.channels
    }

    /// Takes what a channel ended, and does what it abandoned.
    fn collect(&mut self, channel: usize) {
        while let Some(EndedJob { token, mut job, end, elapsed }) =
            self.channels[channel].poll(self.clock.now())
        {
            if end == JobEnd::Abandoned {
                self.counters.abandoned += 1;
                run(&mut job);
            }
            if let Some(at) = self.started.iter().position(|started| started.token == token) {
                let started = self.started.swap_remove(at);
                self.unload(channel, started.bytes);
                let shape = shape_of(&job, JobSplit::Forbidden);
                let (load, engine) = (self.loads[channel], MoveEngine::Channel(channel));
                self.observe(&shape, engine, (started.bytes, elapsed), (load, 1));
            }
            self.ended.push((token, job));
        }
    }

    fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    fn load(&mut self, channel: usize, bytes: u64) {
        self.loads[channel].jobs += 1;
        self.loads[channel].bytes += bytes;
        self.counters.channel_jobs += 1;
        self.counters.channel_bytes += bytes;
    }

    fn unload(&mut self, channel: usize, bytes: u64) {
        self.loads[channel].jobs -= 1;
        self.loads[channel].bytes -= bytes;
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
    let direction = match job.durability {
        MoveDurability::Visible => MoveDirection::BetweenDram,
        MoveDurability::Persistent => MoveDirection::ToPersistent,
    };
    let copy = WorkShape::copy(job.bytes() as u64);
    let operation = job.steps().first().map_or(copy.operation, super::MoveStep::operation);
    WorkShape { operation, direction, split, ..copy }
}

/// Returns the number of the step whose begin is closest to `bytes` bytes of the job.
fn step_at(job: &MoveJob, bytes: u64) -> usize {
    let mut before = 0;
    for (nth, step) in job.steps().iter().enumerate() {
        let after = before + step.bytes() as u64;
        if after > bytes {
            return if bytes - before <= after - bytes { nth } else { nth + 1 };
        }
        before = after;
    }
    job.steps().len()
}
