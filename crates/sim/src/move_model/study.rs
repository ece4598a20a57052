//! The study of offload: movers over modelled channels do the same copies in several ways.
//!
//! Input: a machine, a way to do jobs, and a point (length, copies of a job, jobs in flight, offset, direction). Output: the
//! virtual time and the CPU time of a copy, and the smallest length from which one way beats another. Invariant: the mover's
//! own code decides, splits, submits and waits; every byte of every job is compared with its source.
//!
//! # What this does not do
//! It measures nothing: time is a model's. It does not know what the published tables leave out, such as the time of the
//! mover's own instructions.

use super::machine::{MoveMachine, to_float, to_whole};
use super::modelled_channel::ChannelFaults;
use super::modelled_machine::{JobCosts, ModelledMachine};
use super::policy_run::channel_traits;
use bytes::Bytes;
use fastrand::Rng;
use headwater_dma::mover::policy::{CacheWrites, ChannelTraits, PolicyConfig};
use headwater_dma::mover::{
    MemoryPlace, MoveDurability, MoveJob, MoveMemory, MoveStep, Mover, SourceKind, VirtualTime as _,
};

/// The most bytes of the jobs in flight at a point.
const IN_FLIGHT_BYTES_MAX: usize = 64 << 20;
/// Jobs of a point whose jobs are done one after another.
const SYNCHRONOUS_JOBS: usize = 4;
/// Jobs of a point for each that is in flight.
const JOBS_A_PLACE: usize = 12;
/// The smallest part of a job that Fastmove gives to a channel, in bytes.
pub const RATIO_PART_MIN: u64 = 8_192;
/// The shortest and the longest copy while a mover learns, as logarithms of their bytes.
const LEARNED_LENGTHS: std::ops::RangeInclusive<u32> = 8..=20;

/// The way in which a mover does its jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StudyWay {
    /// The CPU does every job.
    Cpu,
    /// Channels do every job: a job that waits is scattered over all of them, a started one goes to one.
    Channels,
    /// The CPU and the channels share a job by the ratio of their bandwidths, as Fastmove does; the ratio is known.
    RatioSplit,
    /// The CPU and the channels share a job by the affine model, whose parameters are known.
    AffineSplit,
    /// The policy of the mover, which is not told about the machine.
    Learned,
}

/// A machine, and the way to use it.
#[derive(Clone, Debug)]
pub struct StudySetup {
    /// The machine.
    pub machine: MoveMachine,
    /// The costs of jobs beside it.
    pub costs: JobCosts,
    /// The way.
    pub way: StudyWay,
    /// The rate of the CPU that ways with known parameters take, in bytes a nanosecond.
    pub known_cpu_rate: f64,
    /// The smallest part of a channel in a [split by ratio](StudyWay::RatioSplit), in bytes; the CPU does a shorter job.
    pub ratio_part_min: u64,
    /// The most jobs on a channel; the CPU does the next one.
    pub jobs_max: usize,
    /// The way of the channels' writes through the cache.
    pub cache_writes: CacheWrites,
}

impl StudySetup {
    /// Returns the same machine, used in another way.
    #[must_use]
    pub fn by(&self, way: StudyWay) -> Self {
        Self { way, ..self.clone() }
    }

    fn policy(&self) -> PolicyConfig {
        let usual = PolicyConfig { threshold_bytes: [1; 4], part_min_bytes: 64, ..PolicyConfig::default() };
        let long = self.machine.channels.first().map_or((0.0, 1.0), |channel| {
            (channel.pieces[1].fixed_ns + self.machine.submit_ns, channel.pieces[1].bytes_per_ns)
        });
        let known = PolicyConfig {
            cpu_bytes_per_ns: self.known_cpu_rate,
            channel_fixed_ns: long.0,
            channel_bytes_per_ns: long.1,
            ..usual
        };
        match self.way {
            StudyWay::Cpu => PolicyConfig { threshold_bytes: [u64::MAX; 4], ..usual },
            // A channel that ends later than expected rests: this one is expected so slow that none does, pages missing or not.
            StudyWay::Channels => PolicyConfig {
                cpu_bytes_per_ns: 1e-12,
                channel_fixed_ns: 0.0,
                channel_bytes_per_ns: 1e-3,
                ..usual
            },
            StudyWay::RatioSplit => {
                let whole = to_float(self.ratio_part_min) * (1.0 + self.known_cpu_rate / long.1);
                let threshold_bytes = [to_whole(whole); 4];
                PolicyConfig { channel_fixed_ns: 0.0, threshold_bytes, ..known }
            }
            StudyWay::AffineSplit => known,
            StudyWay::Learned => usual,
        }
    }
}

/// A point of the study.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StudyPoint {
    /// Bytes of a copy.
    pub bytes: usize,
    /// Copies of a job.
    pub copies: usize,
    /// Jobs in flight; one is run and waited for, several are started.
    pub depth: usize,
    /// The offset of each source from a cache line, in bytes.
    pub offset: usize,
    /// The kind of memory that the copies read.
    pub source: SourceKind,
    /// The guarantee for the copies.
    pub durability: MoveDurability,
}

impl StudyPoint {
    /// Returns one aligned copy a job, one job after another.
    #[must_use]
    pub const fn synchronous(bytes: usize) -> Self {
        let (source, durability) = (SourceKind::Dram, MoveDurability::Visible);
        Self { bytes, copies: 1, depth: 1, offset: 0, source, durability }
    }

    /// Returns one job after another of so many bytes in pages of 4 KiB, so that several engines can share it: between 2 and
    /// 64 pieces.
    #[must_use]
    pub fn in_pieces(bytes: usize) -> Self {
        let copies = (bytes / 4_096).clamp(2, 64);
        Self { bytes: (bytes / copies).max(1), copies, ..Self::synchronous(bytes) }
    }
}

/// The time of a copy at a point.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StudyTime {
    /// Virtual time between the ends of two copies, in nanoseconds.
    pub ns_per_copy: f64,
    /// CPU time of a copy: copying, submitting, flushing. Waiting does not count.
    pub busy_ns_per_copy: f64,
}

/// A mover on a machine of the study.
#[derive(Debug)]
pub struct StudyRun {
    machine: ModelledMachine,
    mover: Mover,
    /// The most jobs in flight of which channels get every byte; 0 if they do not.
    channels_only_to: usize,
    sources: [Bytes; 2],
    /// Jobs that have returned, for their memories.
    idle: Vec<MoveJob>,
    jobs: usize,
    wrong_bytes: u64,
}

impl StudyRun {
    /// Creates a mover on a machine. `seed` draws the bytes.
    #[must_use]
    pub fn new(setup: &StudySetup, seed: u64) -> Self {
        let machine = ModelledMachine::new(setup.machine.clone(), setup.costs, seed);
        let traits = |channel: usize| ChannelTraits {
            depth: setup.jobs_max,
            cache_writes: setup.cache_writes,
            ..channel_traits(&setup.machine.channels[channel])
        };
        let channels = machine.channels(traits, ChannelFaults::default(), seed);
        let mut mover = Mover::with_virtual_time(channels, setup.policy(), Box::new(machine.clone()));
        if setup.way != StudyWay::Learned
            && let Some(policy) = mover.policy_mut()
        {
            policy.freeze();
        }
        let mut rng = Rng::with_seed(seed);
        // Consecutive jobs have other bytes, so that one that was not done is seen.
        let sources = [0, 1].map(|_| Bytes::from_iter((0..64 << 10).map(|_| rng.u8(..))));
        let has_channels = setup.way == StudyWay::Channels && !setup.machine.channels.is_empty();
        let channels_only_to = if has_channels { setup.jobs_max } else { 0 };
        Self { machine, mover, channels_only_to, sources, idle: Vec::new(), jobs: 0, wrong_bytes: 0 }
    }

    /// Does jobs of random lengths, one after another, from which a policy learns. `point` returns the point of a length.
    pub fn learn(&mut self, jobs: usize, seed: u64, point: impl Fn(usize) -> StudyPoint) {
        let mut rng = Rng::with_seed(seed);
        for _ in 0..jobs {
            let bytes = drawn_length(&mut rng);
            self.run_job(&point(bytes));
        }
    }

    /// Stops the learning of the mover.
    pub fn freeze(&mut self) {
        if let Some(policy) = self.mover.policy_mut() {
            policy.freeze();
        }
    }

    /// Returns the bytes that differed from their source.
    #[must_use]
    pub fn wrong_bytes(&self) -> u64 {
        self.wrong_bytes
    }

    /// Returns the bytes that channels were given.
    #[must_use]
    pub fn channel_bytes(&self) -> u64 {
        self.mover.channel_counters().channel_bytes
    }

    /// Does the jobs of a point, and returns the time of a copy.
    ///
    /// # Panics
    /// A point has more than 64 MiB in flight, a started job was lost, or the CPU did a part of jobs that are for channels only:
    /// the time would be the CPU's.
    pub fn time(&mut self, point: &StudyPoint) -> StudyTime {
        assert!(point.bytes * point.copies * point.depth <= IN_FLIGHT_BYTES_MAX, "{point:?} is too large");
        let (begun, given) = (self.machine.cpu_times(), self.channel_bytes());
        let jobs = if point.depth == 1 { SYNCHRONOUS_JOBS } else { JOBS_A_PLACE * point.depth };
        if point.depth == 1 {
            (0..jobs).for_each(|_| self.run_job(point));
        } else {
            self.start_jobs(point, jobs);
        }
        let ended = self.machine.cpu_times();
        if point.depth <= self.channels_only_to {
            let (all, given) = ((jobs * point.copies * point.bytes) as u64, self.channel_bytes() - given);
            assert!(given == all, "channels were given {given} of {all} bytes at {point:?}");
        }
        let copies = to_float((jobs * point.copies) as u64);
        StudyTime {
            ns_per_copy: (ended.now_ns - begun.now_ns) / copies,
            busy_ns_per_copy: (ended.busy_ns - begun.busy_ns) / copies,
        }
    }

    fn run_job(&mut self, point: &StudyPoint) {
        let mut job = self.job(point);
        self.mover.run(&mut job).expect("the steps of the study name ranges of their memories");
        self.take(job, point);
    }

    fn start_jobs(&mut self, point: &StudyPoint, jobs: usize) {
        let (mut started, mut ended) = (0, 0);
        while ended < jobs {
            if started < jobs && started - ended < point.depth {
                let job = self.job(point);
                // Its ticket is not needed: jobs are taken in the order of their ends.
                let ticket = self.mover.start(job).expect("the mover has room for the jobs of a point");
                drop(ticket);
                started += 1;
            } else if let Some((_, job)) = self.mover.poll_any() {
                self.take(job, point);
                ended += 1;
            } else {
                self.machine.wait();
            }
        }
    }

    /// Returns a job of a point. Sources begin anew after 64 KiB; each copy has a target of its own.
    fn job(&mut self, point: &StudyPoint) -> MoveJob {
        let memories: Vec<MoveMemory> =
            self.idle.pop().map(|mut job| job.drain_memories().collect()).unwrap_or_default();
        let mut targets = memories.into_iter().filter_map(MoveMemory::into_vec);
        let mut job = MoveJob::new().with_durability(point.durability).with_source_kind(point.source);
        let source = self.source(self.jobs, point);
        self.jobs += 1;
        let from = job.add_memory(source);
        for _ in 0..point.copies {
            let mut target = targets.next().unwrap_or_default();
            // What an earlier job wrote may be what this one writes: no byte of it may stay.
            target.clear();
            target.resize(point.bytes, 0);
            let to = job.add_memory(target);
            let from = MemoryPlace::new(from, point.offset).range(point.bytes);
            job.add_step(MoveStep::Copy { from, to: MemoryPlace::new(to, 0) });
        }
        job
    }

    /// Returns the source of a job: one of two texts, long enough.
    fn source(&mut self, job: usize, point: &StudyPoint) -> Bytes {
        let needed = point.bytes + point.offset;
        let source = &mut self.sources[job % 2];
        while source.len() < needed {
            *source = [&source[..], &source[..]].concat().into();
        }
        source.clone()
    }

    /// Compares what a job wrote with its source.
    fn take(&mut self, mut job: MoveJob, point: &StudyPoint) {
        let mut memories = job.memories().iter();
        let Some(MoveMemory::Bytes(source)) = memories.next() else { return };
        let source = &source[point.offset..point.offset + point.bytes];
        for memory in memories {
            let MoveMemory::Vec(target) = memory else { continue };
            let wrong = if target[..] == *source {
                0
            } else {
                target.iter().zip(source).filter(|(one, other)| one != other).count()
            };
            self.wrong_bytes += wrong as u64;
        }
        if job.results().len() != point.copies {
            self.wrong_bytes += point.bytes as u64;
        }
        let memories: Vec<MoveMemory> = job.drain_memories().collect();
        memories.into_iter().for_each(|memory| {
            job.add_memory(memory);
        });
        self.idle.push(job);
        self.idle.truncate(point.depth.max(1));
    }
}

/// Draws a length: each doubling is as frequent as the next.
fn drawn_length(rng: &mut Rng) -> usize {
    let doubling = rng.u32(LEARNED_LENGTHS);
    (1 << doubling) + rng.usize(0..1 << doubling)
}

/// Returns the lengths at which ways are compared: four for each doubling, whole cache lines, from 64 bytes to `longest`.
#[must_use]
pub fn study_lengths(longest: usize) -> Vec<usize> {
    let mut lengths: Vec<usize> = (6..26)
        .flat_map(|doubling| [4, 5, 6, 7].map(|quarter| ((1_usize << doubling) * quarter / 4) & !63))
        .filter(|bytes| (64..=longest).contains(bytes))
        .collect();
    lengths.dedup();
    lengths
}

/// A comparison of two ways over all lengths.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BreakEven {
    /// The smallest length in bytes from which on the first way wins; `None` if it does not win at the longest.
    pub bytes: Option<usize>,
    /// The largest share by which it is slower, at any length; 0 if it never is.
    pub loss: f64,
    /// The share of the time that it saves at the longest length; negative if it is slower.
    pub gain: f64,
    /// Bytes that differed from their source in both ways.
    pub wrong_bytes: u64,
}

impl BreakEven {
    /// Adds the share of the second way's time that the first takes for the next length.
    fn add(&mut self, bytes: usize, share: f64) {
        if share > 0.999 {
            self.bytes = None;
        } else if self.bytes.is_none() {
            self.bytes = Some(bytes);
        }
        (self.loss, self.gain) = (self.loss.max(share - 1.0), 1.0 - share);
    }
}

/// Compares `offload` with `other` on movers of their own, at every one of [`study_lengths`]. `point` returns the point of
/// a length. A way wins if it takes less time by a thousandth.
#[must_use]
pub fn break_even(
    (offload, other): (&StudySetup, &StudySetup),
    longest: usize,
    point: impl Fn(usize) -> StudyPoint,
) -> BreakEven {
    let (mut first, mut second) = (StudyRun::new(offload, 1), StudyRun::new(other, 2));
    compare((&mut first, &mut second), longest, point)
}

/// Compares two movers, as [`break_even`] does.
#[must_use]
pub fn compare(
    (first, second): (&mut StudyRun, &mut StudyRun),
    longest: usize,
    point: impl Fn(usize) -> StudyPoint,
) -> BreakEven {
    let mut found = BreakEven::default();
    for bytes in study_lengths(longest) {
        let point = point(bytes);
        let share = first.time(&point).ns_per_copy / second.time(&point).ns_per_copy;
        found.add(bytes, share);
    }
    found.wrong_bytes = first.wrong_bytes() + second.wrong_bytes();
    found
}

#[cfg(test)]
mod tests {
    use super::super::study_machines::{NO_CEILING, amd_setup, dsa_setup};
    use super::*;
    use headwater_dma::mover::policy::{MoveDirection, MoveEngine, WorkShape};

    #[test]
    fn lengths_are_cache_lines_and_four_a_doubling() {
        assert_eq!(study_lengths(512), [64, 128, 192, 256, 320, 384, 448, 512]);
        let lengths = study_lengths(1 << 20);
        assert_eq!(lengths.last(), Some(&(1 << 20)));
        assert!(lengths.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(lengths.iter().filter(|bytes| (4_096..8_192).contains(*bytes)).count(), 4);
    }

    #[test]
    fn way_does_what_it_says() {
        let dsa = dsa_setup(1, NO_CEILING);
        let given = |way, point: StudyPoint| {
            let mut run = StudyRun::new(&dsa.by(way), 1);
            run.time(&point);
            assert_eq!(run.wrong_bytes(), 0, "{way:?}");
            let jobs = if point.depth == 1 { SYNCHRONOUS_JOBS } else { JOBS_A_PLACE * point.depth };
            to_float(run.channel_bytes()) / to_float((jobs * point.copies * point.bytes) as u64)
        };
        let long = StudyPoint::in_pieces(1 << 20);
        assert!(given(StudyWay::Cpu, long) < 1e-9);
        assert!(given(StudyWay::Channels, long) > 0.999);
        let in_flight = StudyPoint { depth: 8, ..StudyPoint::synchronous(64) };
        assert!(given(StudyWay::Channels, in_flight) > 0.999);
        // 29.9 to 9.6, whatever the latency.
        let ratio = given(StudyWay::RatioSplit, StudyPoint::in_pieces(64 << 10));
        assert!((0.70..0.82).contains(&ratio), "{ratio}");
        assert!(given(StudyWay::RatioSplit, StudyPoint::in_pieces(8 << 10)) < 1e-9);
        let affine = given(StudyWay::AffineSplit, StudyPoint::in_pieces(64 << 10));
        assert!((0.55..0.70).contains(&affine), "{affine}");
    }

    #[test]
    fn policy_learns_the_direction_of_a_point() {
        let mut run = StudyRun::new(&dsa_setup(1, NO_CEILING).by(StudyWay::Learned), 1);
        run.learn(20, 1, |bytes| StudyPoint {
            source: SourceKind::Persistent,
            ..StudyPoint::in_pieces(bytes)
        });
        let of = |direction| WorkShape { direction, ..WorkShape::copy(4_096) };
        let known = |shape: WorkShape| run.mover.policy()?.estimate(&shape, MoveEngine::Cpu, 1);
        assert!(known(of(MoveDirection::FromPersistent)).is_some());
        assert!(known(of(MoveDirection::BetweenDram)).is_none());
    }

    #[test]
    fn copy_that_is_not_done_is_seen_at_every_depth() {
        for depth in 1..=8 {
            let mut run = StudyRun::new(&dsa_setup(1, NO_CEILING), 1);
            let point = StudyPoint { depth, ..StudyPoint::synchronous(1_000) };
            run.time(&point);
            assert_eq!(run.wrong_bytes(), 0);
            for nth in 1..=depth as u64 {
                let untouched = run.job(&point);
                run.take(untouched, &point);
                // A thousand bytes, but for zeroes, and a thousand for the missing result.
                assert!(run.wrong_bytes() > nth * 1_900, "{depth}: {}", run.wrong_bytes());
            }
        }
    }

    #[test]
    fn channels_of_a_way_by_channels_do_not_rest_at_missing_pages() {
        let usual = dsa_setup(1, NO_CEILING);
        let costs = JobCosts { channel_page_ns: 100_000.0, ..usual.costs };
        let missing = StudySetup { costs, ..usual };
        let mut run = StudyRun::new(&missing, 1);
        for bytes in [64, 4_096, 1 << 20] {
            let point = StudyPoint::synchronous(bytes);
            let nanos = run.time(&point).ns_per_copy;
            assert!(nanos > 100_000.0 * to_float(bytes.div_ceil(4_096) as u64), "{bytes}: {nanos}");
        }
        assert_eq!(run.mover.channel_counters().late, 0);
    }

    #[test]
    fn break_even_lies_behind_the_last_length_that_loses() {
        let of = |shares: &[f64]| {
            let mut found = BreakEven::default();
            shares.iter().enumerate().for_each(|(bytes, share)| found.add(bytes, *share));
            found
        };
        let found = of(&[2.0, 0.9, 1.5, 0.8, 0.5]);
        assert_eq!((found.bytes, found.loss, found.gain), (Some(3), 1.0, 0.5));
        assert_eq!(of(&[0.5, 1.0]).bytes, None);
    }

    #[test]
    fn break_even_is_the_length_from_which_on_the_first_way_wins() {
        let dsa = dsa_setup(1, NO_CEILING);
        let found = break_even((&dsa, &dsa.by(StudyWay::Cpu)), 1 << 20, StudyPoint::synchronous);
        // 1,160 ns + n/29.9 = n/9.3.
        assert!(found.bytes.is_some_and(|bytes| (12_288..=18_432).contains(&bytes)), "{found:?}");
        assert!(found.loss > 10.0 && found.gain > 0.6 && found.wrong_bytes == 0, "{found:?}");
        let same = break_even((&dsa, &dsa), 4_096, StudyPoint::synchronous);
        assert_eq!((same.bytes, same.loss), (None, 0.0));
        let amd = amd_setup();
        let found = break_even((&amd, &amd.by(StudyWay::Cpu)), 256 << 10, StudyPoint::synchronous);
        assert_eq!(found.bytes, None);
    }
}
