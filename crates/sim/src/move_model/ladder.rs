//! The ladder of rules that Fastmove's paper removes one by one, and the affine split as the last one.
//!
//! Input: a machine with several cores, a rung, and a seed. Output: the rate, the latency and the CPU time of the same jobs.
//! Invariant: every rung gets the jobs of the seed in the same order; a waiter leaves its core to other work, so that only
//! copying and submitting is CPU time.
//!
//! A job's rates are fixed when it begins, by what moves then: the ceiling is shared in proportion. A channel does its jobs
//! one after another.

use super::machine::{BACKLOG_MAX, MoveMachine, to_float};
use super::policy_run::channel_traits;
use fastrand::Rng;
use headwater_dma::mover::policy::{
    CHANNELS_MAX, ChannelLoad, ChannelTraits, MoveEngine, MoveObservation, MovePolicy, PolicyConfig,
    WorkShape,
};
use headwater_host::clock::Nanos;

/// Jobs on a channel at which a rung with a limit gives the next one to the CPU.
const JOBS_MAX: usize = 2;
/// Fastmove's threshold.
const THRESHOLD_BYTES: u64 = 16 << 10;
/// The smallest part that Fastmove gives to a channel.
const RATIO_PART_MIN: f64 = 8_192.0;
/// Jobs before the measurement, for a policy to learn.
const LEARNED_JOBS: usize = 2_000;
/// The lengths of jobs: 4 KiB to 1 MiB, each doubling as frequent as the next.
const DOUBLINGS: u32 = 9;

/// A rung: the rules of the rungs before it, and one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LadderRung {
    /// The CPU does every job.
    CpuOnly,
    /// The first channel does every job.
    NaiveDma,
    /// A limit on the jobs of a channel; the CPU does the rest.
    ConcurrencyLimit,
    /// The channel with the fewest bytes in flight.
    Scatter,
    /// The CPU does jobs below a threshold.
    Thresholds,
    /// The CPU and a channel share a job by the ratio of their bandwidths, as Fastmove does.
    RatioSplit,
    /// The policy of the mover: the affine split, learned.
    AffineSplit,
}

impl LadderRung {
    /// Every rung, from the lowest.
    pub const ALL: [Self; 7] = [
        Self::CpuOnly,
        Self::NaiveDma,
        Self::ConcurrencyLimit,
        Self::Scatter,
        Self::Thresholds,
        Self::RatioSplit,
        Self::AffineSplit,
    ];

    /// Returns its name in a report.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::CpuOnly => "CPU only",
            Self::NaiveDma => "naive DMA",
            Self::ConcurrencyLimit => "+ concurrency limit",
            Self::Scatter => "+ scatter",
            Self::Thresholds => "+ threshold",
            Self::RatioSplit => "+ split by bandwidth ratio",
            Self::AffineSplit => "affine split",
        }
    }
}

/// The outcome of a rung.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LadderOutcome {
    /// Bytes that all cores moved in a nanosecond: GB/s.
    pub gigabytes_per_second: f64,
    /// Mean time of a job.
    pub mean_micros: f64,
    /// CPU time of a mebibyte.
    pub cpu_micros_per_mib: f64,
}

/// Runs a rung: every core does one job after another.
#[must_use]
pub fn run_rung(
    machine: &MoveMachine,
    cores: usize,
    rung: LadderRung,
    jobs: usize,
    seed: u64,
) -> LadderOutcome {
    let traits: Vec<ChannelTraits> = machine.channels.iter().map(channel_traits).collect();
    let policy = MovePolicy::new(&traits, PolicyConfig::default());
    let mut run = LadderRun {
        machine,
        rung,
        policy,
        rng: Rng::with_seed(seed),
        cores: vec![CoreTime::default(); cores.max(1)],
        queues: vec![Vec::new(); machine.channels.len()],
        cpu_ns: 0.0,
        bytes: 0.0,
        waited_ns: 0.0,
    };
    for _ in 0..LEARNED_JOBS {
        run.job();
    }
    let start = run.now();
    (run.cpu_ns, run.bytes, run.waited_ns) = (0.0, 0.0, 0.0);
    for _ in 0..jobs {
        run.job();
    }
    LadderOutcome {
        gigabytes_per_second: run.bytes / (run.now() - start),
        mean_micros: run.waited_ns / to_float(jobs.max(1) as u64) / 1_000.0,
        cpu_micros_per_mib: run.cpu_ns / 1_000.0 / (run.bytes / 1_048_576.0),
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct CoreTime {
    free_at: f64,
    copies_until: f64,
}

/// A part on a channel that has not ended.
#[derive(Clone, Copy, Debug)]
struct QueuedPart {
    bytes: f64,
    end: f64,
}

struct LadderRun<'a> {
    machine: &'a MoveMachine,
    rung: LadderRung,
    policy: MovePolicy,
    rng: Rng,
    cores: Vec<CoreTime>,
    queues: Vec<Vec<QueuedPart>>,
    cpu_ns: f64,
    bytes: f64,
    waited_ns: f64,
}

/// The bytes of each engine for one job.
#[derive(Clone, Copy, Debug, Default)]
struct RungSplit {
    cpu: f64,
    channels: [f64; CHANNELS_MAX],
    together: usize,
}

impl LadderRun<'_> {
    fn now(&self) -> f64 {
        self.cores.iter().fold(f64::INFINITY, |first, core| first.min(core.free_at))
    }

    /// Does the next job, on the core that is free first.
    fn job(&mut self) {
        let now = self.now();
        let core = self.cores.iter().position(|core| core.free_at <= now).unwrap_or(0);
        let bytes = 4_096_u64 << self.rng.u32(0..DOUBLINGS);
        for queue in &mut self.queues {
            queue.retain(|part| part.end > now);
        }
        let loads: Vec<ChannelLoad> = self.queues.iter().map(|queue| load_of(queue)).collect();
        let shape = WorkShape::copy(bytes);
        let split = self.split(&shape, &loads);
        let slower = self.slowdown(core, now, &split);
        let mut submitted = 0.0;
        let mut end = now;
        for (channel, load) in loads.iter().enumerate() {
            let part = split.channels[channel];
            if part <= 0.0 {
                continue;
            }
            submitted += self.machine.submit_ns;
            let piece = self.machine.channels[channel].piece(part);
            let busy_until = self.queues[channel].last().map_or(now, |part| part.end);
            let begins = busy_until.max(now + submitted + piece.fixed_ns);
            let ends = begins + part / piece.bytes_per_ns * slower;
            self.queues[channel].push(QueuedPart { bytes: part, end: ends });
            self.observe((shape, MoveEngine::Channel(channel)), part, &split, *load, ends - now);
            end = end.max(ends);
        }
        let mut cpu = submitted;
        if split.cpu > 0.0 {
            cpu += self.machine.cpu.fixed_ns + split.cpu / self.machine.cpu.bytes_per_ns * slower;
            self.observe((shape, MoveEngine::Cpu), split.cpu, &split, ChannelLoad::default(), cpu);
            self.cores[core].copies_until = now + cpu;
        }
        end = end.max(now + cpu);
        self.cores[core].free_at = end;
        self.cpu_ns += cpu;
        self.bytes += to_float(bytes);
        self.waited_ns += end - now;
    }

    /// Returns the factor by which the shared ceiling slows a job that begins now.
    fn slowdown(&self, core: usize, now: f64, split: &RungSplit) -> f64 {
        let copies = |(other, state): (usize, &CoreTime)| {
            if other == core { split.cpu > 0.0 } else { state.copies_until > now }
        };
        let cores = self.cores.iter().enumerate().filter(|core| copies(*core)).count();
        let mut wanted = to_float(cores as u64) * self.machine.cpu.bytes_per_ns;
        for (index, channel) in self.machine.channels.iter().enumerate() {
            if split.channels[index] > 0.0 || !self.queues[index].is_empty() {
                wanted += channel.pieces[1].bytes_per_ns;
            }
        }
        (wanted / self.machine.ceiling_bytes_per_ns).max(1.0)
    }

    fn split(&mut self, shape: &WorkShape, loads: &[ChannelLoad]) -> RungSplit {
        let bytes = to_float(shape.bytes);
        let least = (0..loads.len()).min_by_key(|channel| loads[*channel].bytes).unwrap_or(0);
        let has_room = |channel: usize| loads.get(channel).is_some_and(|load| load.jobs < JOBS_MAX);
        let below = shape.bytes < THRESHOLD_BYTES;
        let (channel, given) = match self.rung {
            LadderRung::CpuOnly => (0, 0.0),
            LadderRung::NaiveDma => (0, bytes),
            LadderRung::ConcurrencyLimit => (0, if has_room(0) { bytes } else { 0.0 }),
            LadderRung::Scatter => (least, if has_room(least) { bytes } else { 0.0 }),
            LadderRung::Thresholds => (least, if has_room(least) && !below { bytes } else { 0.0 }),
            LadderRung::RatioSplit => {
                let rates =
                    (self.machine.channels[least].pieces[1].bytes_per_ns, self.machine.cpu.bytes_per_ns);
                let part = bytes * rates.0 / (rates.0 + rates.1);
                (least, if has_room(least) && !below && part >= RATIO_PART_MIN { part } else { 0.0 })
            }
            LadderRung::AffineSplit => return self.policy_split(shape, loads),
        };
        let mut split = RungSplit { cpu: bytes - given, together: 1, ..RungSplit::default() };
        split.channels[channel] = given;
        split
    }

    fn policy_split(&mut self, shape: &WorkShape, loads: &[ChannelLoad]) -> RungSplit {
        let plan = self.policy.decide(shape, loads);
        let cpu = to_float(plan.cpu_bytes());
        let mut split = RungSplit { cpu, together: plan.together(), ..RungSplit::default() };
        plan.channel_parts().for_each(|(channel, bytes)| split.channels[channel] = to_float(bytes));
        split
    }

    fn observe(
        &mut self,
        (shape, engine): (WorkShape, MoveEngine),
        part: f64,
        split: &RungSplit,
        ahead: ChannelLoad,
        elapsed: f64,
    ) {
        if self.rung != LadderRung::AffineSplit {
            return;
        }
        let (bytes, elapsed) = (whole(part), Nanos(whole(elapsed)));
        let together = split.together;
        self.policy.observe(&MoveObservation { shape, engine, bytes, together, ahead, elapsed });
    }
}

fn load_of(queue: &[QueuedPart]) -> ChannelLoad {
    let bytes = queue.iter().fold(0.0, |sum, part| sum + part.bytes);
    ChannelLoad { jobs: queue.len().min(BACKLOG_MAX), bytes: whole(bytes) }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a length or a time in nanoseconds, positive and far below 2^53"
)]
fn whole(number: f64) -> u64 {
    (number + 0.5) as u64
}

/// Returns the machines of the ladder: name, machine, cores.
#[must_use]
pub fn ladder_machines() -> [(&'static str, MoveMachine, usize); 2] {
    use super::machine::{AffineTime, BandwidthSharing, ChannelModel};
    use super::published::{DSA_HOST_CPU, DSA_SINGLE};
    let dsa = MoveMachine {
        cpu: AffineTime { fixed_ns: 20.0, bytes_per_ns: DSA_HOST_CPU },
        submit_ns: 60.0,
        channels: vec![ChannelModel { pieces: DSA_SINGLE, engines: 1, depth: 32 }; 4],
        ceiling_bytes_per_ns: 120.0,
        sharing: BandwidthSharing::Proportional,
    };
    // Assumed, not fitted: a slow core at persistent memory, and more, slower channels.
    let slow = MoveMachine {
        cpu: AffineTime { fixed_ns: 20.0, bytes_per_ns: 3.0 },
        submit_ns: 150.0,
        channels: vec![ChannelModel { depth: 32, ..ChannelModel::affine(3_000.0, 5.0) }; 8],
        ceiling_bytes_per_ns: 36.0,
        sharing: BandwidthSharing::Proportional,
    };
    [("four DSA channels", dsa, 8), ("eight slow channels, assumed", slow, 8)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn affine_split_is_the_top_rung() {
        for (name, machine, cores) in ladder_machines() {
            let outcomes = LadderRung::ALL.map(|rung| run_rung(&machine, cores, rung, 4_000, 1));
            let rate = |rung: LadderRung| outcomes[rung as usize].gigabytes_per_second;
            let best = rate(LadderRung::AffineSplit);
            for rung in LadderRung::ALL {
                assert!(rate(rung) <= best, "{name}: {}: {outcomes:.2?}", rung.name());
            }
            let [cpu, affine] = [0, 6].map(|rung: usize| outcomes[rung].cpu_micros_per_mib);
            assert!(affine < cpu, "{name}: {affine} {cpu}");
        }
    }
}
