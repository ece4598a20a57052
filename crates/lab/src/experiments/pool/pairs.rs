//! The cost of one allocation and its free, by method and size.
//!
//! Input: sizes.
//! Output: CPU nanoseconds of a pair (an allocation and its free) for every method, and the claims on them. The methods
//! run interleaved.

use super::{CACHED, CAP_BYTES, claim, failed, median, open};
use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, RunContext};
use crate::measure::{CompareCase, PinState, SampleSpread, cpu_ns_each, run_interleaved};
use crate::report::ReportRow;
use headwater_baselines::{BaselineAllocator, BaselineHeap};
use headwater_dma::pool::Pool;
use headwater_host::mapped_region::MappedRegion;
use headwater_host::pinning::per_request::{BufferRegistrar, FreshMemory, map_reserved_huge};
use std::hint::black_box;
use std::io;

const SIZES: [(&str, usize); 5] =
    [("4k", 4 << 10), ("16k", 16 << 10), ("64k", 64 << 10), ("256k", 256 << 10), ("1m", 1 << 20)];
/// Number of blocks of the freelist.
const STOCK: usize = 64;
const ARENA_BYTES: usize = 128 << 20;
const CHUNK_BYTES: usize = 4 << 20;
/// Pairs of a round, for methods without system calls.
const PAIRS: u64 = 100_000;
const KERNEL_BYTES: usize = 4 << 20;

const FLOOR: usize = 0;
const HIT: usize = 1;
const SHARED: usize = 2;
const RLSF: usize = 3;
const TALC: usize = 4;
const REGISTER: usize = 5;
const MAP_LOCK: usize = 6;
const NAMES: [&str; 7] = [
    "fixed-size freelist (floor)",
    "pool, cache hit",
    "pool, shared path",
    "rlsf, locked arena",
    "talc, locked arena",
    "io_uring registration of resident huge pages",
    "mmap and mlock",
];

const HIT_NS_MAX: f64 = 10.0;
const SHARED_NS_MAX: f64 = 60.0;

/// The prepared state of every compared method.
struct PairBench {
    stock: Vec<(usize, usize)>,
    hit: Pool,
    shared: Pool,
    rlsf: Option<BaselineHeap>,
    talc: Option<BaselineHeap>,
    ring: io::Result<BufferRegistrar>,
    resident: MappedRegion,
}

impl PairBench {
    fn open() -> Result<Self, LabError> {
        let mut resident = MappedRegion::zeroed(KERNEL_BYTES).map_err(failed)?;
        resident.fill(1);
        Ok(Self {
            stock: (0..STOCK).map(|block| (block, block)).collect(),
            hit: open(CAP_BYTES, CHUNK_BYTES, CACHED)?,
            shared: open(CAP_BYTES, CHUNK_BYTES, 0)?,
            rlsf: BaselineHeap::open(BaselineAllocator::Rlsf, ARENA_BYTES),
            talc: BaselineHeap::open(BaselineAllocator::Talc, ARENA_BYTES),
            ring: BufferRegistrar::open(),
            resident,
        })
    }
}

pub(super) fn run(
    context: &RunContext,
    findings: &mut ExperimentFindings,
    pinned: PinState,
) -> Result<(), LabError> {
    let rounds = if context.is_quick() { 7 } else { 41 };
    let mut bench = PairBench::open()?;
    for (name, bytes) in SIZES {
        let samples = measure(&mut bench, bytes, rounds)?;
        for (method, samples) in NAMES.iter().zip(&samples) {
            findings.rows.push(row(method, bytes, SampleSpread::of(samples), "", pinned));
        }
        let huge = reserved_huge(bytes, rounds);
        let note = if huge.is_none() { "no reserved huge pages (vm.nr_hugepages)" } else { "" };
        findings.rows.push(row("map of reserved huge pages", bytes, huge, note, pinned));
        claims(findings, name, &samples);
    }
    let locked = |heap: &Option<BaselineHeap>| heap.as_ref().is_some_and(BaselineHeap::is_locked);
    let text = if locked(&bench.rlsf) && locked(&bench.talc) { "locked" } else { "resident, not locked" };
    let pinner = bench.hit.config().pinner.name();
    findings
        .rows
        .push(ReportRow::new().with("pinner_of_the_pool", pinner).with("arenas_of_rlsf_and_talc", text));
    Ok(())
}

fn row(method: &str, bytes: usize, cost: Option<SampleSpread>, note: &str, pinned: PinState) -> ReportRow {
    ReportRow::new()
        .with("pair", method)
        .with("block_bytes", bytes as u64)
        .with("cpu_ns", cost)
        .with("pinned", if pinned == PinState::Yes { "yes" } else { "no" })
        .with("note", note)
}

/// Returns the CPU nanoseconds of a pair: for each of [`NAMES`], one value a round, which is not finite if the system
/// refuses the method.
fn measure(bench: &mut PairBench, bytes: usize, rounds: usize) -> Result<Vec<Vec<f64>>, LabError> {
    let PairBench { stock, hit, shared, rlsf, talc, ring, resident } = bench;
    // Another live buffer keeps the chunk from becoming empty.
    let _companion = shared.buffer(4 << 10).map_err(failed)?;
    // A few pairs with system calls take as long as thousands of the rest.
    let few = (KERNEL_BYTES / bytes).clamp(16, 256) as u64;
    let mut floor = || {
        Ok(cpu_ns_each(PAIRS, || {
            for _ in 0..PAIRS {
                let block = stock.pop();
                stock.extend(black_box(block));
            }
        }))
    };
    let mut pool_hit = || pool_pairs(hit, bytes);
    let mut pool_shared = || pool_pairs(shared, bytes);
    let mut with_rlsf = || Ok(heap_pairs(rlsf.as_mut(), bytes));
    let mut with_talc = || Ok(heap_pairs(talc.as_mut(), bytes));
    let mut register = || {
        let Ok(ring) = ring else { return Ok(f64::NAN) };
        Ok(kernel_pairs(few, || ring.register(&mut resident[..bytes])))
    };
    let mut map_lock = || Ok(kernel_pairs(few / 4, || FreshMemory::map_and_lock(bytes).map(drop)));
    let mut contestants: [CompareCase<'_, f64, LabError>; NAMES.len()] = [
        &mut floor,
        &mut pool_hit,
        &mut pool_shared,
        &mut with_rlsf,
        &mut with_talc,
        &mut register,
        &mut map_lock,
    ];
    run_interleaved(rounds, &mut contestants)
}

fn pool_pairs(pool: &Pool, bytes: usize) -> Result<f64, LabError> {
    let mut outcome = Ok(());
    let cost = cpu_ns_each(PAIRS, || {
        for _ in 0..PAIRS {
            match pool.buffer(bytes) {
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

fn heap_pairs(heap: Option<&mut BaselineHeap>, bytes: usize) -> f64 {
    let Some(heap) = heap else { return f64::NAN };
    cpu_ns_each(PAIRS, || {
        for _ in 0..PAIRS {
            if let Some(block) = heap.allocate(bytes) {
                heap.free(black_box(block));
            }
        }
    })
}

fn kernel_pairs(count: u64, mut pair: impl FnMut() -> io::Result<()>) -> f64 {
    let mut refused = false;
    let cost = cpu_ns_each(count, || (0..count).for_each(|_| refused |= pair().is_err()));
    if refused { f64::NAN } else { cost }
}

fn reserved_huge(bytes: usize, rounds: usize) -> Option<SampleSpread> {
    let samples: Vec<f64> = (0..rounds).map(|_| kernel_pairs(4, || map_reserved_huge(bytes))).collect();
    SampleSpread::of(&samples)
}

fn claims(findings: &mut ExperimentFindings, name: &str, samples: &[Vec<f64>]) {
    let costs_of = |methods: &[usize]| {
        let named =
            methods.iter().map(|&index| format!("{} {:.1} ns", NAMES[index], median(&samples[index])));
        named.collect::<Vec<_>>().join(", ")
    };
    let unit = "ns of CPU an allocation and its free";
    let goal = ClaimGoal::AtMost(HIT_NS_MAX);
    let baseline = costs_of(&[FLOOR, RLSF, TALC, MAP_LOCK]);
    findings.claims.push(claim(format!("p3.pool.hit.{name}"), goal, unit, &samples[HIT], &baseline));
    let goal = ClaimGoal::AtMost(SHARED_NS_MAX);
    findings.claims.push(claim(format!("p3.pool.shared.{name}"), goal, unit, &samples[SHARED], &baseline));
    if name != "64k" {
        return;
    }
    findings.claims.push(LabClaim::found(
        "p3.pool.register.64k",
        ClaimGoal::AtLeast(100.0),
        (median(&samples[REGISTER]) / median(&samples[HIT]), "x cheaper than registering for each request"),
        EvidenceLabel::Measured,
        costs_of(&[REGISTER, HIT]),
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_without_system_calls_has_a_cost() {
        let mut bench = PairBench::open().unwrap();
        let samples = measure(&mut bench, 64 << 10, 1).unwrap();
        assert_eq!(samples.len(), NAMES.len());
        for method in [FLOOR, HIT, SHARED, RLSF, TALC] {
            assert!(samples[method][0].is_finite(), "{}", NAMES[method]);
        }
        // The hit pool serves from its cache, the shared one never does.
        let steps = |pool: &Pool| pool.statistics().steps;
        assert!(steps(&bench.hit).cache_per_mille() >= 999);
        assert_eq!(steps(&bench.shared).cache, 0);
    }
}
