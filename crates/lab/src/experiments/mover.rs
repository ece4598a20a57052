//! Moves of payload compared with memcpy, and jobs that threads share with the CPU.
//!
//! Input: blocks in the nearest caches, and destinations that are larger than every cache. Output: CPU nanoseconds of a block,
//! and time of a block with threads beside the CPU. The floor is the platform's memcpy of the same bytes, alone.
//! Invariant: a cold destination is written in a scattered order, and is not read.
//!
//! A block is moved as the path moves one of its length: below [`LARGE_JOB_BYTES`] by a kernel in place, from there on as a
//! job, of one step. With a checksum past the cache it is a job at every length. What a job costs at every length is printed beside it. Short copies past the cache share a fence, as pages of the log do.

mod prefault;

use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, LabExperiment, RunContext};
use crate::measure::{CompareCase, SampleSpread, cpu_ns_each, run_interleaved};
use crate::report::ReportRow;
use bytes::Bytes;
use headwater_dma::mover::policy::PolicyConfig;
use headwater_dma::mover::{
    CacheIntent, LARGE_JOB_BYTES, MemoryPlace, MoveChannel, MoveJob, MoveMemory, MoveStep, Mover,
    SoftwareChannel,
};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::copy::{StreamingCopies, copy_crc32c, crc32c};
use headwater_host::lent_bytes::LentBytes;
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
    /// A job, however short.
    Job,
    Moved,
    MovedPastCache,
    MovedWithCrc,
    MovedWithCrcPastCache,
}

const MOVES: [(&str, BlockMove); 7] = [
    ("memcpy (floor)", BlockMove::Memcpy),
    ("memcpy, then crc32c", BlockMove::TwoPasses),
    ("job", BlockMove::Job),
    ("moved", BlockMove::Moved),
    ("moved, not read soon", BlockMove::MovedPastCache),
    ("moved with crc32c", BlockMove::MovedWithCrc),
    ("moved with crc32c, not read soon", BlockMove::MovedWithCrcPastCache),
];

/// The lengths of a block; all are powers of two, as the scattered order requires.
const SIZES: [usize; 11] =
    [64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];
/// The longest of the short lengths, from which the claims about rates hold.
const RATE_BYTES_MIN: usize = 256;
/// The bytes of short copies past the cache that share a fence.
const FENCE_BYTES: usize = 64 << 10;
/// The length from which the claims about cold destinations hold.
const PAGE_BYTES: usize = 4_096;
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
    prefault::measure(rounds, &mut findings);
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

/// The buffers of all ways, and the job that moves between them: memory of a program, as C programs lend it.
struct MoveBuffers {
    mover: Mover,
    /// Empty jobs whose targets are read soon, and are not.
    jobs: [MoveJob; 2],
    source: &'static [u8],
    /// The target of the floor.
    plain: Vec<u8>,
    /// The source as a memory of jobs; taken only while a job runs, as the target is.
    lent_source: MoveMemory,
    target: MoveMemory,
    streaming: StreamingCopies,
    /// Bytes that short copies past the cache stored since their last fence.
    unfenced_bytes: usize,
    next: usize,
}

impl MoveBuffers {
    fn new(seed: u64) -> Self {
        let mut source = vec![0; *SIZES.last().expect("there are sizes")];
        fastrand::Rng::with_seed(seed).fill(&mut source);
        Self::over(source, vec![1; COLD_BYTES])
    }

    fn over(source: Vec<u8>, target: Vec<u8>) -> Self {
        let plain = target.clone();
        let source: &'static [u8] = source.leak();
        Self {
            mover: Mover::default(),
            jobs: [CacheIntent::ReadSoon, CacheIntent::NotSoon]
                .map(|intent| MoveJob::new().with_cache_intent(intent)),
            source,
            plain,
            lent_source: LentBytes::from(source).into(),
            target: LentBytes::from(target.leak()).into(),
            streaming: StreamingCopies::default(),
            unfenced_bytes: 0,
            next: 0,
        }
    }

    /// Returns the place of the next block in the target.
    fn place(&mut self, (location, bytes): (TargetLocation, usize)) -> usize {
        match location {
            TargetLocation::Cached => 0,
            TargetLocation::Cold => {
                let blocks = self.target.bytes() / bytes;
                // An odd step through a power of two visits each block once before any again.
                self.next = (self.next + blocks / 8 * 5 + 0x2_4D1B) % blocks;
                self.next * bytes
            }
        }
    }

    /// Moves the next block.
    fn move_block(&mut self, way: BlockMove, block: (TargetLocation, usize)) -> u32 {
        let (at, bytes) = (self.place(block), block.1);
        let source = &self.source[..bytes];
        match way {
            BlockMove::Memcpy => {
                black_box(&mut self.plain[at..at + bytes]).copy_from_slice(source);
                return 0;
            }
            BlockMove::TwoPasses => {
                let target = black_box(&mut self.plain[at..at + bytes]);
                target.copy_from_slice(source);
                return crc32c(0, target);
            }
            BlockMove::Moved if bytes < LARGE_JOB_BYTES => {
                self.target.put(at, source);
                return 0;
            }
            BlockMove::MovedPastCache | BlockMove::MovedWithCrc if bytes < LARGE_JOB_BYTES => {}
            _ => return self.run_job(way, at, bytes),
        }
        let MoveMemory::Lent(lent) = &mut self.target else { unreachable!("the target is lent memory") };
        let target = &mut lent.as_bytes_mut().expect("the target was lent for writing")[at..at + bytes];
        if way == BlockMove::MovedWithCrc {
            return copy_crc32c(target, source, 0);
        }
        self.streaming.copy(target, source);
        self.fence_some(bytes);
        0
    }

    /// Fences the copies past the cache at every [`FENCE_BYTES`], as the log does: pages that leave together share one.
    fn fence_some(&mut self, bytes: usize) {
        self.unfenced_bytes += bytes;
        if self.unfenced_bytes >= FENCE_BYTES {
            self.unfenced_bytes = 0;
            self.streaming.fence();
        }
    }

    fn run_job(&mut self, way: BlockMove, at: usize, bytes: usize) -> u32 {
        let is_past_cache = matches!(way, BlockMove::MovedPastCache | BlockMove::MovedWithCrcPastCache);
        let has_crc = matches!(way, BlockMove::MovedWithCrc | BlockMove::MovedWithCrcPastCache);
        let job = &mut self.jobs[usize::from(is_past_cache)];
        let source = job.add_memory(std::mem::take(&mut self.lent_source));
        let target = job.add_memory(std::mem::take(&mut self.target));
        let from = MemoryPlace::new(source, 0).range(bytes);
        let to = MemoryPlace::new(target, at);
        job.add_step(if has_crc {
            MoveStep::CopyCrc32c { from, to, seed: 0 }
        } else {
            MoveStep::Copy { from, to }
        });
        self.mover.run(job).expect("the block lies in its buffers");
        let crc = job.crc32c(0).unwrap_or_default();
        let mut memories = job.drain_memories();
        self.lent_source = memories.next().expect("the source returns");
        self.target = memories.next().expect("the target returns");
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
    let rate = "times the rate of memcpy, at the worst length from 256 B on";
    let cold_rate = "times the rate of memcpy, at the worst length from 4 KiB on";
    let from = |bytes: usize| move |case: &&MeasuredCase| case.block_bytes >= bytes;
    let at = |location| move |case: &&MeasuredCase| case.location == location;
    let cold = || cases.iter().filter(at(TargetLocation::Cold)).filter(from(PAGE_BYTES));
    let short =
        cases.iter().filter(at(TargetLocation::Cached)).filter(|case| case.block_bytes <= RATE_BYTES_MIN);
    let more = short.filter_map(|case| {
        let nanos = |way| Some(SampleSpread::of(&case.samples[place(way)])?.median);
        Some(nanos(BlockMove::Moved)? - nanos(BlockMove::Memcpy)?)
    });
    let short_claim = ("p9.mover.short", ClaimGoal::AtMost(2.0), "ns more than memcpy of 64 and 256 B");
    vec![
        worst(
            ("p9.mover.copy", ClaimGoal::AtLeast(0.97), rate),
            cases.iter().filter(from(RATE_BYTES_MIN)),
            (BlockMove::Memcpy, BlockMove::Moved),
        ),
        claim_of(short_claim, more.reduce(f64::max), String::from("memcpy; no job, ticket or counter")),
        worst(
            ("p9.mover.cold", ClaimGoal::AtLeast(1.3), cold_rate),
            cold(),
            (BlockMove::Memcpy, BlockMove::MovedPastCache),
        ),
        worst(
            (
                "p9.mover.crc.cold",
                ClaimGoal::AtMost(1.15),
                "times the CPU of the copy alone, at the worst length",
            ),
            cold(),
            (BlockMove::MovedWithCrc, BlockMove::Moved),
        ),
        worst(
            (
                "p9.mover.crc.past_cache",
                ClaimGoal::AtMost(1.15),
                "times the CPU of the copy past the cache, at the worst length of jobs",
            ),
            cold().filter(from(LARGE_JOB_BYTES)),
            (BlockMove::MovedWithCrcPastCache, BlockMove::MovedPastCache),
        ),
        worst(
            (
                "p9.mover.crc.cached",
                ClaimGoal::AtLeast(1.3),
                "times the rate of two passes, at the worst length",
            ),
            cases.iter().filter(at(TargetLocation::Cached)).filter(from(PAGE_BYTES)),
            (BlockMove::TwoPasses, BlockMove::MovedWithCrc),
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
        for bytes in [4_096, LARGE_JOB_BYTES] {
            let source: Vec<u8> = (0..=255).cycle().take(bytes).collect();
            let mut buffers = MoveBuffers::over(source.clone(), vec![0; 16 * bytes]);
            for location in [TargetLocation::Cached, TargetLocation::Cold] {
                for (name, way) in MOVES {
                    let MoveMemory::Lent(lent) = &mut buffers.target else { panic!("the target is lent") };
                    lent.as_bytes_mut().unwrap().fill(0);
                    buffers.plain.fill(0);
                    let crc = buffers.move_block(way, (location, bytes));
                    let at = if location == TargetLocation::Cached { 0 } else { buffers.next * bytes };
                    let MoveMemory::Lent(lent) = &buffers.target else { panic!("the target is lent") };
                    let is_floor = matches!(way, BlockMove::Memcpy | BlockMove::TwoPasses);
                    let target = if is_floor { &buffers.plain[..] } else { lent.as_bytes() };
                    assert!(target[at..at + bytes] == source, "{name} of {bytes} bytes");
                    let checks = matches!(
                        way,
                        BlockMove::TwoPasses | BlockMove::MovedWithCrc | BlockMove::MovedWithCrcPastCache
                    );
                    assert_eq!(crc == crc32c(0, &source), checks, "{name} of {bytes} bytes");
                }
            }
        }
    }
}
