//! The mover's policy on machines that it is not told.
//!
//! Input: a seed, which draws a machine, a load, noise, and a change of the machine. Output: how far the policy's plans are
//! from the best split, before the change, and 200 jobs after it. Invariant: the policy gets the shape of a job, the jobs in
//! flight, and the noisy times of its own parts, as a mover would give it; times without noise are for the comparison only.

use super::best_split::best_split;
use super::machine::{
    AffineTime, BACKLOG_MAX, BandwidthSharing, ChannelModel, MoveMachine, PartTimes, to_float,
};
use fastrand::Rng;
use headwater_dma::mover::policy::{
    CHANNELS_MAX, CacheWrites, ChannelLoad, ChannelTraits, DecisionReason, MoveEngine, MoveObservation,
    MovePlan, MovePolicy, OperationSet, PolicyConfig, WorkShape,
};
use headwater_host::clock::Nanos;

/// The lengths of the comparison: 4 KiB to 16 MiB.
pub const SIZES: [u64; 13] = {
    let mut sizes = [4_096; 13];
    let mut at = 1;
    while at < sizes.len() {
        sizes[at] = sizes[at - 1] * 2;
        at += 1;
    }
    sizes
};

/// Jobs before the first comparison.
const LEARNED_JOBS: usize = 800;
/// Jobs from a change to the second comparison.
pub const CHANGED_JOBS: usize = 200;
/// Jobs of one length that are watched for oscillation.
pub const WATCHED_JOBS: usize = 64;
/// The distance from the best split that counts as near.
pub const NEAR_SHARE: f64 = 0.05;
/// Returns among [`WATCHED_JOBS`] from which on a length counts as oscillating.
pub const OSCILLATING_RETURNS: usize = 8;

/// The outcome of one seed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PolicyRunReport {
    /// Share by which the plan for each of [`SIZES`] is slower than the best split, once learned.
    pub learned: [f64; SIZES.len()],
    /// The same with jobs of other callers in flight.
    pub loaded: [f64; SIZES.len()],
    /// The same 200 jobs after a change of the machine.
    pub changed: [f64; SIZES.len()],
    /// Share by which all jobs of the watch are slower than the best, exploration included.
    pub with_exploration: f64,
    /// Returns to a way that was left before, among the jobs of the watch of one length: the most of any length.
    pub returns: usize,
}

/// The outcome of many seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PolicyRunSummary {
    /// Lengths of all seeds that were compared.
    pub compared: usize,
    /// Those within [`NEAR_SHARE`] of the best split.
    pub near: usize,
    /// Seeds of which every length is.
    pub near_seeds: usize,
    /// Mean share by which a plan is slower.
    pub mean: f64,
    /// The share that one plan of a hundred exceeds.
    pub percentile_99: f64,
    /// The largest share.
    pub worst: f64,
}

impl PolicyRunSummary {
    /// Collects one comparison of each report.
    #[must_use]
    pub fn of<'a>(comparisons: impl IntoIterator<Item = &'a [f64; SIZES.len()]>) -> Self {
        let mut summary = Self::default();
        let mut shares = Vec::new();
        for comparison in comparisons {
            let near = comparison.iter().filter(|share| **share <= NEAR_SHARE).count();
            summary.near += near;
            summary.near_seeds += usize::from(near == SIZES.len());
            shares.extend_from_slice(comparison);
        }
        summary.compared = shares.len();
        shares.sort_by(f64::total_cmp);
        summary.mean = shares.iter().sum::<f64>() / to_float(shares.len().max(1) as u64);
        summary.percentile_99 = shares.get(shares.len() * 99 / 100).copied().unwrap_or(0.0);
        summary.worst = shares.last().copied().unwrap_or(0.0);
        summary
    }

    /// Returns the share of the compared lengths that are near the best split.
    #[must_use]
    pub fn near_share(&self) -> f64 {
        to_float(self.near as u64) / to_float(self.compared.max(1) as u64)
    }
}

/// Draws a machine from a seed.
#[must_use]
pub fn draw_machine(rng: &mut Rng) -> MoveMachine {
    let cpu = AffineTime { fixed_ns: between(rng, 20.0, 120.0), bytes_per_ns: between(rng, 4.0, 14.0) };
    let channels = [1, 1, 1, 2, 2, 3, 4][rng.usize(..7)];
    let (fixed, rate) = (between(rng, 500.0, 6_000.0), 3.0 * between(rng, 0.0, 1.0).mul_add(9.0, 1.0));
    let engines = rng.usize(1..=4);
    let channels: Vec<ChannelModel> = (0..channels)
        .map(|_| {
            let (fixed, rate) = (fixed * between(rng, 0.8, 1.5), rate * between(rng, 0.6, 1.2));
            ChannelModel { engines, depth: 8, ..ChannelModel::affine(fixed, rate) }
        })
        .collect();
    let together =
        channels.iter().fold(cpu.bytes_per_ns, |sum, channel| sum + channel.pieces[0].bytes_per_ns);
    let alone =
        channels.iter().fold(cpu.bytes_per_ns, |most, channel| most.max(channel.pieces[0].bytes_per_ns));
    MoveMachine {
        cpu,
        submit_ns: between(rng, 20.0, 120.0),
        channels,
        ceiling_bytes_per_ns: (together * between(rng, 0.6, 1.6)).max(alone * 1.05),
        sharing: if rng.bool() { BandwidthSharing::Proportional } else { BandwidthSharing::MaxMin },
    }
}

/// Returns a machine after a change: another process takes a part of a channel, of the core, or of the memory's bandwidth.
#[must_use]
pub fn change_machine(machine: &MoveMachine, rng: &mut Rng) -> MoveMachine {
    let mut changed = machine.clone();
    match rng.usize(..4) {
        0 => changed.cpu.bytes_per_ns *= between(rng, 0.4, 0.8),
        1 => changed.ceiling_bytes_per_ns *= between(rng, 0.5, 0.8),
        kind => {
            let channel = rng.usize(..machine.channels.len());
            let rate = between(rng, 0.2, 0.7);
            let fixed = if kind == 2 { between(rng, 1.0, 4.0) } else { 1.0 };
            for piece in &mut changed.channels[channel].pieces {
                piece.bytes_per_ns *= rate;
                piece.fixed_ns *= fixed;
            }
        }
    }
    changed
}

fn between(rng: &mut Rng, low: f64, high: f64) -> f64 {
    low + (high - low) * rng.f64()
}

/// Runs the policy on the machines of a seed.
#[must_use]
pub fn run_policy(seed: u64, config: PolicyConfig) -> PolicyRunReport {
    let mut rng = Rng::with_seed(seed);
    let (usual, noise) = (draw_machine(&mut rng), between(&mut rng, 0.02, 0.08));
    let other = change_machine(&usual, &mut rng);
    // Half of the seeds begin with the slower machine, so that an engine becomes fast.
    let [before, after] = if rng.bool() { [usual, other] } else { [other, usual] };
    let traits: Vec<ChannelTraits> = before.channels.iter().map(channel_traits).collect();
    let policy = MovePolicy::new(&traits, config);
    let mut run = PolicyRun { policy, machine: before, rng, noise };
    let mut report = PolicyRunReport::default();
    for _ in 0..LEARNED_JOBS {
        run.random_job();
    }
    report.learned = run.compare(&[]);
    let loads = run.draw_loads();
    report.loaded = run.compare(&loads);
    run.machine = after;
    for _ in 0..CHANGED_JOBS {
        run.random_job();
    }
    report.changed = run.compare(&[]);
    run.watch(&mut report);
    report
}

/// Returns the properties of a channel of the model.
#[must_use]
pub fn channel_traits(channel: &ChannelModel) -> ChannelTraits {
    ChannelTraits {
        node: None,
        depth: channel.depth,
        cache_writes: CacheWrites::NonAllocating,
        operations: OperationSet::ALL,
    }
}

/// A policy on a machine.
struct PolicyRun {
    policy: MovePolicy,
    machine: MoveMachine,
    rng: Rng,
    /// Relative deviation of a time.
    noise: f64,
}

impl PolicyRun {
    /// Draws the jobs of other callers: none for half of the jobs.
    fn draw_loads(&mut self) -> Vec<ChannelLoad> {
        let is_idle = self.rng.bool();
        let draw = |_: &ChannelModel| {
            let jobs = if is_idle { 0 } else { self.rng.usize(..=BACKLOG_MAX) };
            let bytes = (0..jobs).map(|_| SIZES[self.rng.usize(..8)]).sum();
            ChannelLoad { jobs, bytes }
        };
        self.machine.channels.iter().map(draw).collect()
    }

    fn times(&self, plan: &MovePlan, loads: &[ChannelLoad]) -> PartTimes {
        let mut parts = [0.0; CHANNELS_MAX];
        plan.channel_parts().for_each(|(channel, bytes)| parts[channel] = to_float(bytes));
        self.machine.times(to_float(plan.cpu_bytes()), &parts, loads)
    }

    /// Does a job as a mover does: decides, moves, observes. Returns the plan and its time without noise.
    fn job(&mut self, bytes: u64, loads: &[ChannelLoad]) -> (MovePlan, f64) {
        let shape = WorkShape::copy(bytes);
        let plan = self.policy.decide(&shape, loads);
        let times = self.times(&plan, loads);
        let together = plan.together();
        let mut observe = |engine, bytes, ahead, time: f64| {
            let elapsed = Nanos(round(time * noise_factor(&mut self.rng, self.noise)));
            self.policy.observe(&MoveObservation { shape, engine, bytes, together, ahead, elapsed });
        };
        if plan.cpu_bytes() > 0 && plan.reason() != DecisionReason::BelowThreshold {
            observe(MoveEngine::Cpu, plan.cpu_bytes(), ChannelLoad::default(), times.cpu);
        }
        for (channel, bytes) in plan.channel_parts() {
            observe(
                MoveEngine::Channel(channel),
                bytes,
                loads.get(channel).copied().unwrap_or_default(),
                times.channels[channel],
            );
        }
        (plan, times.end())
    }

    /// Does a job of a random length with a random load.
    fn random_job(&mut self) {
        let (loads, size) = (self.draw_loads(), self.rng.usize(..SIZES.len()));
        self.job(SIZES[size], &loads);
    }

    /// Returns the share by which the plan for each length is slower than the best split.
    fn compare(&self, loads: &[ChannelLoad]) -> [f64; SIZES.len()] {
        let mut policy = self.policy.clone();
        policy.freeze();
        SIZES.map(|bytes| {
            let plan = policy.decide(&WorkShape::copy(bytes), loads);
            self.times(&plan, loads).end() / best_split(&self.machine, bytes, loads).end_ns - 1.0
        })
    }

    /// Watches jobs of each length on an idle machine.
    fn watch(&mut self, report: &mut PolicyRunReport) {
        let (mut taken, mut best) = (0.0, 0.0);
        let mut ways: Vec<Vec<u32>> = vec![Vec::new(); SIZES.len()];
        let ends = SIZES.map(|bytes| best_split(&self.machine, bytes, &[]).end_ns);
        for _ in 0..WATCHED_JOBS {
            for (size, bytes) in SIZES.into_iter().enumerate() {
                let (plan, end) = self.job(bytes, &[]);
                (taken, best) = (taken + end / ends[size], best + 1.0);
                let way = plan
                    .channel_parts()
                    .fold(u32::from(plan.cpu_bytes() > 0), |way, (channel, _)| way | 2 << channel);
                if plan.reason() != DecisionReason::Explored && ways[size].last() != Some(&way) {
                    ways[size].push(way);
                }
            }
        }
        let returns =
            |ways: &Vec<u32>| ways.iter().enumerate().filter(|(at, way)| ways[..*at].contains(way)).count();
        report.returns = ways.iter().map(returns).max().unwrap_or(0);
        report.with_exploration = taken / best - 1.0;
    }
}

/// Returns the factor of a time: nearly normal, and three to ten in one time of two hundred, as of an interrupt.
pub(super) fn noise_factor(rng: &mut Rng, deviation: f64) -> f64 {
    if rng.usize(..200) == 0 {
        return between(rng, 3.0, 10.0);
    }
    // The sum of three uniform numbers has a deviation of one half.
    let sum = between(rng, -0.5, 0.5) + between(rng, -0.5, 0.5) + between(rng, -0.5, 0.5);
    1.0 + 2.0 * deviation * sum
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a time in nanoseconds, positive and far below 2^53"
)]
fn round(nanos: f64) -> u64 {
    (nanos + 0.5) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEDS: u64 = 50;

    fn reports(config: PolicyConfig) -> Vec<PolicyRunReport> {
        (0..SEEDS).map(|seed| run_policy(seed, config)).collect()
    }

    fn summary(
        reports: &[PolicyRunReport],
        comparison: fn(&PolicyRunReport) -> &[f64; SIZES.len()],
    ) -> PolicyRunSummary {
        PolicyRunSummary::of(reports.iter().map(comparison))
    }

    #[test]
    #[expect(clippy::print_stdout, reason = "a failing run is repeated from its seed")]
    fn policy_is_near_the_best_split_on_machines_it_is_not_told() {
        println!("seeds 0 to {}", SEEDS - 1);
        // What is not near are mostly jobs just longer than the break-even, on machines with three or four channels.
        let reports = reports(PolicyConfig::default());
        let learned = summary(&reports, |report| &report.learned);
        assert!(learned.near_share() >= 0.95 && learned.mean < 0.02, "{learned:?}");
        let changed = summary(&reports, |report| &report.changed);
        assert!(changed.near_share() >= 0.93 && changed.mean < 0.025, "{changed:?}");
        let loaded = summary(&reports, |report| &report.loaded);
        assert!(loaded.near_share() >= 0.8, "{loaded:?}");
        let oscillating = reports.iter().filter(|report| report.returns >= OSCILLATING_RETURNS).count();
        assert!(oscillating <= 1, "{oscillating}");
        let cost = reports.iter().map(|report| report.with_exploration).sum::<f64>() / to_float(SEEDS);
        assert!(cost < 0.04, "{cost}");
    }

    #[test]
    #[expect(clippy::print_stdout, reason = "a failing run is repeated from its seed")]
    fn policy_without_margin_oscillates() {
        println!("seeds 0 to {}", SEEDS - 1);
        let usual = reports(PolicyConfig::default());
        let restless = reports(PolicyConfig { margin: 0.0, ..PolicyConfig::default() });
        let returns =
            |reports: &[PolicyRunReport]| reports.iter().map(|report| report.returns).sum::<usize>();
        assert!(returns(&restless) > 2 * returns(&usual), "{} {}", returns(&restless), returns(&usual));
    }

    #[test]
    fn equal_seeds_give_equal_reports() {
        let config = PolicyConfig::default();
        assert_eq!(run_policy(7, config), run_policy(7, config));
    }
}
