//! The share of the free bytes that one request can take of a pool that is nine tenths full.
//!
//! Input: buffers of random sizes, allocated and freed until the pool's fragmentation is steady.
//! Output: the largest share of the free bytes that one request gets, in at most 64 segments, in at most the 256 that a
//! command of a device takes, and in one. These are counts, not times.
//!
//! Short buffers leave short holes. A request of 64 segments can then hold at most the 64 longest free runs, a part of
//! the free bytes that no order of search exceeds; the claim states that part beside what the pool finds.

use super::{CACHED, CAP_BYTES, failed, open};
use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, RunContext};
use crate::measure::SampleSpread;
use crate::report::ReportRow;
use headwater_dma::buffer::PoolAllocation;
use headwater_dma::pool::{PinTier, Pool, PoolError, PoolRequest};
use headwater_host::width::to_usize;

const SEGMENTS_MAX: u32 = 64;
/// The most pieces of one command of a device.
const COMMAND_SEGMENTS_MAX: u32 = 256;
const BYTES_MIN: usize = 4 << 10;
const BYTES_MAX: usize = 4 << 20;
const CHUNK_BYTES: usize = 4 << 20;
const PAGE_BYTES: usize = 4_096;
/// Number of buffers freed for each live one before the measurement.
const TURNOVER: usize = 20;

/// The distribution of lengths: uniform, or uniform over the doublings, which gives mostly short buffers and short
/// holes.
#[derive(Clone, Copy)]
enum LengthDistribution {
    Even,
    OverDoublings,
}

impl LengthDistribution {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "from 4 KiB to 4 MiB"
    )]
    fn draw(self, random: &mut fastrand::Rng) -> usize {
        match self {
            Self::Even => random.usize(BYTES_MIN..=BYTES_MAX),
            Self::OverDoublings => {
                let doublings = (BYTES_MAX / BYTES_MIN).ilog2();
                (BYTES_MIN as f64 * (random.f64() * f64::from(doublings)).exp2()) as usize
            }
        }
    }
}

/// Shares of the free bytes, in per cent.
struct GatherShares {
    gathered: f64,
    /// In as many segments as a command of a device takes.
    gathered_by_command: f64,
    contiguous: f64,
    /// The longest free runs together, as many as the segments allowed: the upper bound.
    possible: f64,
    segments: usize,
    free: u64,
}

pub(super) fn run(context: &RunContext, findings: &mut ExperimentFindings) -> Result<(), LabError> {
    let repetitions = if context.is_quick() { 3 } else { 25 };
    let cases = [
        ("p3.pool.gather", "even", LengthDistribution::Even),
        ("p3.pool.gather.short", "over the doublings", LengthDistribution::OverDoublings),
    ];
    for (claim, name, lengths) in cases {
        let taken = (0..repetitions)
            .map(|repetition| measure_once(lengths, context.seed().wrapping_add(repetition)))
            .collect::<Result<Vec<GatherShares>, LabError>>()?;
        let spread =
            |of: fn(&GatherShares) -> f64| SampleSpread::of(&taken.iter().map(of).collect::<Vec<f64>>());
        let (gathered, contiguous) = (spread(|taken| taken.gathered), spread(|taken| taken.contiguous));
        let possible = spread(|taken| taken.possible);
        let by_command = spread(|taken| taken.gathered_by_command);
        let row = ReportRow::new()
            .with("lengths_4k_to_4m", name)
            .with("free_bytes", taken.iter().map(|taken| taken.free).max().unwrap_or(0))
            .with("in_64_segments_percent_of_free", gathered)
            .with("in_256_segments_percent_of_free", by_command)
            .with("in_one_segment_percent_of_free", contiguous)
            .with("longest_64_runs_percent_of_free", possible)
            .with("segments_most", taken.iter().map(|taken| taken.segments).max().unwrap_or(0) as u64);
        findings.rows.push(row);
        let median = |spread: Option<SampleSpread>| spread.map_or(f64::NAN, |spread| spread.median);
        findings.claims.push(LabClaim::found(
            claim,
            ClaimGoal::AtLeast(95.0),
            (
                median(gathered),
                "% of the free bytes in one request of at most 64 segments",
            ),
            EvidenceLabel::Functional,
            format!(
                "{:.1} % at worst; no search can exceed {:.1} %, which the longest 64 free runs hold; in 256 segments, as many as a command of a device takes, {:.1} %; in one {:.1} %; lengths {name}, M {} MiB, nine tenths in use",
                gathered.map_or(f64::NAN, |spread| spread.min),
                median(possible),
                median(by_command),
                median(contiguous),
                CAP_BYTES >> 20
            ),
        ));
    }
    Ok(())
}

fn measure_once(lengths: LengthDistribution, seed: u64) -> Result<GatherShares, LabError> {
    let pool = open(CAP_BYTES, CHUNK_BYTES, CACHED)?;
    let mut random = fastrand::Rng::with_seed(seed);
    pin_all(&pool)?;
    let held = fill_and_fragment(&pool, lengths, &mut random)?;
    let free = pool.statistics().cap_bytes.saturating_sub(pool.statistics().in_use_bytes);
    let possible = longest_runs(&held, free);
    let (gathered, segments) = largest(&pool, free, SEGMENTS_MAX)?;
    let (gathered_by_command, _) = largest(&pool, free, COMMAND_SEGMENTS_MAX)?;
    let (contiguous, _) = largest(&pool, free, 1)?;
    drop(held);
    Ok(GatherShares { gathered, gathered_by_command, contiguous, possible, segments, free })
}

/// Makes the pool pin its whole capacity in chunks, as an earlier load would have. The buffers are just shorter than those
/// that are pinned for themselves.
fn pin_all(pool: &Pool) -> Result<(), LabError> {
    let bytes = CHUNK_BYTES - PAGE_BYTES;
    let chunks = (0..CAP_BYTES / CHUNK_BYTES).map(|_| pool.buffer(bytes).map_err(failed));
    drop(chunks.collect::<Result<Vec<_>, _>>()?);
    let pinned = pool.statistics().tier_bytes[PinTier::Pool as usize];
    if pinned == CAP_BYTES as u64 {
        return Ok(());
    }
    Err(failed(format!(
        "{pinned} bytes of {CAP_BYTES} are pinned in chunks: the pool is not the one that is claimed"
    )))
}

/// Returns the percentage of the free bytes in the longest runs between held buffers, as many runs as the segments
/// allowed. Memory in the caches of threads counts as free: a request that finds too little takes it.
#[expect(clippy::cast_precision_loss, reason = "far below 2^52 bytes")]
fn longest_runs(held: &[PoolAllocation], free: u64) -> f64 {
    let mut taken: Vec<(usize, usize)> = held
        .iter()
        .flat_map(|payload| {
            let whole =
                if let PoolAllocation::Contiguous(buffer) = payload { Some(buffer.capacity()) } else { None };
            payload.pieces().map(move |piece| {
                let bytes = whole.unwrap_or_else(|| piece.len().next_multiple_of(PAGE_BYTES));
                (piece.as_ptr().addr(), bytes)
            })
        })
        .collect();
    taken.sort_unstable();
    let mut runs: Vec<usize> = taken.windows(2).map(|two| two[1].0 - (two[0].0 + two[0].1)).collect();
    let between = taken.first().zip(taken.last()).map_or(0, |(first, last)| last.0 + last.1 - first.0);
    // The first and the last run are not between two buffers; all pinned chunks are adjacent.
    runs.push(CAP_BYTES.saturating_sub(between));
    runs.sort_unstable();
    let longest: usize = runs.iter().rev().take(SEGMENTS_MAX as usize).sum();
    longest as f64 / free as f64 * 100.0
}

/// Returns buffers that fill nine tenths of the pool after many allocations and frees.
fn fill_and_fragment(
    pool: &Pool,
    lengths: LengthDistribution,
    random: &mut fastrand::Rng,
) -> Result<Vec<PoolAllocation>, LabError> {
    let full = CAP_BYTES / 10 * 9;
    let mut held: Vec<PoolAllocation> = Vec::new();
    let (mut used, mut frees) = (0, 0);
    loop {
        let bytes = lengths.draw(random);
        let fits = used + bytes.next_multiple_of(PAGE_BYTES) <= full;
        // In one segment if possible, else in several: otherwise nine tenths cannot be filled.
        let request = PoolRequest::bytes(bytes).scattered(SEGMENTS_MAX);
        let payload = if fits { allocated(pool.allocate(&request))? } else { None };
        if let Some(payload) = payload {
            used += capacity(&payload);
            held.push(payload);
            continue;
        }
        // Ends when the pool is fullest, that is when an allocation did not fit.
        if frees > held.len() * TURNOVER && used * 100 >= full * 99 {
            return Ok(held);
        }
        let freed = held.swap_remove(random.usize(..held.len()));
        used -= capacity(&freed);
        frees += 1;
    }
}

/// Returns the bytes that a payload takes of the pool.
fn capacity(payload: &PoolAllocation) -> usize {
    match payload {
        PoolAllocation::Contiguous(buffer) => buffer.capacity(),
        PoolAllocation::Scattered(scattered) => scattered.bytes().next_multiple_of(PAGE_BYTES),
    }
}

/// Returns the percentage of the free bytes that one request gets, in steps of 0.5, and the number of its segments.
#[expect(clippy::cast_precision_loss, reason = "a per mille number")]
fn largest(pool: &Pool, free: u64, segments_max: u32) -> Result<(f64, usize), LabError> {
    for per_mille in (0..=1_000_u64).rev().step_by(5) {
        let bytes = to_usize(free * per_mille / 1_000);
        if bytes == 0 {
            break;
        }
        let request = PoolRequest::bytes(bytes);
        let request = if segments_max == 1 { request } else { request.scattered(segments_max) };
        if let Some(payload) = allocated(pool.allocate(&request))? {
            return Ok((per_mille as f64 / 10.0, legal_segments(payload, segments_max)?));
        }
    }
    Ok((0.0, 0))
}

/// Returns the number of segments of a payload; all must be expressible as PRP entries (NVMe Base 2.1, 4.3.1).
fn legal_segments(payload: PoolAllocation, segments_max: u32) -> Result<usize, LabError> {
    let lent = payload.lend();
    let segments = lent.segments();
    let whole = |bytes: usize| bytes.is_multiple_of(PAGE_BYTES);
    let last = segments.len().saturating_sub(1);
    let legal = segments
        .iter()
        .enumerate()
        .all(|(at, segment)| whole(segment.address) && (at == last || whole(segment.bytes)));
    let (payload, _) = lent.complete::<(), ()>(Ok(()));
    drop(payload);
    if legal && segments.len() <= segments_max as usize {
        Ok(segments.len())
    } else {
        Err(failed("a payload has segments that PRP entries cannot express"))
    }
}

/// Returns the allocation, or `None` if the pool had no room.
fn allocated<T>(result: Result<T, PoolError>) -> Result<Option<T>, LabError> {
    match result {
        Ok(taken) => Ok(Some(taken)),
        Err(PoolError::WouldBlock { .. }) => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_can_take_all_of_an_empty_pool() {
        let pool = open(CAP_BYTES, CHUNK_BYTES, CACHED).unwrap();
        let free = CAP_BYTES as u64;
        let (gathered, segments) = largest(&pool, free, SEGMENTS_MAX).unwrap();
        assert!(gathered > 99.9 && segments <= SEGMENTS_MAX as usize, "{gathered} in {segments}");
    }

    #[test]
    fn full_pool_gives_less_in_one_segment_than_in_many() {
        let taken = measure_once(LengthDistribution::OverDoublings, 1).unwrap();
        let tenths = taken.free * 100 / CAP_BYTES as u64;
        assert!((9..=12).contains(&tenths), "{tenths} % free");
        assert!(taken.possible + 0.5 >= taken.gathered, "{} {}", taken.possible, taken.gathered);
        assert!(taken.gathered >= taken.contiguous && taken.gathered > 0.0);
        assert!(taken.gathered_by_command > taken.gathered, "more segments hold more of short runs");
    }

    #[test]
    fn lengths_stay_within_their_bounds() {
        let mut random = fastrand::Rng::with_seed(3);
        for lengths in [LengthDistribution::Even, LengthDistribution::OverDoublings] {
            assert!((0..10_000).all(|_| (BYTES_MIN..=BYTES_MAX).contains(&lengths.draw(&mut random))));
        }
    }
}
