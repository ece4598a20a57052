//! The durable copies of `host::copy::persist` compared with memcpy, a flush of each line and a fence.
//!
//! Input: blocks in the nearest caches, and a destination that is larger than every cache, written in a scattered order.
//! Output: CPU nanoseconds of a block that is durable when the call returns, and the claim `p9.persist.4k`. The floor is
//! memcpy alone: the bytes must move in any case, and are not durable then.
//! Invariant: the destination is DRAM, which stands in for persistent memory; every row and claim says so. Persistent
//! memory writes slower, and prefers whole lines more.

use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, LabExperiment, RunContext};
use crate::measure::{CompareCase, CorePin, PinState, SampleSpread, cpu_ns_each, run_interleaved};
use crate::report::ReportRow;
use headwater_host::copy::persist::{
    DrainPromise, PersistentCopies, copy_persistent, kernel_name, write_back_instruction,
};
use headwater_host::mapped_region::MappedRegion;
use std::cell::RefCell;
use std::convert::Infallible;
use std::hint::black_box;
use std::io;

const CLAIM: &str = "p9.persist.4k";
const GOAL: ClaimGoal = ClaimGoal::AtLeast(1.3);
const UNIT: &str = "times the rate of memcpy, flush and fence";
const MEMORY: &str = "DRAM standing in for persistent memory";

/// The experiment's entry in the table.
pub(crate) const EXPERIMENT: LabExperiment = LabExperiment {
    name: "persist",
    summary: "CPU of a block that is durable when its copy returns, in DRAM standing in for persistent memory",
    baseline: "memcpy, a flush of each line, a fence",
    claims: &[CLAIM],
    run,
};

/// A kernel's work on one block. Returns the guarantee for the block's bytes.
type DurableCopy = fn(&mut [u8], &[u8]) -> DrainPromise;

const MEMCPY: usize = 0;
const FLUSHED: usize = 1;
const STREAMED: usize = 2;
const CHOSEN: usize = 3;
const KERNELS: [(&str, DurableCopy); 4] = [
    ("memcpy, not durable (floor)", |dst, src| {
        dst.copy_from_slice(src);
        DrainPromise::VisibleOnly
    }),
    ("memcpy, flush, fence", |dst, src| {
        dst.copy_from_slice(src);
        let mut copies = PersistentCopies::default();
        copies.flush(dst);
        copies.drain()
    }),
    ("streaming, fence", |dst, src| {
        let mut copies = PersistentCopies::default();
        copies.copy_streaming(dst, src);
        copies.drain()
    }),
    ("copy_persistent", copy_persistent),
];

/// Sizes of a block; all are powers of two, as the scattered order requires.
const SIZES: [usize; 5] = [64, 256, 1_024, CLAIM_BYTES, 65_536];
/// The size of the claim.
const CLAIM_BYTES: usize = 4_096;
const SOURCE_BYTES: usize = 128 << 10;
const TARGET_BYTES: usize = 1 << 30;
/// Bytes moved by one round of one kernel.
const ROUND_BYTES: usize = 64 << 20;
const QUICK_ROUND_BYTES: usize = 16 << 20;
const ROUNDS: usize = 25;
const QUICK_ROUNDS: usize = 11;

fn run(context: &RunContext) -> Result<ExperimentFindings, LabError> {
    let no_memory = |error| LabError::Io { what: "map 1 GiB of memory", source: io::Error::other(error) };
    let mut target = MappedRegion::zeroed(TARGET_BYTES).map_err(no_memory)?;
    // Mapped before the first round, so that no round pays for page faults.
    target.fill(1);
    let mut source = vec![0; SOURCE_BYTES];
    fastrand::Rng::with_seed(context.seed()).fill(&mut source);
    let pin = CorePin::current_core();
    let (round_bytes, rounds) =
        if context.is_quick() { (QUICK_ROUND_BYTES, QUICK_ROUNDS) } else { (ROUND_BYTES, ROUNDS) };

    let mut findings = ExperimentFindings::default();
    for block_bytes in SIZES {
        let samples = measure((&mut target, &source), block_bytes, round_bytes, rounds);
        findings.rows.extend(rows(block_bytes, &samples, pin.is_pinned()));
        if block_bytes == CLAIM_BYTES {
            findings.claims.push(claim(&samples));
        }
    }
    Ok(findings)
}

/// The order in which the blocks of the destination are written: an odd step through a power of two visits each once
/// before any again, and no prefetcher follows it.
#[derive(Debug)]
struct ScatteredBlocks {
    blocks: usize,
    next: usize,
}

impl ScatteredBlocks {
    fn next_block(&mut self) -> usize {
        self.next = (self.next + self.blocks / 8 * 5 + 0x2_4D1B) % self.blocks;
        self.next
    }
}

/// Returns the CPU nanoseconds for a block: for each kernel, one value a round.
fn measure(
    buffers: (&mut [u8], &[u8]),
    block_bytes: usize,
    round_bytes: usize,
    rounds: usize,
) -> Vec<Vec<f64>> {
    let (target, source) = buffers;
    let count = (round_bytes / block_bytes) as u64;
    let order = ScatteredBlocks { blocks: target.len() / block_bytes, next: 0 };
    // The kernels run one at a time, so only one of them borrows the buffer. They share the order, so that no round
    // writes blocks that the round before left in a cache.
    let shared = RefCell::new((target, order));
    let mut work: Vec<_> = KERNELS
        .iter()
        .map(|(_, kernel)| {
            let shared = &shared;
            move || {
                let mut shared = shared.borrow_mut();
                let (target, order) = &mut *shared;
                let mut sources = source.chunks_exact(block_bytes).cycle();
                Ok::<f64, Infallible>(cpu_ns_each(count, || {
                    for _ in 0..count {
                        let at = order.next_block() * block_bytes;
                        let from = sources.next().unwrap_or_default();
                        let promise = black_box(kernel)(&mut target[at..at + block_bytes], from);
                        let _read = black_box(promise);
                    }
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

#[expect(clippy::cast_precision_loss, reason = "a block is far below 2^52 bytes")]
fn rows(block_bytes: usize, samples: &[Vec<f64>], pinned: PinState) -> Vec<ReportRow> {
    let row = |((name, _), samples): (&(&str, DurableCopy), &Vec<f64>)| {
        let spread = SampleSpread::of(samples);
        ReportRow::new()
            .with("memory", MEMORY)
            .with("block_bytes", block_bytes as u64)
            .with("kernel", *name)
            .with("cpu_ns_per_block", spread)
            .with("gb_per_s", spread.map(|spread| block_bytes as f64 / spread.median))
            .with("flush", write_back_instruction().name())
            .with("lines", kernel_name())
            .with("pinned", if pinned == PinState::Yes { "yes" } else { "no" })
    };
    KERNELS.iter().zip(samples).map(row).collect()
}

fn claim(samples: &[Vec<f64>]) -> LabClaim {
    let nanos = |kernel: usize| SampleSpread::of(&samples[kernel]).map_or(f64::NAN, |spread| spread.median);
    let Some(ratio) = SampleSpread::of_ratios(&samples[FLUSHED], &samples[CHOSEN]) else {
        return LabClaim::not_run(CLAIM, GOAL, UNIT, "a round took no CPU time");
    };
    let baseline = format!(
        "{MEMORY}; memcpy, {} and fence {:.0} ns, streaming {:.0} ns, memcpy alone {:.0} ns; samples {:.2} to {:.2}",
        write_back_instruction().name(),
        nanos(FLUSHED),
        nanos(STREAMED),
        nanos(MEMCPY),
        ratio.min,
        ratio.max
    );
    LabClaim::found(CLAIM, GOAL, (ratio.median, UNIT), EvidenceLabel::Measured, baseline)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_kernel_copies_the_block_and_only_the_floor_promises_nothing() {
        let source: Vec<u8> = (0..=255).cycle().take(5_000).collect();
        for (index, (name, kernel)) in KERNELS.iter().enumerate() {
            let mut target = vec![0; source.len()];
            let promise = kernel(&mut target, &source);
            assert_eq!(target, source, "{name}");
            if cfg!(target_arch = "x86_64") {
                assert_eq!(promise == DrainPromise::VisibleOnly, index == MEMCPY, "{name}");
            }
        }
    }

    #[test]
    fn scattered_order_visits_every_block_once_before_any_again() {
        for block_bytes in SIZES {
            let blocks = TARGET_BYTES / block_bytes;
            let mut order = ScatteredBlocks { blocks, next: 0 };
            let visited: BTreeSet<usize> = (0..blocks.min(1 << 18)).map(|_| order.next_block()).collect();
            assert_eq!(visited.len(), blocks.min(1 << 18), "{block_bytes}");
        }
    }
}
