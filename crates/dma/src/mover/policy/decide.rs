//! One decision: the ways to do a job, the fastest of them, and the bytes of each engine.
//!
//! Input: a job, the load of the channels, and what was learned. Output: a plan. Invariant: a channel with as many jobs as
//! its depth gets none; a job with a deadline explores nothing.

use super::channel_traits::{CHANNELS_MAX, ChannelLoad, ChannelTraits};
use super::config::PolicyConfig;
use super::engine_mix::{EngineMix, EngineTime, MIXES_MAX, common_end, company_of};
use super::learned_class::{CPU, LearnedClass, as_float, size_class};
use super::plan::{DecisionReason, MovePlan};
use super::work_shape::{JobSplit, OwnerState, WorkShape};
use headwater_host::clock::Nanos;

/// Parts of jobs from this length on are whole pages, those of shorter ones whole cache lines.
const PAGED_FROM: u64 = 256 << 10;
const PAGE_BYTES: u64 = 4_096;
const LINE_BYTES: u64 = 64;
/// Decisions between two explorations.
const EXPLORE_EVERY: u64 = 8;
/// A way is explored if it was not taken for so many decisions, a channel if it was not observed for so many.
const MIX_STALE_AFTER: u64 = 48;
const CHANNEL_STALE_AFTER: u64 = 96;
/// The most jobs whose time exploration saves up.
const CREDIT_MAX: f64 = 4.0;

/// The decision about one job.
pub(super) struct Decision<'a> {
    shape: &'a WorkShape,
    loads: &'a [ChannelLoad],
    channels: &'a [ChannelTraits],
    config: &'a PolicyConfig,
    bytes: f64,
    /// The channels that may be used, the fastest for this job first.
    order: [usize; CHANNELS_MAX],
    usable: usize,
    /// Channels with jobs in flight: their bytes take a part of the memory's bandwidth.
    busy: usize,
    /// The engines of the way that is looked at.
    times: [EngineTime; CHANNELS_MAX + 1],
}

impl<'a> Decision<'a> {
    pub(super) fn new(
        shape: &'a WorkShape,
        loads: &'a [ChannelLoad],
        channels: &'a [ChannelTraits],
        config: &'a PolicyConfig,
    ) -> Self {
        let (order, bytes) = ([0; CHANNELS_MAX], as_float(shape.bytes));
        let busy = loads
            .iter()
            .take(channels.len())
            .filter(|load| load.jobs > 0 && **load != ChannelLoad::UNAVAILABLE)
            .count();
        Self {
            shape,
            loads,
            channels,
            config,
            bytes,
            order,
            usable: 0,
            busy,
            times: [EngineTime::default(); CHANNELS_MAX + 1],
        }
    }

    pub(super) fn run(&mut self, learned: &mut LearnedClass, is_frozen: bool) -> MovePlan {
        if !is_frozen {
            learned.tick += 1;
        }
        self.order_channels(learned);
        if self.usable == 0 {
            let mut plan = MovePlan::cpu(self.shape.bytes, Nanos(0), DecisionReason::AllBusy);
            plan.together = self.together(EngineMix::CPU);
            return plan;
        }
        let mut nanos = [f64::INFINITY; MIXES_MAX];
        let (mix, end) = self.fastest(learned, &mut nanos);
        if let Some(left) = self.shape.time_left {
            let (in_time, reason) = self.in_time(learned, &nanos, (mix, as_float(left.0)));
            if !is_frozen {
                // The ways of jobs without a deadline depend on these: a way that such a job took is not stale. One that
                // only a deadline chose is not the way of its length.
                learned.mix_tick[in_time.index()] = learned.tick;
                if in_time == mix {
                    learned.mix_of_size[size_class(self.shape.bytes)] = mix.index_byte();
                }
            }
            return self.plan(learned, in_time, nanos[in_time.index()], reason);
        }
        if is_frozen {
            return self.plan(learned, mix, end, reason_of(mix));
        }
        learned.mix_of_size[size_class(self.shape.bytes)] = mix.index_byte();
        learned.credit = (learned.credit + self.config.explore_share).min(CREDIT_MAX);
        if learned.tick >= learned.explored_tick + EXPLORE_EVERY {
            if let Some(explored) = self.stale_mix(learned, &nanos, end) {
                learned.explored_tick = learned.tick;
                learned.mix_tick[explored.index()] = learned.tick;
                return self.plan(learned, explored, nanos[explored.index()], DecisionReason::Explored);
            }
            if let Some(plan) = self.stale_channel(learned, mix, end) {
                learned.explored_tick = learned.tick;
                return plan;
            }
        }
        learned.mix_tick[mix.index()] = learned.tick;
        self.plan(learned, mix, end, reason_of(mix))
    }

    fn load(&self, channel: usize) -> ChannelLoad {
        self.loads.get(channel).copied().unwrap_or_default()
    }

    /// Orders the channels that can do the job and have room by the time that each would need alone.
    fn order_channels(&mut self, learned: &LearnedClass) {
        let mut keys = [0.0; CHANNELS_MAX];
        for (channel, traits) in self.channels.iter().enumerate() {
            let load = self.load(channel);
            if !traits.operations.contains(self.shape.operation) || load.jobs >= traits.depth {
                continue;
            }
            let time = learned.time(channel + 1, 0, load, self.bytes);
            let key = time.start + self.bytes / time.rate;
            let mut at = self.usable;
            while at > 0 && keys[at - 1] > key {
                (keys[at], self.order[at]) = (keys[at - 1], self.order[at - 1]);
                at -= 1;
            }
            (keys[at], self.order[at]) = (key, channel);
            self.usable += 1;
        }
    }

    /// Returns the engines that move bytes while a job is done in this way.
    fn together(&self, mix: EngineMix) -> usize {
        let idle = self.order[..mix.channels].iter().filter(|channel| self.load(**channel).jobs == 0).count();
        usize::from(mix.has_cpu) + idle + self.busy
    }

    /// Sets the times of the engines of a way, the CPU first. Returns their number.
    fn set_times(&mut self, learned: &LearnedClass, mix: EngineMix) -> usize {
        let company = company_of(self.together(mix));
        let part = self.bytes / as_float(mix.engines() as u64);
        let mut count = 0;
        if mix.has_cpu {
            self.times[0] = learned.time(CPU, company, ChannelLoad::default(), part);
            count = 1;
        }
        for at in 0..mix.channels {
            let channel = self.order[at];
            self.times[count] = learned.time(channel + 1, company, self.load(channel), part);
            count += 1;
        }
        count
    }

    /// Returns the fastest way and its time. A way with more engines, or another one than the last time, must be faster
    /// by the margin: the estimates are not exact, and a change costs more than it gains.
    fn fastest(&mut self, learned: &LearnedClass, nanos: &mut [f64; MIXES_MAX]) -> (EngineMix, f64) {
        let part_min = as_float(self.config.part_min_bytes);
        let last = usize::from(learned.mix_of_size[size_class(self.shape.bytes)]);
        let cpu_factor = match self.shape.owner {
            OwnerState::Waiting => 1.0,
            OwnerState::Working => self.config.busy_cpu_factor,
        };
        let mut fastest = (EngineMix::CPU, f64::INFINITY);
        for mix in EngineMix::all(self.usable, self.shape.split == JobSplit::Allowed) {
            let count = self.set_times(learned, mix);
            let part_min = if mix.index() == last { 0.75 * part_min } else { part_min };
            let Some(end) = common_end(&self.times[..count], self.bytes, part_min) else { continue };
            nanos[mix.index()] = end;
            let cost = if mix.has_cpu { end * cpu_factor } else { end };
            let needed = if mix.index() == last {
                1.0 + self.config.margin
            } else if mix.engines() > fastest.0.engines() || fastest.0.index() == last {
                1.0 - self.config.margin
            } else {
                1.0
            };
            if cost < fastest.1 * needed {
                fastest = (mix, cost);
            }
        }
        (fastest.0, nanos[fastest.0.index()])
    }

    /// Returns the way for a job with a deadline: the fastest, unless it might end too late and another does not.
    fn in_time(
        &self,
        learned: &LearnedClass,
        nanos: &[f64; MIXES_MAX],
        (fastest, left): (EngineMix, f64),
    ) -> (EngineMix, DecisionReason) {
        let is_in_time = |decision: &Self, mix: &EngineMix| {
            nanos[mix.index()] * (1.0 + decision.doubt(learned, *mix)) <= left
        };
        let sooner = |one: &EngineMix, other: &EngineMix| nanos[one.index()].total_cmp(&nanos[other.index()]);
        let ways = || EngineMix::all(self.usable, self.shape.split == JobSplit::Allowed);
        if is_in_time(self, &fastest) {
            (fastest, reason_of(fastest))
        } else if let Some(mix) = ways().filter(|mix| is_in_time(self, mix)).min_by(sooner) {
            (mix, DecisionReason::Deadline)
        } else {
            (ways().min_by(sooner).unwrap_or(fastest), DecisionReason::DeadlineMissed)
        }
    }

    /// Returns the share by which a way may end later than expected: that of its engine with the most doubt.
    fn doubt(&self, learned: &LearnedClass, mix: EngineMix) -> f64 {
        let of_cpu = if mix.has_cpu { learned.doubt(CPU) } else { 0.0 };
        let channels = self.order[..mix.channels].iter();
        channels.fold(of_cpu, |most, channel| most.max(learned.doubt(channel + 1)))
    }

    /// Returns a way that was not taken for long, if exploration can pay for it.
    fn stale_mix(&self, learned: &mut LearnedClass, nanos: &[f64], end: f64) -> Option<EngineMix> {
        let is_due = |mix: &EngineMix| {
            let index = mix.index();
            let is_stale = learned.tick - learned.mix_tick[index] > MIX_STALE_AFTER;
            is_stale && nanos[index] <= end * (1.0 + learned.credit)
        };
        let stale = EngineMix::all(self.usable, self.shape.split == JobSplit::Allowed)
            .filter(is_due)
            .min_by_key(|mix| learned.mix_tick[mix.index()])?;
        learned.credit -= (nanos[stale.index()] / end - 1.0).max(0.0);
        Some(stale)
    }

    /// Returns the fastest plan with a part for a channel that was not observed for long, if exploration can pay for it.
    fn stale_channel(&mut self, learned: &mut LearnedClass, mix: EngineMix, end: f64) -> Option<MovePlan> {
        let stale =
            *self.order[..self.usable].iter().min_by_key(|channel| learned.engine_tick[*channel + 1])?;
        let is_fresh = learned.tick - learned.engine_tick[stale + 1] <= CHANNEL_STALE_AFTER;
        if is_fresh || self.shape.split == JobSplit::Forbidden || self.order[..mix.channels].contains(&stale)
        {
            return None;
        }
        let mut plan = self.plan(learned, mix, end, DecisionReason::Explored);
        plan.together += usize::from(self.load(stale).jobs == 0);
        let time = learned.time(stale + 1, company_of(plan.together), self.load(stale), as_float(PAGE_BYTES));
        let largest = plan.channel_bytes.iter().copied().max().unwrap_or(0).max(plan.cpu_bytes);
        let paid = (end * (1.0 + 0.5 * learned.credit) - time.start) * time.rate;
        let least = self.config.part_min_bytes;
        let part = round(paid, self.grain()).clamp(least, (largest / 4).max(PAGE_BYTES).max(least));
        let cost = ((time.start + as_float(part) / time.rate) / end - 1.0).max(0.0);
        if cost > learned.credit || part >= largest {
            return None;
        }
        learned.credit -= cost;
        if plan.cpu_bytes == largest {
            plan.cpu_bytes -= part;
        } else {
            let from = plan.channel_bytes.iter().position(|bytes| *bytes == largest)?;
            plan.channel_bytes[from] -= part;
        }
        plan.channel_bytes[stale] = part;
        self.mark_flushes(&mut plan);
        Some(plan)
    }

    fn grain(&self) -> u64 {
        if self.shape.bytes >= PAGED_FROM { PAGE_BYTES } else { LINE_BYTES }
    }

    /// Returns the plan for a way: every engine ends at the same time, but for rounding.
    fn plan(&mut self, learned: &LearnedClass, mix: EngineMix, end: f64, reason: DecisionReason) -> MovePlan {
        let count = self.set_times(learned, mix);
        let mut plan = MovePlan::cpu(0, Nanos(round(end, 1)), reason);
        plan.together = self.together(mix);
        let mut left = self.shape.bytes;
        // The first engine has the rest: the CPU, or the first channel.
        let with_first = if mix.has_cpu { 0 } else { 1 };
        let channels = &self.order[with_first..mix.channels];
        for (channel, time) in channels.iter().zip(&self.times[1..count]) {
            let share = (end - time.start) * time.rate;
            let part = round(share, self.grain()).min(left);
            plan.channel_bytes[*channel] = part;
            left -= part;
        }
        if mix.has_cpu {
            plan.cpu_bytes = left;
        } else {
            plan.channel_bytes[self.order[0]] += left;
        }
        self.mark_flushes(&mut plan);
        plan
    }

    fn mark_flushes(&self, plan: &mut MovePlan) {
        if !self.shape.direction.writes_persistent() {
            return;
        }
        for (channel, traits) in self.channels.iter().enumerate() {
            if plan.channel_bytes[channel] > 0 && traits.cache_writes.needs_flush(self.shape.direction) {
                plan.flushes |= 1 << channel;
            }
        }
    }
}

fn reason_of(mix: EngineMix) -> DecisionReason {
    match (mix.has_cpu, mix.channels) {
        (_, 0) => DecisionReason::CpuFaster,
        (false, 1) => DecisionReason::ChannelAlone,
        (true, 1) => DecisionReason::Split,
        (false, _) => DecisionReason::Scattered,
        (true, _) => DecisionReason::SplitScattered,
    }
}

/// Rounds to the nearest multiple of `grain`; 0 for what is negative or not a number.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a conversion from a float saturates, and a negative number becomes 0"
)]
fn round(number: f64, grain: u64) -> u64 {
    (number.max(0.0) / as_float(grain) + 0.5) as u64 * grain
}
