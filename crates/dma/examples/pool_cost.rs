//! What an allocation and its free cost: prints nanoseconds a pair, for a look before a claim of the lab is made of it.
//!
//! In: nothing. Out: lines of text. Invariant: it measures what ships, through the public calls alone.
#![expect(clippy::print_stdout, reason = "printing is what this program is for")]

use headwater_dma::pool::{Pool, PoolConfig, PoolError, Request};
use headwater_host::clock::Clock;
use headwater_host::reservation::Wish;
use std::hint::black_box;

fn pool(cap: usize, cache_per_mille: u32) -> Result<Pool, PoolError> {
    let backing = Wish::TRANSPARENT;
    Pool::open(PoolConfig { cap, cache_per_mille, backing, chunk: 64 << 20, ..PoolConfig::default() })
}

/// Nanoseconds a pair, the best of a few rounds.
fn pairs(pool: &Pool, request: &Request, count: u32) -> Result<f64, PoolError> {
    let clock = Clock::start();
    let mut best = f64::MAX;
    for _ in 0..7 {
        let start = clock.now();
        for _ in 0..count {
            drop(black_box(pool.buffer(black_box(request.bytes))?));
        }
        best = best.min(nanos(clock.now().since(start).0) / f64::from(count));
    }
    Ok(best)
}

#[expect(clippy::cast_precision_loss, reason = "a printed figure")]
fn nanos(span: u64) -> f64 {
    span as f64
}

fn main() -> Result<(), PoolError> {
    let cached = pool(256 << 20, 50)?;
    for bytes in [4 << 10, 64 << 10, 1 << 20] {
        let cost = pairs(&cached, &Request::bytes(bytes), 1_000_000)?;
        println!("cached {bytes} bytes: {cost:.1} ns");
    }
    let shared = pool(256 << 20, 0)?;
    for bytes in [4 << 10, 64 << 10, 1 << 20] {
        let cost = pairs(&shared, &Request::bytes(bytes), 300_000)?;
        println!("shared, all free, {bytes} bytes: {cost:.1} ns");
    }
    let crowd = pool(5 << 30, 0)?;
    let mut held = Vec::with_capacity(1_000_000);
    for target in [1_000_usize, 100_000, 1_000_000] {
        while held.len() < target {
            held.push(crowd.allocate(&Request::bytes(4 << 10))?);
        }
        let cost = pairs(&crowd, &Request::bytes(4 << 10), 300_000)?;
        println!("shared, {target} live, 4096 bytes: {cost:.1} ns");
    }
    let clock = Clock::start();
    for threads in [1, 2] {
        let start = clock.now();
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| pairs(&cached, &Request::bytes(4 << 10), 2_000_000));
            }
        });
        let total = f64::from(threads * 7 * 2_000_000);
        let span = nanos(clock.now().since(start).0);
        println!("{threads} threads: {:.1} pairs a microsecond", total / span * 1e3);
    }
    Ok(())
}
