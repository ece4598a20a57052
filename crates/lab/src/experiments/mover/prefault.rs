//! Copies into fresh memory, whose pages are absent: by jobs, which make them present first, and by the copy alone.
//!
//! Input: a source in memory, and a vector of its own for each copy. Output: CPU nanoseconds of a copy, and the claim about the
//! ratio. The floor is a fill of memory whose pages are present. Invariant: a fresh vector is longer than what an allocator keeps,
//! so that the kernel maps it for this copy; its mapping and its end are not timed.

use super::claim_of;
use crate::claim::{ClaimGoal, LabClaim};
use crate::experiment::ExperimentFindings;
use crate::measure::{CompareCase, SampleSpread, cpu_ns_each, run_interleaved};
use crate::report::ReportRow;
use bytes::Bytes;
use headwater_dma::mover::{MemoryPlace, MoveJob, MoveMemory, MoveStep, Mover};
use std::convert::Infallible;
use std::hint::black_box;

/// The bytes of a copy.
const BYTES: usize = 16 << 20;
/// The capacity of a fresh vector: allocators map 32 MiB and more for each request.
const FRESH_BYTES: usize = 40 << 20;

const WAYS: [&str; 3] =
    ["fill of present memory (floor)", "memcpy into fresh memory", "moved into fresh memory"];

/// Adds the rows and the claim.
pub(super) fn measure(rounds: usize, findings: &mut ExperimentFindings) {
    let source = Bytes::from(vec![7; BYTES]);
    let mut present = vec![1_u8; BYTES];
    let mut fill = || Ok::<f64, Infallible>(cpu_ns_each(1, || black_box(&mut present).fill(2)));
    let mut plain = || {
        let mut fresh: Vec<u8> = Vec::with_capacity(FRESH_BYTES);
        Ok::<f64, Infallible>(cpu_ns_each(1, || black_box(&mut fresh).extend_from_slice(&source)))
    };
    let mut mover = Mover::default();
    let mut moved = || {
        let mut job = append_job(source.clone());
        let run = || mover.run(black_box(&mut job)).expect("the copy lies in its memories");
        Ok::<f64, Infallible>(cpu_ns_each(1, run))
    };
    let mut cases: [CompareCase<'_, f64, Infallible>; 3] = [&mut fill, &mut plain, &mut moved];
    let samples = match run_interleaved(rounds, &mut cases) {
        Ok(samples) => samples,
        Err(never) => match never {},
    };
    findings.rows.extend(WAYS.iter().zip(&samples).map(row));
    findings.claims.push(claim(&samples[1], &samples[2]));
}

/// Returns a job that appends the source to a fresh vector.
fn append_job(source: Bytes) -> MoveJob {
    let bytes = source.len();
    let mut job = MoveJob::new();
    let from = job.add_memory(source);
    let to = job.add_memory(MoveMemory::Vec(Vec::with_capacity(FRESH_BYTES)));
    let from = MemoryPlace::new(from, 0).range(bytes);
    job.add_step(MoveStep::Copy { from, to: MemoryPlace::new(to, 0) });
    job
}

#[expect(clippy::cast_precision_loss, reason = "a copy is far below 2^52 bytes")]
fn row((way, samples): (&&str, &Vec<f64>)) -> ReportRow {
    let spread = SampleSpread::of(samples);
    ReportRow::new()
        .with("destination", "fresh")
        .with("block_bytes", BYTES as u64)
        .with("way", *way)
        .with("cpu_ns_per_block", spread)
        .with("gb_per_s", spread.map(|spread| BYTES as f64 / spread.median))
}

fn claim(plain: &[f64], moved: &[f64]) -> LabClaim {
    let ratio = SampleSpread::of_ratios(moved, plain);
    let baseline = ratio.map_or_else(String::new, |ratio| {
        format!("memcpy of {BYTES} B into fresh memory; samples {:.2} to {:.2}", ratio.min, ratio.max)
    });
    let claim = ("p9.mover.prefault", ClaimGoal::AtMost(1.0), "times the CPU of the copy without a prefault");
    claim_of(claim, ratio.map(|ratio| ratio.median), baseline)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_has_a_row_and_the_job_moves_the_source() {
        let mut findings = ExperimentFindings::default();
        measure(1, &mut findings);
        assert_eq!((findings.rows.len(), findings.claims.len()), (WAYS.len(), 1));
        assert_eq!(findings.claims[0].name, "p9.mover.prefault");
        let source = Bytes::from((0..=255).cycle().take(100_000).collect::<Vec<u8>>());
        let mut job = append_job(source.clone());
        Mover::default().run(&mut job).unwrap();
        let target = job.into_memories().pop().and_then(MoveMemory::into_vec).unwrap();
        assert!(target == source);
    }
}
