//! A machine of the model on which a whole mover runs: its engines work in virtual time, and each may have several jobs.
//!
//! Input: jobs on channels, steps that the CPU did, waits of the owner. Output: virtual time, and the ends of the jobs.
//! Invariant: equal calls give equal times on every machine; between two events every rate is constant; the parts of one job
//! on an idle machine end at the times of [`MoveMachine::times`].
//!
//! The jobs themselves belong to the [channels](super::ModelledChannel), which move their bytes.

use super::machine::{AffineTime, MoveMachine, to_float, to_whole};
use super::modelled_channel::{ChannelFaults, ModelledChannel};
use super::policy_run::noise_factor;
use fastrand::Rng;
use headwater_dma::mover::policy::{CHANNELS_MAX, ChannelTraits};
use headwater_dma::mover::{MoveChannel, MoveStep, VirtualTime};
use headwater_host::clock::Nanos;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The longest time for which an owner waits without a look at its channels, in nanoseconds.
const LOOK_EVERY_NS: f64 = 1_000.0;
/// Bytes of a job below which it has ended.
const ENDED_BYTES: f64 = 1e-3;
const LINE_BYTES: usize = 64;
const PAGE_BYTES: usize = 4_096;

/// The costs of jobs beside the affine times of a [`MoveMachine`]. The default has none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct JobCosts {
    /// The rate of the CPU by the length of a step, ascending: bytes, bytes a nanosecond. If empty, the machine's time.
    pub cpu_rates: &'static [(f64, f64)],
    /// The share by which the CPU takes longer than its rates say: 1 is half of the rate.
    pub cpu_slower: f64,
    /// The least time of a channel for each operation of a list, in nanoseconds.
    pub operation_min_ns: f64,
    /// The rate of a channel for the operations of a list, in bytes a nanosecond; that of a single job if it is 0.
    pub operation_bytes_per_ns: f64,
    /// Further time of a job with one operation that does not begin at a cache line, in nanoseconds.
    pub unaligned_ns: f64,
    /// The time of an operation of a list that does not begin at a cache line, if that is longer.
    pub unaligned_operation: Option<AffineTime>,
    /// The CPU's time to write a cache line back that a channel left in the cache, in nanoseconds.
    pub flush_line_ns: f64,
    /// The time of a channel for each page of a job that is missing, in nanoseconds; of all pages, if it is not 0.
    pub channel_page_ns: f64,
    /// The same for the CPU.
    pub cpu_page_ns: f64,
    /// Relative deviation of the time of a job.
    pub noise: f64,
}

/// The CPU's use of its time, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuTimes {
    /// The time now.
    pub now_ns: f64,
    /// Time in which it moved bytes, submitted or flushed. The rest it waited.
    pub busy_ns: f64,
}

/// A machine that channels and the clock of their mover share.
#[derive(Clone, Debug)]
pub struct ModelledMachine {
    state: Arc<Mutex<MachineState>>,
}

impl ModelledMachine {
    /// Creates a machine at time 0. `seed` draws the noise.
    #[must_use]
    pub fn new(machine: MoveMachine, costs: JobCosts, seed: u64) -> Self {
        let queues = machine.channels.iter().map(|_| ChannelQueue::default()).collect();
        let rng = Rng::with_seed(seed);
        let state = MachineState { machine, costs, queues, cpu: None, now: 0.0, busy: 0.0, rng };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Returns the channels of the machine for one mover, each with the same faults and a seed of its own. `traits` returns
    /// the properties of a channel by its number.
    pub fn channels(
        &self,
        traits: impl Fn(usize) -> ChannelTraits,
        faults: ChannelFaults,
        seed: u64,
    ) -> Vec<Box<dyn MoveChannel>> {
        let count = self.lock().queues.len();
        let channel = |index: usize| -> Box<dyn MoveChannel> {
            let seed = seed.wrapping_mul(CHANNELS_MAX as u64).wrapping_add(index as u64);
            Box::new(ModelledChannel::new(self.clone(), index, traits(index), (faults, seed)))
        };
        (0..count).map(channel).collect()
    }

    /// Returns the times of the CPU.
    #[must_use]
    pub fn cpu_times(&self) -> CpuTimes {
        let state = self.lock();
        CpuTimes { now_ns: state.now, busy_ns: state.busy }
    }

    /// Advances to a time of another clock, if it is later, and then by a time in which the CPU works. Returns the time.
    pub(crate) fn follow(&self, other: Nanos, works_ns: f64) -> Nanos {
        let mut state = self.lock();
        state.catch_up(other);
        state.cpu_works(works_ns);
        state.whole_now()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, MachineState> {
        // A panic of a test under the lock leaves no state that a later test uses.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl VirtualTime for ModelledMachine {
    fn now(&self) -> Nanos {
        self.lock().whole_now()
    }

    fn cpu_did(&self, steps: &[MoveStep]) {
        self.lock().cpu_does(steps);
    }

    fn wait(&self) {
        let mut state = self.lock();
        let until = state.now + LOOK_EVERY_NS;
        while state.now < until && !state.step(until) {}
    }
}

/// The jobs of a channel.
#[derive(Debug, Default)]
struct ChannelQueue {
    /// In the order of their submission.
    flights: VecDeque<JobFlight>,
    /// Tokens and times of those that have ended, in the order of their ends.
    ended: VecDeque<(u64, f64)>,
}

/// A job on a channel.
#[derive(Clone, Copy, Debug)]
struct JobFlight {
    token: u64,
    /// The time at which its first byte can be moved.
    arrives: f64,
    /// The work that is left, in bytes.
    left: f64,
    /// Bytes a nanosecond, alone.
    rate: f64,
    /// True once an engine has begun it.
    is_begun: bool,
}

/// The state of a machine.
#[derive(Debug)]
pub(super) struct MachineState {
    machine: MoveMachine,
    costs: JobCosts,
    queues: Vec<ChannelQueue>,
    /// The bytes that the CPU has left of its step, and its rate.
    cpu: Option<(f64, f64)>,
    now: f64,
    busy: f64,
    rng: Rng,
}

impl MachineState {
    /// Returns the time, rounded down.
    pub(super) fn whole_now(&self) -> Nanos {
        Nanos(to_whole(self.now))
    }

    pub(super) fn now(&self) -> f64 {
        self.now
    }

    pub(super) fn costs(&self) -> &JobCosts {
        &self.costs
    }

    /// Advances to a time of the caller's clock, if it is later.
    pub(super) fn catch_up(&mut self, now: Nanos) {
        let until = to_float(now.0);
        while self.now < until {
            self.step(until);
        }
    }

    /// Advances by a time in which the CPU works, and moves no bytes.
    pub(super) fn cpu_works(&mut self, nanos: f64) {
        let until = self.now + nanos;
        while self.now < until {
            self.step(until);
        }
        self.busy += nanos;
    }

    /// Advances by the time in which the CPU does steps.
    fn cpu_does(&mut self, steps: &[MoveStep]) {
        if steps.is_empty() {
            return;
        }
        let noise = self.noise();
        if self.costs.cpu_rates.is_empty() {
            self.cpu_works(self.machine.cpu.fixed_ns * noise);
        }
        let begun = self.now;
        for step in steps {
            let bytes = moved_bytes(step);
            if bytes == 0.0 {
                continue;
            }
            let rate = rate_at(self.costs.cpu_rates, bytes).unwrap_or(self.machine.cpu.bytes_per_ns);
            self.cpu = Some((bytes * noise, rate / (1.0 + self.costs.cpu_slower)));
            while self.cpu.is_some() {
                self.step(f64::INFINITY);
            }
        }
        self.busy += self.now - begun;
        let pages = steps.iter().fold(0, |sum, step| sum + step.bytes().div_ceil(PAGE_BYTES));
        self.cpu_works(self.costs.cpu_page_ns * to_float(pages as u64));
    }

    /// Submits a job to a channel: the CPU works for it, then its latency begins. `slower` is the factor of its bytes' time.
    pub(super) fn submit(&mut self, channel: usize, token: u64, (steps, slower): (&[MoveStep], f64)) {
        self.cpu_works(self.machine.submit_ns);
        let bytes = steps.iter().fold(0.0, |sum, step| sum + moved_bytes(step));
        // A short job's own slope is latency: jobs in flight move at the rate of long ones.
        let model = &self.machine.channels[channel];
        let rate = model.pieces[1].bytes_per_ns;
        let mut fixed = model.piece(bytes).of(bytes) - bytes / rate;
        let mut work = bytes / rate;
        if let [step] = steps {
            fixed += if is_aligned(step) { 0.0 } else { self.costs.unaligned_ns };
        } else {
            work = steps.iter().fold(0.0, |sum, step| sum + self.operation_ns(step, rate));
        }
        let pages = steps.iter().fold(0, |sum, step| sum + step.bytes().div_ceil(PAGE_BYTES));
        work += self.costs.channel_page_ns * to_float(pages as u64);
        let noise = self.noise();
        let arrives = self.now + fixed * noise;
        let left = (work * noise * slower * rate).max(2.0 * ENDED_BYTES);
        self.queues[channel].flights.push_back(JobFlight { token, arrives, left, rate, is_begun: false });
    }

    /// Draws the factor of a job's time.
    fn noise(&mut self) -> f64 {
        if self.costs.noise > 0.0 { noise_factor(&mut self.rng, self.costs.noise) } else { 1.0 }
    }

    /// Returns the time of an operation of a list.
    fn operation_ns(&self, step: &MoveStep, rate: f64) -> f64 {
        let bytes = moved_bytes(step);
        let of_list = self.costs.operation_bytes_per_ns;
        let rate = if of_list > 0.0 { of_list } else { rate };
        let least = match self.costs.unaligned_operation {
            Some(time) if !is_aligned(step) => time.of(bytes),
            _ => self.costs.operation_min_ns,
        };
        (bytes / rate).max(least)
    }

    /// Takes the next job that has ended on a channel: its token, and the time of its end.
    pub(super) fn take_ended(&mut self, channel: usize) -> Option<(u64, f64)> {
        self.queues[channel].ended.pop_front()
    }

    /// Removes a job that no engine has begun. Returns false if there is none.
    pub(super) fn cancel(&mut self, channel: usize, token: u64) -> bool {
        let flights = &mut self.queues[channel].flights;
        let found = flights.iter().position(|flight| flight.token == token && !flight.is_begun);
        found.and_then(|at| flights.remove(at)).is_some()
    }

    /// Removes every job of a channel that has not ended.
    pub(super) fn kill(&mut self, channel: usize) {
        self.queues[channel].flights.clear();
    }

    /// Advances to the next event, at most to `until`. Returns true if a job of a channel has ended.
    fn step(&mut self, until: f64) -> bool {
        let now = self.now;
        let (mut rates, mut wanted) = ([0.0; CHANNELS_MAX + 1], [0.0; CHANNELS_MAX]);
        let mut span = until - now;
        for (index, queue) in self.queues.iter_mut().enumerate() {
            let engines = self.machine.channels[index].engines;
            for flight in &queue.flights {
                if flight.arrives > now {
                    span = span.min(flight.arrives - now);
                }
            }
            let (mut sum, mut active) = (0.0, 0_u64);
            for flight in queue.flights.iter_mut().filter(|flight| flight.arrives <= now).take(engines) {
                flight.is_begun = true;
                (sum, active) = (sum + flight.rate, active + 1);
            }
            (wanted[index], rates[index]) = (sum, sum / to_float(active.max(1)));
        }
        let cpu = self.queues.len();
        rates[cpu] = self.cpu.map_or(0.0, |(_, rate)| rate);
        self.machine.limit(&mut rates[..=cpu]);
        if let Some((left, _)) = self.cpu {
            span = span.min(left / rates[cpu]);
        }
        for (index, queue) in self.queues.iter().enumerate() {
            let engines = self.machine.channels[index].engines;
            for flight in queue.flights.iter().filter(|flight| flight.arrives <= now).take(engines) {
                span = span.min(flight.left / (flight.rate * rates[index] / wanted[index]));
            }
        }
        self.now += span;
        let mut has_ended = false;
        for (index, queue) in self.queues.iter_mut().enumerate() {
            let engines = self.machine.channels[index].engines;
            for flight in queue.flights.iter_mut().filter(|flight| flight.arrives <= now).take(engines) {
                flight.left -= flight.rate * rates[index] / wanted[index] * span;
                if flight.left < ENDED_BYTES {
                    queue.ended.push_back((flight.token, self.now));
                    has_ended = true;
                }
            }
            queue.flights.retain(|flight| flight.left >= ENDED_BYTES);
        }
        if let Some((left, rate)) = self.cpu {
            let left = left - rates[cpu] * span;
            self.cpu = (left >= ENDED_BYTES).then_some((left, rate));
        }
        has_ended
    }
}

/// Returns the bytes that an engine moves for a step.
fn moved_bytes(step: &MoveStep) -> f64 {
    let copies = if matches!(step, MoveStep::Dualcast { .. }) { 2.0 } else { 1.0 };
    copies * to_float(step.bytes() as u64)
}

/// Returns true if the ranges of a copy begin at cache lines of their memories. Other operations count as aligned: the
/// published figures are of copies.
fn is_aligned(step: &MoveStep) -> bool {
    match step {
        MoveStep::Copy { from, to } => {
            from.start.offset.is_multiple_of(LINE_BYTES) && to.offset.is_multiple_of(LINE_BYTES)
        }
        _ => true,
    }
}

/// Returns the rate for a length, between those of the table's lengths; `None` if the table is empty.
fn rate_at(rates: &[(f64, f64)], bytes: f64) -> Option<f64> {
    let (first, last) = (rates.first()?, rates.last()?);
    if bytes <= first.0 {
        return Some(first.1);
    }
    let Some(pair) = rates.windows(2).find(|pair| bytes <= pair[1].0) else { return Some(last.1) };
    let share = (bytes - pair[0].0) / (pair[1].0 - pair[0].0);
    Some(pair[0].1 + share * (pair[1].1 - pair[0].1))
}
