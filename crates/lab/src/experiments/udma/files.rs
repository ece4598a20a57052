//! The same requests in real time: on a file with direct I/O, one request at a time.
//!
//! Input: a file in the scratch folder.
//! Output: response time and CPU of a request by method and length. The methods run interleaved, a batch each, with the
//! same requests. The floor keeps one buffer for all requests, so its time is that of the disk and the kernel; if that
//! is most of a response it hides the gain, and the row says so.

use super::protocol::{CLASSES, RequestMemory, TierMemory, UdmaClass, UdmaDirection, UdmaRequest, requests};
use super::{IMPROVEMENT_MIN, failed, improvement, improvement_claim};
use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, RunContext};
use crate::experiments::pool::locking;
use crate::measure::{CompareCase, SampleSpread, run_interleaved};
use crate::report::ReportRow;
use headwater_dma::pool::{PoolConfig, TierThresholds};
use headwater_host::clock::Clock;
use headwater_host::file::{DirectChoice, FileMode, open};
use headwater_host::mapped_region::{HUGE_PAGE_BYTES, MappedRegion};
use headwater_host::pinning::per_request::FreshMemory;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

const FILE_BYTES: usize = 256 << 20;
/// Number of batches of a run; the spread is between them.
const BATCHES: usize = 10;
/// A quick run makes a tenth of the paper's requests.
const QUICK_DIVISOR: usize = 10;

const FLOOR: usize = 0;
const EACH: usize = 1;
const TIERS: usize = 2;
const METHODS: usize = 3;

/// Mean nanoseconds of a request in a batch: response time, and CPU.
#[derive(Clone, Copy)]
struct BatchCost {
    response: f64,
    cpu: f64,
}

pub(super) fn run(context: &RunContext, findings: &mut ExperimentFindings) -> Result<(), LabError> {
    let (file, mode) =
        create_test_file(context).map_err(|source| LabError::Io { what: "write the test file", source })?;
    let divisor = if context.is_quick() { QUICK_DIVISOR } else { 1 };
    let direct = if mode == FileMode::Direct { "direct" } else { "page cache" };
    for class in &CLASSES {
        for &bound in class.bounds {
            let count = class.requests / divisor;
            let list = requests(class, bound, count, FILE_BYTES as u64, context.seed());
            let costs = measure(&file, class, &list, context.clock())?;
            findings.rows.push(row(class, bound, count, direct, &costs));
            if Some(&bound) == class.bounds.last() {
                findings.claims.push(claim(class, mode, &costs));
            }
        }
    }
    Ok(())
}

/// Creates a file whose every byte is written, because unwritten bytes cost the disk nothing to read.
fn create_test_file(context: &RunContext) -> io::Result<(File, FileMode)> {
    let path = context.scratch().join("udma");
    let mut random = fastrand::Rng::with_seed(context.seed());
    let mut part = vec![0; 4 << 20];
    let file = File::create(&path)?;
    for at in (0..FILE_BYTES).step_by(part.len()) {
        random.fill(&mut part);
        file.write_all_at(&part, at as u64)?;
    }
    file.sync_all()?;
    open(&path, DirectChoice::Auto)
}

fn transfer(file: &File, request: &UdmaRequest, memory: &mut [u8]) -> io::Result<()> {
    match request.direction {
        UdmaDirection::Read => file.read_exact_at(memory, request.offset),
        UdmaDirection::Write => file.write_all_at(memory, request.offset),
    }
}

/// Returns the costs of the batches by method.
fn measure(
    file: &File,
    class: &UdmaClass,
    list: &[UdmaRequest],
    clock: &Clock,
) -> Result<Vec<Vec<BatchCost>>, LabError> {
    let batches: Vec<&[UdmaRequest]> = list.chunks(list.len().div_ceil(BATCHES)).collect();
    let longest = list.iter().map(|request| request.bytes).max().unwrap_or(0);
    // Large enough for huge pages, as the pool's chunks are.
    let mut kept = MappedRegion::zeroed(longest.max(HUGE_PAGE_BYTES)).map_err(failed)?;
    kept.fill(1);
    let mut callers = vec![1; longest];
    let pinner = locking(PoolConfig::default().cap);
    let mut tiers = TierMemory::open(class, TierThresholds::PAPER_5_2, pinner, Arc::new(*clock))?;
    // The first round is not recorded: it runs the last batch, so that every batch is recorded once.
    let turn = |round: &mut usize| {
        *round += 1;
        batches[(*round + batches.len() - 2) % batches.len()]
    };
    let (mut first, mut second, mut third) = (0, 0, 0);
    let mut floor =
        || batch(clock, turn(&mut first), |request| transfer(file, request, &mut kept[..request.bytes]));
    let mut each = || {
        batch(clock, turn(&mut second), |request| {
            transfer(file, request, &mut FreshMemory::map_and_lock(request.bytes)?)
        })
    };
    let mut with_tiers = || {
        batch(clock, turn(&mut third), |request| {
            let held = tiers.take(request.bytes).map_err(io::Error::other)?;
            run_in_tier(file, request, held, &mut callers)
        })
    };
    let mut contestants: [CompareCase<'_, BatchCost, LabError>; METHODS] =
        [&mut floor, &mut each, &mut with_tiers];
    run_interleaved(batches.len(), &mut contestants)
}

/// Runs a request through a tier: small ones are copied, because their memory stays in the tier.
fn run_in_tier(
    file: &File,
    request: &UdmaRequest,
    held: RequestMemory<'_>,
    callers: &mut [u8],
) -> io::Result<()> {
    match held {
        RequestMemory::Buffer(mut buffer) => transfer(file, request, &mut buffer),
        RequestMemory::Slot(slot) => {
            let callers = &mut callers[..slot.len()];
            match request.direction {
                UdmaDirection::Write => {
                    slot.copy_from_slice(callers);
                    transfer(file, request, slot)
                }
                UdmaDirection::Read => {
                    transfer(file, request, slot)?;
                    callers.copy_from_slice(slot);
                    Ok(())
                }
            }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a batch is far below 2^52 ns")]
fn batch(
    clock: &Clock,
    list: &[UdmaRequest],
    mut one: impl FnMut(&UdmaRequest) -> io::Result<()>,
) -> Result<BatchCost, LabError> {
    let (start, cpu) = (clock.now(), Clock::thread_cpu());
    for request in list {
        one(request).map_err(|source| LabError::Io { what: "read and write the test file", source })?;
    }
    let (spent, cpu) = (clock.now().since(start), Clock::thread_cpu().since(cpu));
    let count = list.len().max(1) as f64;
    Ok(BatchCost { response: spent.0 as f64 / count, cpu: cpu.0 as f64 / count })
}

fn spread(costs: &[BatchCost], of: fn(&BatchCost) -> f64) -> Option<SampleSpread> {
    SampleSpread::of(&costs.iter().map(|cost| of(cost) / 1e3).collect::<Vec<f64>>())
}

/// Returns the percentage that the tiers save, batch by batch.
fn gain(costs: &[Vec<BatchCost>], of: fn(&BatchCost) -> f64) -> Option<SampleSpread> {
    let pairs = costs[EACH].iter().zip(&costs[TIERS]);
    SampleSpread::of(&pairs.map(|(each, tiers)| improvement(of(each), of(tiers))).collect::<Vec<f64>>())
}

/// Returns the percentage of a response that the disk and the kernel take.
fn floor_share(costs: &[Vec<BatchCost>]) -> f64 {
    let share = |(floor, each): (&BatchCost, &BatchCost)| floor.response / each.response * 100.0;
    let shares: Vec<f64> = costs[FLOOR].iter().zip(&costs[EACH]).map(share).collect();
    SampleSpread::of(&shares).map_or(f64::NAN, |spread| spread.median)
}

fn row(class: &UdmaClass, bound: usize, count: usize, direct: &str, costs: &[Vec<BatchCost>]) -> ReportRow {
    let response = |way: usize| spread(&costs[way], |cost| cost.response);
    let cpu = |way: usize| spread(&costs[way], |cost| cost.cpu);
    let gained = gain(costs, |cost| cost.response);
    let hidden = gained.is_none_or(|gained| gained.median < IMPROVEMENT_MIN);
    let note = if hidden {
        format!("hidden behind the disk, whose part is {:.0} %", floor_share(costs))
    } else {
        String::new()
    };
    ReportRow::new()
        .with("figure", "5")
        .with("label", EvidenceLabel::Measured.to_string())
        .with("class", class.name)
        .with("up_to_bytes", bound as u64)
        .with("requests", count as u64)
        .with("file", direct)
        .with("floor_us", response(FLOOR))
        .with("each_request_us", response(EACH))
        .with("paper_5_2_us", response(TIERS))
        .with("improvement_percent", gained)
        .with("floor_cpu_us", cpu(FLOOR))
        .with("each_request_cpu_us", cpu(EACH))
        .with("paper_5_2_cpu_us", cpu(TIERS))
        .with("note", note)
}

fn claim(class: &UdmaClass, mode: FileMode, costs: &[Vec<BatchCost>]) -> LabClaim {
    let name = format!("p3.udma.file.{}", class.name);
    if mode != FileMode::Direct {
        let why = "the scratch folder's file system has no direct I/O: set TMPDIR to one that has";
        return LabClaim::not_run(name, ClaimGoal::AtLeast(IMPROVEMENT_MIN), "%", why);
    }
    let median = |spread: Option<SampleSpread>| spread.map_or(f64::NAN, |spread| spread.median);
    let baseline = format!(
        "mmap and mlock for each request: {:.0} us, {:.0} % of it the disk's (floor {:.0} us); by CPU {:.0} % less",
        median(spread(&costs[EACH], |cost| cost.response)),
        floor_share(costs),
        median(spread(&costs[FLOOR], |cost| cost.response)),
        median(gain(costs, |cost| cost.cpu))
    );
    improvement_claim(name, median(gain(costs, |cost| cost.response)), EvidenceLabel::Measured, baseline)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::RunOptions;
    use headwater_dma::pool::NoPinning;

    #[test]
    fn every_way_moves_every_request() {
        let context = RunContext::open(RunOptions { quick: true, ..RunOptions::default() }).unwrap();
        let path = context.scratch().join("short");
        std::fs::write(&path, vec![7; 4 << 20]).unwrap();
        let (file, _) = open(&path, DirectChoice::Auto).unwrap();
        for class in &CLASSES {
            let list = requests(class, class.bounds[0], 20, 4 << 20, 1);
            let Ok(costs) = measure(&file, class, &list, context.clock()) else { continue };
            assert_eq!(costs.len(), METHODS);
            assert!(costs.iter().all(|batches| batches.len() == BATCHES));
            let row = row(class, class.bounds[0], 20, "direct", &costs);
            assert!(row.get("note").is_some());
        }
    }

    #[test]
    fn read_through_a_slot_returns_the_bytes_of_the_file() {
        let context = RunContext::open(RunOptions::default()).unwrap();
        let path = context.scratch().join("pattern");
        let pattern: Vec<u8> = (0..=255).cycle().take(64 << 10).collect();
        std::fs::write(&path, &pattern).unwrap();
        let (file, _) = open(&path, DirectChoice::Auto).unwrap();
        let mut tiers = TierMemory::open(
            &CLASSES[0],
            TierThresholds::PAPER_5_2,
            Arc::new(NoPinning),
            Arc::new(Clock::start()),
        )
        .unwrap();
        let mut callers = vec![0; 4_096];
        let request = UdmaRequest { bytes: 512, direction: UdmaDirection::Read, offset: 4_096 };
        run_in_tier(&file, &request, tiers.take(512).unwrap(), &mut callers).unwrap();
        assert_eq!(callers[..512], pattern[4_096..4_608]);
    }
}
