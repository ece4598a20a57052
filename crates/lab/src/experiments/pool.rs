//! The pinned pool compared with pinning for each request, with baseline allocators over a locked arena, and with its
//! floor.
//!
//! Output: CPU of an allocation and its free by method and size, with a million of them live, over a trace of mixed
//! sizes, and on two threads; the share of a nearly full pool that one scattered request can take; the time until idle
//! memory is released. The floor is a stack of blocks of one size: it searches nothing, coalesces nothing and checks
//! nothing.

mod decay;
mod gather;
mod live;
mod pairs;
mod trace;

use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, LabExperiment, RunContext};
use crate::measure::{CorePin, SampleSpread};
use headwater_dma::pool::{ChunkRule, MemoryPinner, MlockPinner, NoPinning, Pool, PoolConfig};
use std::fmt::Display;
use std::sync::Arc;

/// The experiment's entry in the table.
pub(crate) const EXPERIMENT: LabExperiment = LabExperiment {
    name: "pool",
    summary: "the pinned pool: cost of a buffer, scaling, fragmentation, decay",
    baseline: "a fixed-size freelist; rlsf and talc on a locked arena; mmap and mlock, reserved huge pages and io_uring \
               registration for each request",
    claims: &["p3.pool.*"],
    run,
};

/// The pool's capacity (M) unless stated otherwise.
const CAP_BYTES: usize = 256 << 20;
/// Thousandths of M that caches may hold; the maximum that a configuration accepts.
const CACHED: u32 = 50;

fn run(context: &RunContext) -> Result<ExperimentFindings, LabError> {
    let pin = CorePin::current_core();
    let mut findings = ExperimentFindings::default();
    pairs::run(context, &mut findings, pin.is_pinned())?;
    live::run(context, &mut findings)?;
    trace::run(context, &mut findings)?;
    // Two threads need two cores.
    drop(pin);
    trace::run_threads(context, &mut findings)?;
    gather::run(context, &mut findings)?;
    decay::run(context, &mut findings)?;
    Ok(findings)
}

/// Opens a pool of locked memory, or of resident memory if this process may not lock so much, whose caches may hold
/// `cache_per_mille` thousandths of it.
fn open(cap: usize, chunk: usize, cache_per_mille: u32) -> Result<Pool, LabError> {
    let pinner = locking(cap);
    let config = PoolConfig {
        cap,
        chunk,
        chunk_rule: ChunkRule::Fixed,
        cache_per_mille,
        pinner,
        ..PoolConfig::default()
    };
    Pool::open(config).map_err(failed)
}

/// Returns a pinner that locks memory if this process may lock `bytes`, else one that does not pin.
fn locking(bytes: usize) -> Arc<dyn MemoryPinner> {
    if MlockPinner.preflight(bytes).is_ok() { Arc::new(MlockPinner) } else { Arc::new(NoPinning) }
}

fn failed(error: impl Display) -> LabError {
    LabError::Measure { program: "the pool".to_owned(), reason: error.to_string() }
}

fn median(samples: &[f64]) -> f64 {
    SampleSpread::of(samples).map_or(f64::NAN, |spread| spread.median)
}

/// Evaluates a claim on the median of samples, with their spread in the baseline text.
fn claim(name: String, goal: ClaimGoal, unit: &'static str, samples: &[f64], baseline: &str) -> LabClaim {
    let spread = SampleSpread::of(samples);
    let (low, high) = spread.map_or((f64::NAN, f64::NAN), |spread| (spread.min, spread.max));
    let baseline = format!("{baseline}; samples {low:.2} to {high:.2}");
    LabClaim::found(name, goal, (median(samples), unit), EvidenceLabel::Measured, baseline)
}
