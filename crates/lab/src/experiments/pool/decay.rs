//! The time until the pool releases idle memory after a load ends.
//!
//! Input: a load that ends at a moment of virtual time, then ticks only.
//! Output: the time at which the pinned bytes are back at the configured minimum, in virtual time.

use super::{CACHED, CAP_BYTES, failed};
use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, RunContext};
use crate::measure::SampleSpread;
use crate::report::ReportRow;
use headwater_dma::pool::{Pool, PoolClock, PoolConfig, SimulatedCosts, SimulatedPinner};
use headwater_host::clock::Nanos;
use std::sync::Arc;

/// The pool's idle time (t).
const IDLE: Nanos = Nanos::from_millis(10_000);
/// Bytes that the pool keeps however idle it is.
const FLOOR_BYTES: usize = 16 << 20;
/// Number of ticks in an idle time, as in the pool's own ticker.
const TICKS: u64 = 16;

pub(super) fn run(context: &RunContext, findings: &mut ExperimentFindings) -> Result<(), LabError> {
    let mut random = fastrand::Rng::with_seed(context.seed());
    let mut all = Vec::new();
    for (name, max) in [("4k", 4 << 10), ("64k", 64 << 10), ("1m", 1 << 20), ("4m", 4 << 20)] {
        let back = time_to_floor(max, &mut random)?;
        findings.rows.push(
            ReportRow::new()
                .with("load_up_to", name)
                .with("peak_pinned_bytes", back.peak)
                .with("left_pinned_bytes", back.left)
                .with("idle_times_until_floor", back.idle_times),
        );
        all.push(back.idle_times);
    }
    let slowest = SampleSpread::of(&all).map_or(f64::NAN, |spread| spread.max);
    findings.claims.push(LabClaim::found(
        "p3.pool.floor",
        ClaimGoal::AtMost(2.0),
        (slowest, "idle times (t) until pinned bytes are at the floor, slowest of four loads"),
        EvidenceLabel::Functional,
        format!("virtual time; the floor is {} MiB, a tick every t/{TICKS}", FLOOR_BYTES >> 20),
    ));
    Ok(())
}

struct DecayResult {
    peak: u64,
    left: u64,
    /// Idle times until the floor; not finite if the pool did not reach it.
    idle_times: f64,
}

#[expect(clippy::cast_precision_loss, reason = "spans of virtual time far below 2^52 ns")]
fn time_to_floor(max: usize, random: &mut fastrand::Rng) -> Result<DecayResult, LabError> {
    let device = Arc::new(SimulatedPinner::new(SimulatedCosts::default()));
    let pool = Pool::open(PoolConfig {
        cap: CAP_BYTES,
        idle: IDLE,
        min_idle: FLOOR_BYTES,
        pinner: device.clone(),
        clock: device.clone(),
        cache_per_mille: CACHED,
        ..PoolConfig::default()
    })
    .map_err(failed)?;
    let mut held = Vec::new();
    let mut used = 0;
    while used < CAP_BYTES / 4 * 3 {
        let buffer = pool.buffer(random.usize(1..=max)).map_err(failed)?;
        used += buffer.capacity();
        held.push(buffer);
    }
    let tick = || {
        device.advance(Nanos(IDLE.0 / TICKS));
        pool.tick(device.now());
        pool.statistics().nodes.iter().map(|node| node.pinned_bytes).sum::<u64>()
    };
    let peak = (0..TICKS).map(|_| tick()).max().unwrap_or(0);
    held.clear();
    let load_end = device.now();
    let mut left = peak;
    for _ in 0..8 * TICKS {
        left = tick();
        if left <= FLOOR_BYTES as u64 {
            let idle_times = device.now().since(load_end).0 as f64 / IDLE.0 as f64;
            return Ok(DecayResult { peak, left, idle_times });
        }
    }
    Ok(DecayResult { peak, left, idle_times: f64::INFINITY })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_pinned_until_the_load_ends_and_is_then_released() {
        let back = time_to_floor(64 << 10, &mut fastrand::Rng::with_seed(1)).unwrap();
        assert!(back.peak >= (CAP_BYTES / 4 * 3) as u64);
        assert!(back.idle_times.is_finite() && back.idle_times >= 1.0, "{}", back.idle_times);
        assert!(back.left <= FLOOR_BYTES as u64);
    }
}
