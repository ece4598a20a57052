//! The cost of an allocation and its free, in nanoseconds: a quick measurement before the lab verifies it.
//!
//! Input: none. Output: lines of text. Invariant: it measures the shipped code, through public calls alone.
#![expect(clippy::print_stdout, reason = "printing is what this program is for")]

use headwater_dma::pool::{Pool, PoolConfig, PoolError, PoolRequest};
use headwater_host::clock::Clock;
use headwater_host::reservation::BackingOrder;
use headwater_host::topology::pin_current_thread;
use std::hint::black_box;
use std::sync::Barrier;

fn pool(cap: usize, cache_per_mille: u32) -> Result<Pool, PoolError> {
    let backing = BackingOrder::TRANSPARENT;
    Pool::open(PoolConfig { cap, cache_per_mille, backing, chunk: 4 << 20, ..PoolConfig::default() })
}

/// Returns nanoseconds per allocation and free, the best of a few rounds.
fn pairs(pool: &Pool, request: &PoolRequest, count: u32) -> Result<f64, PoolError> {
    let clock = Clock::start();
    let mut best = f64::MAX;
    for _ in 0..7 {
        let start = clock.now();
        for _ in 0..count {
            // By reference: moving the buffer through memory is a cost of the measurement, not of the pool.
            black_box(&pool.buffer(black_box(request.bytes))?);
        }
        best = best.min(nanos(clock.now().since(start).0) / f64::from(count));
    }
    Ok(best)
}

#[expect(clippy::cast_precision_loss, reason = "a printed figure")]
fn nanos(span: u64) -> f64 {
    span as f64
}

/// Runs buffers of random sizes, evenly over the doublings up to 1 MiB, with random lifetimes. Returns the CPU
/// nanoseconds per step of a thread.
fn trace(pool: &Pool, threads: u32) -> Result<f64, PoolError> {
    const STEPS: usize = 400_000;
    let barrier = Barrier::new(threads as usize);
    let one = |seed: u64| -> Result<u64, PoolError> {
        // Each thread on its own processor, so that they run in parallel on a busy machine.
        let _ = pin_current_thread(usize::try_from(seed).unwrap_or(0));
        let mut random = fastrand::Rng::with_seed(seed);
        let length = |place: u32| (4_096 << (place / 64 % 8)) * (64 + place as usize % 64) / 64;
        let steps: Vec<_> = (0..STEPS).map(|_| (random.usize(..512), length(random.u32(..512)))).collect();
        let mut held: Vec<_> = (0..512).map(|_| None).collect();
        let mut start = Clock::thread_cpu();
        barrier.wait();
        for (step, &(slot, bytes)) in steps.iter().enumerate() {
            if step == STEPS / 10 {
                start = Clock::thread_cpu();
            }
            held[slot] = None;
            held[slot] = Some(pool.buffer(bytes)?);
        }
        Ok(Clock::thread_cpu().since(start).0)
    };
    let spent: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|seed| {
                scope.spawn({
                    let one = &one;
                    move || one(u64::from(seed))
                })
            })
            .collect();
        running.into_iter().filter_map(|thread| thread.join().ok()).collect()
    });
    let spent = spent.into_iter().collect::<Result<Vec<u64>, PoolError>>()?;
    Ok(nanos(spent.iter().sum()) / nanos((STEPS - STEPS / 10) as u64) / f64::from(threads))
}

/// Runs the trace on a pool that two threads share, alternating rounds of one and of two threads.
fn threads(rounds: u32) -> Result<(), PoolError> {
    let both = pool(512 << 20, 50)?;
    let (mut alone, mut together) = (Vec::new(), Vec::new());
    for _ in 0..=rounds {
        alone.push(trace(&both, 1)?);
        together.push(trace(&both, 2)?);
    }
    let [alone, together] = [alone, together].map(|mut costs| {
        costs.remove(0);
        costs.sort_by(f64::total_cmp);
        (costs[0], costs[costs.len() / 2])
    });
    println!("trace, one thread: best {:.1}, median {:.1} ns of CPU a step", alone.0, alone.1);
    println!("trace, each of two: best {:.1}, median {:.1} ns of CPU a step", together.0, together.1);
    let steps = both.statistics().steps;
    println!("{} of 1,000 requests served by caches; {steps:?}", steps.cache_per_mille());
    Ok(())
}

fn main() -> Result<(), PoolError> {
    if std::env::args().nth(1).as_deref() == Some("threads") {
        return threads(40);
    }
    let cached = pool(256 << 20, 50)?;
    for bytes in [4 << 10, 64 << 10, 1 << 20] {
        let cost = pairs(&cached, &PoolRequest::bytes(bytes), 1_000_000)?;
        println!("cached {bytes} bytes: {cost:.1} ns");
    }
    let shared = pool(256 << 20, 0)?;
    let _companion = shared.buffer(4 << 10)?;
    for bytes in [4 << 10, 64 << 10, 1 << 20] {
        let cost = pairs(&shared, &PoolRequest::bytes(bytes), 300_000)?;
        println!("shared, all free, {bytes} bytes: {cost:.1} ns");
    }
    let crowd = pool(5 << 30, 0)?;
    let mut held = Vec::with_capacity(1_000_000);
    for target in [1_000_usize, 100_000, 1_000_000] {
        while held.len() < target {
            held.push(crowd.allocate(&PoolRequest::bytes(4 << 10))?);
        }
        let cost = pairs(&crowd, &PoolRequest::bytes(4 << 10), 300_000)?;
        println!("shared, {target} live, 4096 bytes: {cost:.1} ns");
    }
    drop((crowd, held));
    println!("trace: {:.1} ns a step by one thread", trace(&pool(256 << 20, 50)?, 1)?);
    threads(10)
}
