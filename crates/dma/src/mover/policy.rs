//! The policy: decides which engines move a job, by an affine model of each that it learns.
//!
//! Input: the shape of a job and the load of each channel, then the time that each engine took. Output: a [`MovePlan`]: the
//! bytes of each engine, and the reason. Invariant: the plan has every byte of the job once; equal calls in equal order give
//! equal plans, for there is no clock, no randomness and no hash map; a decision allocates nothing unless it is the first of
//! its class of work.
//!
//! The time of an engine is `t0 + n/B`. The engines of a job start at once and should end at once, which gives each its
//! bytes: for the CPU and one channel `f = (n/Bc - t0) / (n (1/Bc + 1/Bd))`. A split by the ratio of the bandwidths alone,
//! as Fastmove's, gives the channel too much near the threshold, because it forgets `t0`. The queue of a channel and its
//! distance from the memories are part of its `t0`.
//!
//! # Classes
//! What is learned about one operation, direction and pair of nodes says nothing about another. Inside of a class the time
//! of an engine is fitted for each company (alone, beside one engine, beside two or three, ...): a limit on the bandwidth
//! that they share is what their rates together do not exceed.
//!
//! # What this does not do
//! It moves nothing, and it does not know when a job ends: the mover observes and reports. Learning does not depend on
//! statistics or tracing; only [`MovePolicy::freeze`] stops it.

mod affine_fit;
mod channel_traits;
mod config;
mod decide;
mod engine_mix;
mod learned_class;
mod plan;
#[cfg(test)]
mod tests;
mod work_shape;

pub use channel_traits::{CHANNELS_MAX, CacheWrites, ChannelLoad, ChannelTraits};
pub use config::PolicyConfig;
pub use plan::{DecisionCounters, DecisionReason, MovePlan};
pub use work_shape::{JobSplit, MoveDirection, MoveOperation, OperationSet, OwnerState, WorkShape};

use engine_mix::company_of;
use headwater_host::clock::Nanos;
use learned_class::{CPU, LearnedClass};

/// An engine that moves bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MoveEngine {
    /// The CPU of the caller.
    Cpu,
    /// A channel, by its number.
    Channel(usize),
}

impl MoveEngine {
    const fn index(self) -> usize {
        match self {
            Self::Cpu => CPU,
            Self::Channel(channel) => channel + 1,
        }
    }
}

/// The time that an engine took for its part of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveObservation {
    /// The job, as it was decided about.
    pub shape: WorkShape,
    /// The engine.
    pub engine: MoveEngine,
    /// The bytes of its part.
    pub bytes: u64,
    /// The engines that moved bytes at the time: [`MovePlan::together`].
    pub together: usize,
    /// The load of the channel when the part was submitted; nothing for the CPU.
    pub ahead: ChannelLoad,
    /// The time from the start of the job to the end of the part, a flush included.
    pub elapsed: Nanos,
}

/// The estimated time of an engine: `fixed_ns + bytes * ns_per_byte`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineEstimate {
    /// Nanoseconds before the first byte. Negative for a CPU that starts before a shared limit applies.
    pub fixed_ns: f64,
    /// Nanoseconds for each byte.
    pub ns_per_byte: f64,
    /// Observations.
    pub observations: u32,
}

/// The policy of a mover.
#[derive(Clone, Debug)]
pub struct MovePolicy {
    channels: Vec<ChannelTraits>,
    config: PolicyConfig,
    /// The learned classes, and the decision at which each was used last.
    classes: Vec<(u64, LearnedClass)>,
    /// The class that was used last: most jobs are of the class of the job before.
    last_class: usize,
    decisions: u64,
    is_frozen: bool,
    counters: DecisionCounters,
}

impl MovePolicy {
    /// Creates a policy for channels, of which it uses the first [`CHANNELS_MAX`].
    #[must_use]
    pub fn new(channels: &[ChannelTraits], config: PolicyConfig) -> Self {
        let mut channels = channels[..channels.len().min(CHANNELS_MAX)].to_vec();
        for channel in &mut channels {
            channel.cache_writes = channel.cache_writes.or(config.cache_writes);
        }
        let counters = DecisionCounters::default();
        Self {
            channels,
            config,
            classes: Vec::new(),
            last_class: 0,
            decisions: 0,
            is_frozen: false,
            counters,
        }
    }

    /// Decides which engines move a job. `loads` has one entry for each channel; a channel without one is idle.
    pub fn decide(&mut self, shape: &WorkShape, loads: &[ChannelLoad]) -> MovePlan {
        let bytes = shape.bytes;
        if self.is_below_threshold(shape) {
            return MovePlan::cpu(bytes, Nanos(0), DecisionReason::BelowThreshold);
        }
        let plan = self.decide_above_threshold(shape, loads);
        self.counters.count(&plan, bytes);
        self.counters.frozen += u64::from(self.is_frozen);
        plan
    }

    /// Returns true if a job is too short for a decision: the CPU does it.
    #[must_use]
    pub fn is_below_threshold(&self, shape: &WorkShape) -> bool {
        self.is_short(shape.direction, shape.bytes)
    }

    /// Returns true if a job of a direction is too short for a decision.
    #[inline]
    pub(super) fn is_short(&self, direction: MoveDirection, bytes: u64) -> bool {
        bytes < self.config.threshold_bytes[direction.index()].max(1)
    }

    fn decide_above_threshold(&mut self, shape: &WorkShape, loads: &[ChannelLoad]) -> MovePlan {
        if !self.channels.iter().any(|channel| channel.operations.contains(shape.operation)) {
            return MovePlan::cpu(shape.bytes, Nanos(0), DecisionReason::NoChannel);
        }
        let class = self.class_index(shape);
        let learned = &mut self.classes[class].1;
        let mut decision = decide::Decision::new(shape, loads, &self.channels, &self.config);
        decision.run(learned, self.is_frozen)
    }

    /// Learns from the time that an engine took. Does nothing while the policy is frozen.
    pub fn observe(&mut self, observation: &MoveObservation) {
        let engine = observation.engine.index();
        if self.is_frozen || observation.bytes == 0 || engine > self.channels.len() {
            return;
        }
        let class = self.class_index(&observation.shape);
        self.classes[class].1.observe(engine, observation);
    }

    /// Stops learning and exploration: equal jobs and loads give equal plans from now on.
    pub fn freeze(&mut self) {
        self.is_frozen = true;
    }

    /// Resumes learning and exploration.
    pub fn thaw(&mut self) {
        self.is_frozen = false;
    }

    /// Returns true if the policy is frozen.
    #[must_use]
    pub const fn is_frozen(&self) -> bool {
        self.is_frozen
    }

    /// Returns the way of a channel's writes through the cache: its own, or the one that the settings declare.
    #[must_use]
    pub fn cache_writes(&self, channel: usize) -> CacheWrites {
        self.channels.get(channel).map_or(CacheWrites::Unknown, |channel| channel.cache_writes)
    }

    /// Returns the operations that a channel can do; every one for a channel that the policy does not use, which gets nothing.
    pub(super) fn operations(&self, channel: usize) -> OperationSet {
        self.channels.get(channel).map_or(OperationSet::ALL, |channel| channel.operations)
    }

    /// Returns the counters of the decisions.
    #[must_use]
    pub const fn counters(&self) -> &DecisionCounters {
        &self.counters
    }

    /// Returns the estimated time of an engine that shares jobs as this one with `together` engines, itself included;
    /// `None` if no such job was decided about.
    #[must_use]
    pub fn estimate(&self, shape: &WorkShape, engine: MoveEngine, together: usize) -> Option<EngineEstimate> {
        let (_, class) = self.classes.iter().find(|(_, class)| class.shape.is_alike(shape))?;
        if engine.index() > self.channels.len() {
            return None;
        }
        let fit = class.fit(engine.index(), company_of(together));
        Some(EngineEstimate { fixed_ns: fit.fixed(), ns_per_byte: fit.per_byte(), observations: fit.seen })
    }

    /// Returns the time in which the CPU alone is expected to end a job for certain; `None` if no such job was decided about.
    pub(super) fn cpu_time(&self, shape: &WorkShape) -> Option<Nanos> {
        let (_, class) = self.classes.iter().find(|(_, class)| class.shape.is_alike(shape))?;
        Some(class.cpu_time(shape.bytes))
    }

    /// Returns the place of a job's class, which replaces the class that was not used for longest if there are too many.
    fn class_index(&mut self, shape: &WorkShape) -> usize {
        self.decisions += 1;
        let is_last = self.classes.get(self.last_class).is_some_and(|(_, class)| class.shape.is_alike(shape));
        let known = || self.classes.iter().position(|(_, class)| class.shape.is_alike(shape));
        self.last_class = match if is_last { Some(self.last_class) } else { known() } {
            Some(known) => known,
            None => self.add_class(shape),
        };
        self.classes[self.last_class].0 = self.decisions;
        self.last_class
    }

    /// Adds a class, and returns its place.
    fn add_class(&mut self, shape: &WorkShape) -> usize {
        let fresh = (self.decisions, LearnedClass::new(shape, &self.channels, &self.config));
        if self.classes.len() < self.config.classes_max.max(1) {
            self.classes.push(fresh);
            return self.classes.len() - 1;
        }
        let oldest = (0..self.classes.len()).min_by_key(|class| self.classes[*class].0).unwrap_or(0);
        self.classes[oldest] = fresh;
        oldest
    }
}
