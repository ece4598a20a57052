//! The copy and CRC-32C kernels compared with their floors.
//!
//! Input: small buffers walked repeatedly (warm), and buffers larger than every cache (cold).
//! Output: CPU nanoseconds of each kernel for a block. The floor of a copy is the platform's own `memcpy` of the same
//! bytes. The floor of a copy that also checks is the same `memcpy`, because the bytes must move in any case.

use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, LabExperiment, RunContext};
use crate::measure::{CompareCase, CorePin, PinState, SampleSpread, cpu_ns_each, run_interleaved};
use crate::report::ReportRow;
use headwater_host::copy::{copy_crc32c, copy_streaming, crc32c, kernel_name};
use std::convert::Infallible;
use std::hint::black_box;

/// The experiment's entry in the table.
pub(crate) const EXPERIMENT: LabExperiment = LabExperiment {
    name: "copy",
    summary: "CPU of the kernels that move and check payload",
    baseline: "the platform's memcpy; copy and CRC one after the other",
    claims: &["p1.copy.*"],
    run,
};

/// A kernel's work on one block; it returns a checksum so that the compiler cannot remove it.
type CopyKernel = fn(&mut [u8], &[u8]) -> u32;

const MEMCPY: usize = 0;
const STREAM: usize = 1;
const CRC: usize = 2;
const SEPARATE: usize = 3;
const FUSED: usize = 4;
const KERNELS: [(&str, CopyKernel); 5] = [
    ("memcpy (floor)", |dst, src| {
        dst.copy_from_slice(src);
        0
    }),
    ("copy past the cache", |dst, src| {
        copy_streaming(dst, src);
        0
    }),
    ("crc32c alone", |_, src| crc32c(0, src)),
    ("copy, then crc32c", |dst, src| {
        dst.copy_from_slice(src);
        crc32c(0, dst)
    }),
    ("copy and crc32c in one pass", |dst, src| copy_crc32c(dst, src, 0)),
];

/// The location of the bytes before they are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BlockLocation {
    /// In the nearest caches.
    Warm,
    /// In memory: every block is visited once a walk.
    Cold,
}

struct CopyCase {
    name: &'static str,
    block_bytes: usize,
    location: BlockLocation,
}

const CASES: &[CopyCase] = &[
    CopyCase { name: "100", block_bytes: 100, location: BlockLocation::Warm },
    CopyCase { name: "4k", block_bytes: 4_096, location: BlockLocation::Warm },
    CopyCase { name: "4k.cold", block_bytes: 4_096, location: BlockLocation::Cold },
    CopyCase { name: "128k.cold", block_bytes: 128 << 10, location: BlockLocation::Cold },
];

/// The promises: claim, case, kernel, kernel that it is compared with, and goal of the ratio.
const PROMISES: &[(&str, &str, usize, usize, ClaimGoal)] = &[
    ("p1.copy.fused.4k", "4k", FUSED, SEPARATE, ClaimGoal::AtMost(0.9)),
    ("p1.copy.fused.4k.cold", "4k.cold", FUSED, MEMCPY, ClaimGoal::AtMost(1.25)),
    ("p1.copy.stream.128k.cold", "128k.cold", STREAM, MEMCPY, ClaimGoal::AtMost(1.0)),
    ("p1.copy.crc.4k", "4k", CRC, MEMCPY, ClaimGoal::AtMost(2.0)),
];

const WARM_BYTES: usize = 16 << 10;
/// Bytes moved by one round of one kernel.
const QUICK_ROUND_BYTES: usize = 128 << 20;
const FULL_ROUND_BYTES: usize = 512 << 20;

fn run(context: &RunContext) -> Result<ExperimentFindings, LabError> {
    // More than eight times the largest cache of the test machines: each walk evicts what the one before loaded.
    let (round_bytes, rounds) =
        if context.is_quick() { (QUICK_ROUND_BYTES, 5) } else { (FULL_ROUND_BYTES, 15) };
    let mut random = fastrand::Rng::with_seed(context.seed());
    let mut source = vec![0; FULL_ROUND_BYTES / 2];
    random.fill(&mut source);
    let mut target = vec![0; source.len()];
    let pin = CorePin::current_core();

    let mut findings = ExperimentFindings::default();
    for case in CASES {
        let walked = match case.location {
            BlockLocation::Warm => WARM_BYTES,
            BlockLocation::Cold => source.len(),
        };
        let samples = measure(case, (&mut target[..walked], &source[..walked]), round_bytes, rounds);
        findings.rows.extend(rows(case, &samples, pin.is_pinned()));
        for promise in PROMISES.iter().filter(|(_, of, ..)| *of == case.name) {
            findings.claims.push(claim(promise, &samples));
        }
    }
    Ok(findings)
}

/// Returns the CPU nanoseconds for a block: for each kernel, one value a round.
fn measure(case: &CopyCase, buffers: (&mut [u8], &[u8]), round_bytes: usize, rounds: usize) -> Vec<Vec<f64>> {
    let (target, source) = buffers;
    let blocks = (round_bytes / case.block_bytes) as u64;
    // The kernels run one at a time, so only one of them borrows the buffer.
    let target = std::cell::RefCell::new(target);
    let mut work: Vec<_> = KERNELS
        .iter()
        .map(|(_, kernel)| {
            let target = &target;
            let block_bytes = case.block_bytes;
            move || {
                let mut target = target.borrow_mut();
                Ok::<f64, Infallible>(cpu_ns_each(blocks, || {
                    walk(*kernel, &mut target, source, block_bytes, blocks);
                }))
            }
        })
        .collect();
    let mut contestants: Vec<CompareCase<'_, f64, Infallible>> = Vec::new();
    for kernel_work in &mut work {
        contestants.push(kernel_work);
    }
    match run_interleaved(rounds, &mut contestants) {
        Ok(samples) => samples,
        Err(never) => match never {},
    }
}

fn walk(kernel: CopyKernel, target: &mut [u8], source: &[u8], block_bytes: usize, blocks: u64) {
    let mut left = blocks;
    while left > 0 {
        let pairs = target.chunks_exact_mut(block_bytes).zip(source.chunks_exact(block_bytes));
        for (dst, src) in pairs {
            if left == 0 {
                return;
            }
            black_box(black_box(kernel)(dst, src));
            left -= 1;
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a block is far below 2^52 bytes")]
fn rows(case: &CopyCase, samples: &[Vec<f64>], pinned: PinState) -> Vec<ReportRow> {
    let row = |((name, _), samples): (&(&str, CopyKernel), &Vec<f64>)| {
        let spread = SampleSpread::of(samples);
        ReportRow::new()
            .with("case", case.name)
            .with("block_bytes", case.block_bytes as u64)
            .with("kernel", *name)
            .with("cpu_ns_per_block", spread)
            .with("gb_per_s", spread.map(|spread| case.block_bytes as f64 / spread.median))
            .with("crc_kernel", kernel_name())
            .with("pinned", if pinned == PinState::Yes { "yes" } else { "no" })
    };
    KERNELS.iter().zip(samples).map(row).collect()
}

fn claim(promise: &(&str, &str, usize, usize, ClaimGoal), samples: &[Vec<f64>]) -> LabClaim {
    let (name, _, kernel, against, goal) = *promise;
    let ratio = SampleSpread::of_ratios(&samples[kernel], &samples[against]);
    let floor = SampleSpread::of(&samples[against]);
    let baseline =
        format!("{} at {:.0} ns a block", KERNELS[against].0, floor.map_or(f64::NAN, |spread| spread.median));
    let value = ratio.map_or(f64::NAN, |spread| spread.median);
    LabClaim::found(name, goal, (value, "ratio of CPU a block"), EvidenceLabel::Measured, baseline)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_copying_kernel_copies_the_source() {
        let source: Vec<u8> = (0..=255).cycle().take(5_000).collect();
        for (index, (name, kernel)) in KERNELS.iter().enumerate() {
            let mut target = vec![0; source.len()];
            let checksum = kernel(&mut target, &source);
            if index != CRC {
                assert_eq!(target, source, "{name}");
            }
            if index >= CRC {
                assert_eq!(checksum, crc32c(0, &source), "{name}");
            }
        }
    }

    #[test]
    fn every_promise_names_a_case_and_a_unique_claim() {
        let mut names: Vec<&str> = PROMISES.iter().map(|(name, ..)| *name).collect();
        names.dedup();
        assert_eq!(names.len(), PROMISES.len());
        for (_, of, ..) in PROMISES {
            assert!(CASES.iter().any(|case| case.name == *of));
        }
    }
}
