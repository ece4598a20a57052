//! Jobs of the mover compared with memcpy, and jobs that threads share with the CPU.
//!
//! Input: blocks in the nearest caches, and destinations that are larger than every cache. Output: CPU nanoseconds of a block,
//! and time of a block with threads beside the CPU. The floor is the platform's memcpy of the same bytes, alone.
//! Invariant: a cold destination is written in a scattered order, and is not read.

use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, LabExperiment, RunContext};
use crate::measure::{CompareCase, SampleSpread, cpu_ns_each, run_interleaved};
use crate::report::ReportRow;
use bytes::Bytes;
use headwater_dma::mover::policy::PolicyConfig;
use headwater_dma::mover::{
    CacheIntent, MemoryPlace, MoveChannel, MoveJob, MoveMemory, MoveStep, Mover, SoftwareChannel,
};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::copy::crc32c;
use std::cell::RefCell;
use std::convert::Infallible;
use std::hint::black_box;

/// The experiment's entry in the table.
pub(crate) const EXPERIMENT: LabExperiment = LabExperiment {
    name: "mover",
    summary: "CPU of jobs of the mover beside memcpy, and time of jobs that threads share",
    baseline: "the platform's memcpy; memcpy and CRC-32C one after the other",
    claims: &["p9.mover.*"],
    run,
};

/// The way to move a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockMove {
    Memcpy,
    TwoPasses,
    Job,
    JobPastCache,
    JobWithCrc,
}

const MOVES: [(&str, BlockMove); 5] = [
    ("memcpy (floor)", BlockMove::Memcpy),
    ("memcpy, then crc32c", BlockMove::TwoPasses),
    ("job", BlockMove::Job),
    ("job, not read soon", BlockMove::JobPastCache),
    ("job with crc32c", BlockMove::JobWithCrc),
];

/// The lengths of a block; all are powers of two, as the scattered order requires.
const SIZES: [usize; 6] = [256, 4 << 10, 16 << 10, 64 << 10, 1 << 20, 16 << 20];
/// The length from which the claims about rates hold: what is shorter needs no job.
const JOB_BYTES_MIN: usize = 16 << 10;
/// The length of the claims about checksums.
const CRC_BYTES: usize = 64 << 10;
const SHORT_BYTES: usize = 256;
const COLD_BYTES: usize = 1 << 30;
/// The bytes that both buffers of a block in the nearest caches take at most.
const WARM_BYTES_MAX: usize = 1 << 20;
/// Bytes moved by one round of one way.
const ROUND_BYTES: usize = 64 << 20;
const QUICK_ROUND_BYTES: usize = 16 << 20;
const ROUNDS: usize = 21;
const QUICK_ROUNDS: usize = 9;
/// The bytes of a step of a job that threads share: a page.
const STEP_BYTES: usize = 4_096;
const THREADS: usize = 1;

/// The location of the destination before the copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TargetLocation {
    Cached,
    Cold,
}

fn run(context: &RunContext) -> Result<ExperimentFindings, LabError> {
    let (round_bytes, rounds) =
        if context.is_quick() { (QUICK_ROUND_BYTES, QUICK_ROUNDS) } else { (ROUND_BYTES, ROUNDS) };
    // Written before the first round, so that no round pays for page faults.
    let mut buffers = MoveBuffers::new(context.seed());
    let mut findings = ExperimentFindings::default();
    let mut cases = Vec::new();
    for location in [TargetLocation::Cached, TargetLocation::Cold] {
        for block_bytes in SIZES {
            if location == TargetLocation::Cached && 2 * block_bytes > WARM_BYTES_MAX {
                continue;
            }
            let round_bytes = round_bytes.max(block_bytes);
            let samples = measure(&mut buffers, (location, block_bytes), round_bytes, rounds);
            findings.rows.extend(rows(location, block_bytes, &samples));
            cases.push(MeasuredCase { location, block_bytes, samples });
        }
    }
    findings.claims.extend(claims(&cases));
    for block_bytes in [64 << 10, 1 << 20, 16 << 20] {
        findings.rows.push(shared_row(block_bytes, rounds).map_err(thread_error)?);
    }
    Ok(findings)
}

fn thread_error(error: headwater_dma::mover::ChannelStartError) -> LabError {
    LabError::Io { what: "start a thread of the mover", source: std::io::Error::other(error) }
}

/// The samples of one length at one location, by the way.
struct MeasuredCase {
    location: TargetLocation,
    block_bytes: usize,
    samples: Vec<Vec<f64>>,
}

impl MeasuredCase {
    /// Returns the ratio of the times of two ways.
    fn ratio(&self, numerator: BlockMove, denominator: BlockMove) -> Option<SampleSpread> {
        SampleSpread::of_ratios(&self.samples[place(numerator)], &self.samples[place(denominator)])
    }
}

fn place(way: BlockMove) -> usize {
    MOVES.iter().position(|(_, other)| *other == way).expect("every way is in the table")
}

/// The buffers of all ways, and the job that moves between them.
struct MoveBuffers {
    mover: Mover,
    job: MoveJob,
    source: Bytes,
    target: Vec<u8>,
    next: usize,
}

impl MoveBuffers {
    fn new(seed: u64) -> Self {
        let mut source = vec![0; *SIZES.last().expect("there are sizes")];
        fastrand::Rng::with_seed(seed).fill(&mut source);
        let target = vec![1; COLD_BYTES];
        Self { mover: Mover::default(), job: MoveJob::new(), source: source.into(), target, next: 0 }
    }

    /// Moves the next block.
    fn move_block(&mut self, way: BlockMove, (location, bytes): (TargetLocation, usize)) -> u32 {
        let at = match location {
            TargetLocation::Cached => 0,
            TargetLocation::Cold => {
                let blocks = self.target.len() / bytes;
                // An odd step through a power of two visits each block once before any again.
                self.next = (self.next + blocks / 8 * 5 + 0x2_4D1B) % blocks;
                self.next * bytes
            }
        };
        match way {
            BlockMove::Memcpy => {
                black_box(&mut self.target[at..at + bytes]).copy_from_slice(&self.source[..bytes]);
                0
            }
            BlockMove::TwoPasses => {
                let target = black_box(&mut self.target[at..at + bytes]);
                target.copy_from_slice(&self.source[..bytes]);
                crc32c(0, target)
            }
            BlockMove::Job | BlockMove::JobPastCache | BlockMove::JobWithCrc => self.run_job(way, at, bytes),
        }
    }

    fn run_job(&mut self, way: BlockMove, at: usize, bytes: usize) -> u32 {
        let intent = match way {
            BlockMove::JobPastCache => CacheIntent::NotSoon,
            _ => CacheIntent::ReadSoon,
        };
        let mut job = std::mem::take(&mut self.job).with_cache_intent(intent);
        let source = job.add_memory(self.source.clone());
        let target = job.add_memory(std::mem::take(&mut self.target));
        let from = MemoryPlace::new(source, 0).range(bytes);
        let to = MemoryPlace::new(target, at);
        job.add_step(if way == BlockMove::JobWithCrc {
            MoveStep::CopyCrc32c { from, to, seed: 0 }
        } else {
            MoveStep::Copy { from, to }
        });
        self.mover.run(&mut job).expect("the block lies in its buffers");
        let crc = job.crc32c(0).unwrap_or_default();
        self.target = job.drain_memories().nth(1).and_then(MoveMemory::into_vec).expect("the target returns");
        self.job = job;
        crc
    }
}

/// Returns the CPU nanoseconds for a block: for each way, one value a round.
fn measure(
    buffers: &mut MoveBuffers,
    (location, block_bytes): (TargetLocation, usize),
    round_bytes: usize,
    rounds: usize,
) -> Vec<Vec<f64>> {
    let count = (round_bytes / block_bytes) as u64;
    // The ways run one at a time, so only one of them borrows the buffers.
    let shared = RefCell::new(buffers);
    let mut work: Vec<_> = MOVES
        .iter()
        .map(|(_, way)| {
            let shared = &shared;
            move || {
                let mut buffers = shared.borrow_mut();
                Ok::<f64, Infallible>(cpu_ns_each(count, || {
                    for _ in 0..count {
                        black_box(buffers.move_block(*way, (location, block_bytes)));
                    }
                }))
            }
        })
        .collect();
    let mut cases: Vec<CompareCase<'_, f64, Infallible>> = Vec::new();
    for way in &mut work {
        cases.push(way);
    }
    match run_interleaved(rounds, &mut cases) {
        Ok(samples) => samples,
        Err(never) => match never {},
    }
}

const fn location_name(location: TargetLocation) -> &'static str {
    match location {
        TargetLocation::Cached => "cached",
        TargetLocation::Cold => "cold, not read",
    }
}

#[expect(clippy::cast_precision_loss, reason = "a block is far below 2^52 bytes")]
fn rows(location: TargetLocation, block_bytes: usize, samples: &[Vec<f64>]) -> Vec<ReportRow> {
    let row = |((name, _), samples): (&(&str, BlockMove), &Vec<f64>)| {
        let spread = SampleSpread::of(samples);
        ReportRow::new()
            .with("destination", location_name(location))
            .with("block_bytes", block_bytes as u64)
            .with("way", *name)
            .with("cpu_ns_per_block", spread)
            .with("gb_per_s", spread.map(|spread| block_bytes as f64 / spread.median))
    };
    MOVES.iter().zip(samples).map(row).collect()
}

fn claims(cases: &[MeasuredCase]) -> Vec<LabClaim> {
    let rate = "times the rate of memcpy, at the worst length";
    let from_job = |case: &&MeasuredCase| case.block_bytes >= JOB_BYTES_MIN;
    let copy = cases.iter().filter(from_job);
    let cold = |case: &&MeasuredCase| case.location == TargetLocation::Cold;
    let of = |location, bytes| {
        cases.iter().filter(move |case| case.location == location && case.block_bytes == bytes)
    };
    let short = of(TargetLocation::Cached, SHORT_BYTES).find_map(|case| {
        let nanos = |way| Some(SampleSpread::of(&case.samples[place(way)])?.median);
        Some(nanos(BlockMove::Job)? - nanos(BlockMove::Memcpy)?)
    });
    let short_claim = ("p9.mover.short", ClaimGoal::AtMost(2.0), "ns more than memcpy of 256 B, as a job");
    vec![
        worst(("p9.mover.copy", ClaimGoal::AtLeast(0.97), rate), copy, (BlockMove::Memcpy, BlockMove::Job)),
        claim_of(short_claim, short, String::from("memcpy; what is so short needs no job in the product")),
        worst(
            ("p9.mover.cold", ClaimGoal::AtLeast(1.3), rate),
            cases.iter().filter(cold).filter(|case| case.block_bytes > SHORT_BYTES),
            (BlockMove::Memcpy, BlockMove::JobPastCache),
        ),
        worst(
            ("p9.mover.crc.cold", ClaimGoal::AtMost(1.15), "times the CPU of the copy alone, 64 KiB"),
            of(TargetLocation::Cold, CRC_BYTES),
            (BlockMove::JobWithCrc, BlockMove::Job),
        ),
        worst(
            ("p9.mover.crc.cached", ClaimGoal::AtLeast(1.3), "times the rate of two passes, 64 KiB"),
            of(TargetLocation::Cached, CRC_BYTES),
            (BlockMove::TwoPasses, BlockMove::JobWithCrc),
        ),
    ]
}

/// Returns the claim about the worst of some cases.
fn worst<'a>(
    claim: (&'static str, ClaimGoal, &'static str),
    cases: impl Iterator<Item = &'a MeasuredCase>,
    (numerator, denominator): (BlockMove, BlockMove),
) -> LabClaim {
    let ratios = cases.filter_map(|case| Some((case, case.ratio(numerator, denominator)?)));
    let wants_more = matches!(claim.1, ClaimGoal::AtLeast(_));
    let found = ratios.min_by(|(_, one), (_, other)| {
        let order = one.median.total_cmp(&other.median);
        if wants_more { order } else { order.reverse() }
    });
    let baseline = found.map_or_else(String::new, |(case, ratio)| {
        let place = location_name(case.location);
        format!("{} B, destination {place}; samples {:.2} to {:.2}", case.block_bytes, ratio.min, ratio.max)
    });
    claim_of(claim, found.map(|(_, ratio)| ratio.median), baseline)
}

fn claim_of(
    (name, goal, unit): (&'static str, ClaimGoal, &'static str),
    value: Option<f64>,
    baseline: String,
) -> LabClaim {
    match value {
        Some(value) => LabClaim::found(name, goal, (value, unit), EvidenceLabel::Measured, baseline),
        None => LabClaim::not_run(name, goal, unit, "a round took no CPU time"),
    }
}

/// Measures the time of a job of pages, by the CPU alone and with threads beside it.
#[expect(clippy::cast_precision_loss, reason = "the times are far below 2^52 ns")]
fn shared_row(
    block_bytes: usize,
    rounds: usize,
) -> Result<ReportRow, headwater_dma::mover::ChannelStartError> {
    let clock = Clock::start();
    let mut channels: Vec<Box<dyn MoveChannel>> = Vec::new();
    for _ in 0..THREADS {
        channels.push(Box::new(SoftwareChannel::start(clock, Nanos::from_micros(50))?));
    }
    let threads = Mover::with_channels(channels, PolicyConfig::of_software_channels(), clock);
    let mut movers = [Mover::default(), threads];
    let mut job = MoveJob::new();
    let source = job.add_memory(Bytes::from(vec![7; block_bytes]));
    for at in (0..block_bytes).step_by(STEP_BYTES) {
        let target = job.add_memory(vec![0; STEP_BYTES]);
        let from = MemoryPlace::new(source, at).range(STEP_BYTES);
        job.add_step(MoveStep::CopyCrc32c { from, to: MemoryPlace::new(target, 0), seed: 0 });
    }
    let mut samples = [Vec::new(), Vec::new()];
    // The policy learns in the first half, which does not count.
    for round in 0..2 * rounds.max(100) {
        for (mover, samples) in movers.iter_mut().zip(&mut samples) {
            let begun = clock.now();
            mover.run(&mut job).expect("the pages lie in their buffers");
            if round >= rounds.max(100) {
                samples.push(clock.now().since(begun).0 as f64);
            }
        }
    }
    let counters = movers[1].channel_counters();
    Ok(ReportRow::new()
        .with("job", "pages copied with crc32c")
        .with("block_bytes", block_bytes as u64)
        .with("ns_by_the_cpu", SampleSpread::of(&samples[0]))
        .with("ns_with_threads", SampleSpread::of(&samples[1]))
        .with("threads", THREADS as u64)
        .with("parts_on_threads", counters.channel_jobs)
        .with("taken_back", counters.taken_back))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_moves_the_block_and_the_checked_ones_agree() {
        let mut buffers = MoveBuffers {
            mover: Mover::default(),
            job: MoveJob::new(),
            source: (0..=255).cycle().take(4_096).collect::<Vec<u8>>().into(),
            target: vec![0; 1 << 16],
            next: 0,
        };
        for location in [TargetLocation::Cached, TargetLocation::Cold] {
            for (name, way) in MOVES {
                buffers.target.fill(0);
                let crc = buffers.move_block(way, (location, 4_096));
                let at = if location == TargetLocation::Cached { 0 } else { buffers.next * 4_096 };
                assert!(buffers.target[at..at + 4_096] == buffers.source[..], "{name}");
                let checks = matches!(way, BlockMove::TwoPasses | BlockMove::JobWithCrc);
                assert_eq!(crc == crc32c(0, &buffers.source), checks, "{name}");
            }
        }
    }
}
