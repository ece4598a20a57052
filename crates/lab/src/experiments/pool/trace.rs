//! Buffers of mixed sizes with random lifetimes: cache hit rate, cost, and scaling to a second thread.
//!
//! Input: a trace, generated before the measurement. Each step frees a random buffer and allocates one of random size,
//! with lengths spread evenly over the doublings from 4 KiB to 1 MiB.
//! Output: hit rate, bytes in caches, and CPU of a step compared with the same steps on other allocators. The floor has
//! one size for all.

use super::{CACHED, CAP_BYTES, claim, failed, median, open};
use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, RunContext};
use crate::measure::{CompareCase, SampleSpread, cpu_ns_each, run_interleaved};
use crate::report::ReportRow;
use headwater_baselines::{BaselineAllocator, BaselineBlock, BaselineHeap};
use headwater_dma::buffer::PoolBuffer;
use headwater_dma::pool::Pool;
use headwater_host::clock::{Clock, Nanos};
use std::hint::black_box;
use std::sync::Barrier;

const SLOTS: usize = 512;
const STEPS: usize = 100_000;
const CHUNK_BYTES: usize = 4 << 20;
const PAGES_MAX: f64 = 256.0;

const NAMES: [&str; 5] = [
    "one size for all (floor)",
    "pool with caches",
    "pool without caches",
    "rlsf, locked arena",
    "talc, locked arena",
];

struct TraceStep {
    slot: usize,
    bytes: usize,
}

fn trace(seed: u64) -> Vec<TraceStep> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut step = || TraceStep { slot: random.usize(..SLOTS), bytes: bytes(random.f64()) };
    (0..STEPS).map(|_| step()).collect()
}

/// Returns the length at a quantile of the distribution, 0 to 1.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 4 KiB to 1 MiB")]
fn bytes(quantile: f64) -> usize {
    (PAGES_MAX.powf(quantile) * 4_096.0) as usize
}

fn slots<T>() -> Vec<Option<T>> {
    (0..SLOTS).map(|_| None).collect()
}

pub(super) fn run(context: &RunContext, findings: &mut ExperimentFindings) -> Result<(), LabError> {
    let rounds = if context.is_quick() { 3 } else { 21 };
    let steps = trace(context.seed());
    let cached = open(CAP_BYTES, CHUNK_BYTES, CACHED)?;
    let bare = open(CAP_BYTES, CHUNK_BYTES, 0)?;
    let samples = measure(&steps, (&cached, &bare), rounds)?;
    for (name, samples) in NAMES.iter().zip(&samples) {
        let row = ReportRow::new().with("trace", *name).with("live", SLOTS as u64);
        findings.rows.push(row.with("cpu_ns_per_step", SampleSpread::of(samples)));
    }
    // The rounds above used the same pool, so this counts its steady state.
    let (hits, max_cached) = count_hits(&cached, &steps)?;
    let steps = cached.statistics().steps;
    findings.rows.push(
        ReportRow::new()
            .with("served", "pool with caches, all rounds")
            .with("by_cache", steps.cache)
            .with("by_free_run", steps.contiguous)
            .with("by_growth", steps.grown),
    );
    findings.claims.push(LabClaim::found(
        "p3.pool.trace.hits",
        ClaimGoal::AtLeast(90.0),
        (hits, "% of requests served by the thread's cache"),
        EvidenceLabel::Functional,
        format!(
            "{SLOTS} live of 4 KiB to 1 MiB; {:.0} ns a step, floor {:.0}",
            median(&samples[1]),
            median(&samples[0])
        ),
    ));
    findings.claims.push(LabClaim::found(
        "p3.pool.trace.cached",
        ClaimGoal::AtMost(5.0),
        (max_cached, "% of M in caches at the most"),
        EvidenceLabel::Functional,
        format!("M is {} MiB", CAP_BYTES >> 20),
    ));
    Ok(())
}

/// Returns the percentage of requests served by the cache, and the maximum percentage of M in caches.
#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn count_hits(pool: &Pool, steps: &[TraceStep]) -> Result<(f64, f64), LabError> {
    let mut held = slots();
    replay(pool, &mut held, steps)?;
    let before = pool.statistics().steps;
    let mut max_cached = 0;
    for part in steps.chunks(100) {
        replay(pool, &mut held, part)?;
        max_cached = max_cached.max(pool.statistics().cached_bytes);
    }
    let after = pool.statistics().steps;
    let hits = (after.cache - before.cache) as f64 / (after.total() - before.total()) as f64;
    Ok((hits * 100.0, max_cached as f64 / CAP_BYTES as f64 * 100.0))
}

fn replay(pool: &Pool, held: &mut [Option<PoolBuffer>], steps: &[TraceStep]) -> Result<(), LabError> {
    for step in steps {
        held[step.slot] = None;
        held[step.slot] = Some(pool.buffer(step.bytes).map_err(failed)?);
    }
    Ok(())
}

/// Returns the CPU nanoseconds for a step: for each of [`NAMES`], one value a round.
fn measure(steps: &[TraceStep], pools: (&Pool, &Pool), rounds: usize) -> Result<Vec<Vec<f64>>, LabError> {
    let count = steps.len() as u64;
    let with_pool = |pool: &Pool, held: &mut Vec<Option<PoolBuffer>>| {
        let mut outcome = Ok(());
        let cost = cpu_ns_each(count, || outcome = replay(pool, held, steps));
        outcome.map(|()| cost)
    };
    let with_heap = |heap: &mut Option<BaselineHeap>, held: &mut Vec<Option<BaselineBlock>>| {
        let Some(heap) = heap else { return f64::NAN };
        cpu_ns_each(count, || {
            for step in steps {
                if let Some(block) = held[step.slot].take() {
                    heap.free(block);
                }
                held[step.slot] = black_box(heap.allocate(step.bytes));
            }
        })
    };
    let (mut floor_held, mut stock) = (slots::<[usize; 5]>(), vec![[0; 5]; SLOTS]);
    let mut floor = || {
        Ok(cpu_ns_each(count, || {
            for step in steps {
                stock.extend(floor_held[step.slot].take());
                floor_held[step.slot] = black_box(stock.pop());
            }
        }))
    };
    let (mut one, mut other) = (slots(), slots());
    let mut cached = || with_pool(pools.0, &mut one);
    let mut bare = || with_pool(pools.1, &mut other);
    let (mut rlsf, mut rlsf_held) = (BaselineHeap::open(BaselineAllocator::Rlsf, CAP_BYTES), slots());
    let (mut talc, mut talc_held) = (BaselineHeap::open(BaselineAllocator::Talc, CAP_BYTES), slots());
    let mut with_rlsf = || Ok(with_heap(&mut rlsf, &mut rlsf_held));
    let mut with_talc = || Ok(with_heap(&mut talc, &mut talc_held));
    let mut contestants: [CompareCase<'_, f64, LabError>; NAMES.len()] =
        [&mut floor, &mut cached, &mut bare, &mut with_rlsf, &mut with_talc];
    run_interleaved(rounds, &mut contestants)
}

/// The work that a thread repeats while it is timed.
#[derive(Clone, Copy)]
enum ThreadWork {
    Pairs,
    Trace,
}

/// Number of steps of one thread in one round, which take some milliseconds.
const THREAD_STEPS: usize = 200_000;

pub(super) fn run_threads(context: &RunContext, findings: &mut ExperimentFindings) -> Result<(), LabError> {
    let rounds = if context.is_quick() { 5 } else { 41 };
    let steps = trace(context.seed() ^ 1);
    for (name, work) in [("hit", ThreadWork::Pairs), ("trace", ThreadWork::Trace)] {
        // As much memory a thread in both cases: the bytes in caches are a part of M.
        let (small, large) =
            (open(CAP_BYTES, CHUNK_BYTES, CACHED)?, open(CAP_BYTES * 2, CHUNK_BYTES, CACHED)?);
        let (mut by_cpu, mut by_clock) = (Vec::new(), Vec::new());
        for round in 0..=rounds {
            let alone = run_on_threads(&small, &steps, work, 1, context.clock())?;
            let both = run_on_threads(&large, &steps, work, 2, context.clock())?;
            if round > 0 {
                by_cpu.push(2.0 * alone.cpu / both.cpu);
                by_clock.push(2.0 * alone.span / both.span);
            }
        }
        let row = ReportRow::new().with("two_threads", name).with("by_cpu_ratio", SampleSpread::of(&by_cpu));
        findings.rows.push(row.with("by_clock_ratio", SampleSpread::of(&by_clock)));
        let clock =
            SampleSpread::of(&by_clock).map_or((f64::NAN, f64::NAN), |spread| (spread.median, spread.max));
        let baseline = format!(
            "one thread with half of M; by CPU time, since other programs share the cores. By the clock {:.2}x, at \
             best {:.2}x",
            clock.0, clock.1
        );
        let goal = ClaimGoal::AtLeast(1.8);
        let name = format!("p3.pool.threads.{name}");
        findings.claims.push(claim(name, goal, "x the rate of one thread", &by_cpu, &baseline));
    }
    Ok(())
}

/// CPU nanoseconds for each thread, and elapsed nanoseconds from the first start to the last end.
struct ThreadCost {
    cpu: f64,
    span: f64,
}

#[expect(clippy::cast_precision_loss, reason = "a round is far below 2^52 ns")]
fn run_on_threads(
    pool: &Pool,
    steps: &[TraceStep],
    work: ThreadWork,
    threads: usize,
    clock: &Clock,
) -> Result<ThreadCost, LabError> {
    let barrier = Barrier::new(threads);
    let one = || -> Result<(Nanos, Nanos, Nanos), LabError> {
        let mut held = slots();
        let warm = thread_work(pool, &mut held, steps, work, THREAD_STEPS / 10);
        // Every thread must reach the barrier, or the other thread would wait forever.
        barrier.wait();
        warm?;
        let (start, cpu) = (clock.now(), Clock::thread_cpu());
        thread_work(pool, &mut held, steps, work, THREAD_STEPS)?;
        Ok((Clock::thread_cpu().since(cpu), start, clock.now()))
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        let joined = running.into_iter().map(|thread| thread.join());
        joined.map(|result| result.unwrap_or_else(|_| Err(failed("a thread panicked")))).collect()
    });
    let results = results.into_iter().collect::<Result<Vec<_>, _>>()?;
    let cpu: u64 = results.iter().map(|(cpu, ..)| cpu.0).sum();
    let start = results.iter().map(|(_, start, _)| start.0).min().unwrap_or(0);
    let end = results.iter().map(|(.., end)| end.0).max().unwrap_or(0);
    Ok(ThreadCost { cpu: cpu as f64 / threads as f64, span: (end - start) as f64 })
}

fn thread_work(
    pool: &Pool,
    held: &mut [Option<PoolBuffer>],
    steps: &[TraceStep],
    work: ThreadWork,
    count: usize,
) -> Result<(), LabError> {
    match work {
        ThreadWork::Pairs => {
            for _ in 0..count {
                drop(black_box(pool.buffer(64 << 10).map_err(failed)?));
            }
            Ok(())
        }
        ThreadWork::Trace => {
            for part in steps.chunks(count.min(steps.len())).take(count.div_ceil(steps.len())) {
                replay(pool, held, part)?;
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_spread_evenly_over_the_doublings() {
        assert_eq!((bytes(0.0), bytes(0.5), bytes(1.0)), (4_096, 65_536, 1 << 20));
        let steps = trace(1);
        assert_eq!(steps.len(), STEPS);
        let short = steps.iter().filter(|step| step.bytes <= 65_536).count();
        assert!(short * 5 > STEPS * 2 && short * 5 < STEPS * 3, "{short}");
    }

    #[test]
    fn hit_rate_and_cached_bytes_come_from_pool_statistics() {
        let pool = open(CAP_BYTES, CHUNK_BYTES, CACHED).unwrap();
        let (hits, cached) = count_hits(&pool, &trace(2)[..5_000]).unwrap();
        assert!(hits > 0.0 && hits <= 100.0);
        assert!(cached > 0.0 && cached <= 5.0);
        let bare = open(CAP_BYTES, CHUNK_BYTES, 0).unwrap();
        assert!(count_hits(&bare, &trace(2)[..5_000]).unwrap().0 < 1e-9);
    }
}
