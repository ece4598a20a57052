//! The cost of an allocation and its free at increasing numbers of live 4 KiB buffers.
//!
//! Input: the numbers of live buffers.
//! Output: CPU nanoseconds of a pair on both paths, and of replacing a random live buffer, at each number. The floor of
//! replacing walks an array of the same length in the same order and exchanges entries with a stack.

use super::{CACHED, claim, failed, median, open};
use crate::claim::ClaimGoal;
use crate::experiment::{ExperimentFindings, LabError, RunContext};
use crate::measure::{SampleSpread, cpu_ns_each};
use crate::report::ReportRow;
use headwater_dma::buffer::PoolBuffer;
use headwater_dma::pool::Pool;
use std::hint::black_box;

const BLOCK_BYTES: usize = 4 << 10;
const LIVE_FULL: usize = 1_000_000;
/// A tenth, because mapping all the memory takes most of a quick run.
const LIVE_QUICK: usize = 100_000;
const LIVE_FEW: usize = 1_000;
/// Number of pairs of a round.
const PAIRS: u64 = 50_000;
const CHUNK_BYTES: usize = 64 << 20;
/// Maximum ratio of a pair's cost with many live buffers to that with few, for the cost to count as flat.
const FLAT_MAX: f64 = 1.25;

/// Rounds at one number of live buffers.
#[derive(Default)]
struct LiveCosts {
    fill: f64,
    pair: Vec<f64>,
    replace: Vec<f64>,
    floor: Vec<f64>,
}

pub(super) fn run(context: &RunContext, findings: &mut ExperimentFindings) -> Result<(), LabError> {
    let (live, rounds) = if context.is_quick() { (LIVE_QUICK, 7) } else { (LIVE_FULL, 21) };
    for (path, per_mille, max_ns) in [("hit", CACHED, 10.0), ("shared", 0, 60.0)] {
        let levels = [LIVE_FEW, live / 10, live];
        let costs = measure(&levels, per_mille, rounds, context.seed())?;
        for (level, costs) in levels.iter().zip(&costs) {
            let row = ReportRow::new()
                .with("path", path)
                .with("live", *level as u64)
                .with("pair_cpu_ns", SampleSpread::of(&costs.pair))
                .with("replace_random_cpu_ns", SampleSpread::of(&costs.replace))
                .with("replace_floor_cpu_ns", SampleSpread::of(&costs.floor))
                .with("fill_cpu_ns", costs.fill);
            findings.rows.push(row);
        }
        let (few, many) = (&costs[0].pair, &costs[costs.len() - 1].pair);
        let baseline = format!("{:.1} ns with {LIVE_FEW} live; this run had {live}", median(few));
        let unit = "ns of CPU a pair, all live";
        let name = format!("p3.pool.live.{path}");
        findings.claims.push(claim(name, ClaimGoal::AtMost(max_ns), unit, many, &baseline));
        let ratios: Vec<f64> = many.iter().map(|cost| cost / median(few)).collect();
        let unit = "of a pair's cost beside few live";
        let flat = format!("p3.pool.flat.{path}");
        findings.claims.push(claim(flat, ClaimGoal::AtMost(FLAT_MAX), unit, &ratios, &baseline));
    }
    Ok(())
}

fn measure(
    levels: &[usize],
    cache_per_mille: u32,
    rounds: usize,
    seed: u64,
) -> Result<Vec<LiveCosts>, LabError> {
    let max = levels.iter().copied().max().unwrap_or(0);
    // Room for the caches, and for the rest of the last chunk.
    let cap = (max * BLOCK_BYTES / 10 * 11).next_multiple_of(CHUNK_BYTES) + CHUNK_BYTES;
    let pool = open(cap, CHUNK_BYTES, cache_per_mille)?;
    let mut random = fastrand::Rng::with_seed(seed);
    let mut held: Vec<PoolBuffer> = Vec::with_capacity(max);
    let mut all = Vec::new();
    for &level in levels {
        let mut costs = LiveCosts { fill: fill(&pool, &mut held, level)?, ..LiveCosts::default() };
        // The first round warms up.
        for round in 0..=rounds {
            let pair = pairs(&pool)?;
            let order: Vec<usize> = (0..PAIRS).map(|_| random.usize(..level)).collect();
            let (replace, floor) = (replace(&pool, &mut held, &order)?, replace_floor(level, &order));
            if round > 0 {
                costs.pair.push(pair);
                costs.replace.push(replace);
                costs.floor.push(floor);
            }
        }
        all.push(costs);
    }
    Ok(all)
}

fn fill(pool: &Pool, held: &mut Vec<PoolBuffer>, level: usize) -> Result<f64, LabError> {
    let missing = level.saturating_sub(held.len());
    let mut outcome = Ok(());
    let cost = cpu_ns_each(missing as u64, || {
        while held.len() < level && outcome.is_ok() {
            match pool.buffer(BLOCK_BYTES) {
                Ok(buffer) => held.push(buffer),
                Err(error) => outcome = Err(error),
            }
        }
    });
    outcome.map_err(failed)?;
    Ok(cost)
}

fn pairs(pool: &Pool) -> Result<f64, LabError> {
    let mut outcome = Ok(());
    let cost = cpu_ns_each(PAIRS, || {
        for _ in 0..PAIRS {
            match pool.buffer(BLOCK_BYTES) {
                // By reference: a move through memory for the measurement is not a cost of the pool.
                Ok(buffer) => {
                    black_box(&buffer);
                }
                Err(error) => outcome = Err(error),
            }
        }
    });
    outcome.map_err(failed)?;
    Ok(cost)
}

fn replace(pool: &Pool, held: &mut [PoolBuffer], order: &[usize]) -> Result<f64, LabError> {
    let mut outcome = Ok(());
    let cost = cpu_ns_each(order.len() as u64, || {
        for &at in order {
            match pool.buffer(BLOCK_BYTES) {
                Ok(buffer) => held[at] = buffer,
                Err(error) => outcome = Err(error),
            }
        }
    });
    outcome.map_err(failed)?;
    Ok(cost)
}

fn replace_floor(level: usize, order: &[usize]) -> f64 {
    // As wide as a buffer.
    let mut held = vec![[0_usize; 5]; level];
    let mut stack = vec![[1_usize; 5]; 64];
    let cost = cpu_ns_each(order.len() as u64, || {
        for &at in order {
            if let Some(block) = stack.pop() {
                stack.push(std::mem::replace(&mut held[at], block));
            }
        }
    });
    black_box(&held);
    cost
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_is_reached_and_measured() {
        for per_mille in [0, CACHED] {
            let costs = measure(&[10, 1_000], per_mille, 1, 1).unwrap();
            assert_eq!(costs.len(), 2);
            assert!(costs.iter().all(|costs| costs.pair.len() == 1 && costs.replace[0].is_finite()));
        }
        let pool = open(64 << 20, 1 << 20, 0).unwrap();
        let mut held = Vec::new();
        fill(&pool, &mut held, 300).unwrap();
        assert_eq!((held.len(), pool.statistics().in_use_bytes), (300, 300 * 4_096));
    }
}
