//! The same requests in real time: on a file with direct I/O, one request at a time, through the buffers of a device.
//!
//! Input: a file in the scratch folder.
//! Output: response time and CPU of a request by method and length. The methods run interleaved, a batch each, with the
//! same requests. The floor keeps one buffer for all requests, so its time is that of the disk and the kernel; if that
//! is most of a response it hides the gain, and the row says so. Invariant: a run ends with an error unless the counters
//! of each device's pool say that every request was served by the tier of its length.

use super::protocol::{CLASSES, TierPreset, UdmaClass, UdmaDirection, UdmaRequest, requests};
use super::tier_device::{MemoryMethod, TierDevice};
use super::{IMPROVEMENT_MIN, improvement, improvement_claim, preset_claim};
use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, RunContext};
use crate::measure::SampleSpread;
use crate::report::ReportRow;
use headwater_host::clock::Clock;
use headwater_host::file::{DirectChoice, FileMode, open};
use headwater_host::width::to_usize;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const FILE_BYTES: usize = 256 << 20;
/// Number of batches of a run; the spread is between them.
const BATCHES: usize = 10;
/// A quick run makes a twentieth of the paper's requests.
const QUICK_DIVISOR: usize = 20;

const FLOOR: usize = 0;
const EACH: usize = 1;
/// The first of [`TierPreset::ALL`].
const PRESETS: usize = 2;
const METHODS: usize = PRESETS + TierPreset::ALL.len();
/// Tenths of a run after which figures 6 and 7 sample.
const RUN_TIME_MARKS: [usize; 4] = [1, 2, 5, 10];
/// Requests before the first batch, on the floor's device: a new ring and a cold file are no cost of memory.
const WARM_UP: usize = 50;

/// Mean nanoseconds of a request in a batch: response time, and CPU.
#[derive(Clone, Copy)]
struct BatchCost {
    response: f64,
    cpu: f64,
}

/// The costs of the batches by method.
type MethodCosts = [Vec<BatchCost>; METHODS];

pub(super) fn run(context: &RunContext, findings: &mut ExperimentFindings) -> Result<(), LabError> {
    let (path, mode) =
        create_test_file(context).map_err(|source| LabError::Io { what: "write the test file", source })?;
    let divisor = if context.is_quick() { QUICK_DIVISOR } else { 1 };
    let direct = if mode == FileMode::Direct { "direct" } else { "page cache" };
    let unit = to_usize(TierDevice::open(&path, MemoryMethod::EachRequest)?.block_bytes().into());
    let (mut figure_6, mut figure_7) = (Vec::new(), Vec::new());
    for class in &CLASSES {
        for &bound in class.bounds {
            let count = class.requests / divisor;
            let list = requests(class, bound, count, (FILE_BYTES as u64, unit), context.seed());
            let costs = measure(&path, &list, context.clock())?;
            findings.rows.push(row(class, bound, (count, unit), direct, &costs));
            for preset in TierPreset::ALL {
                let grown = run_time_row("6", preset, bound, &costs);
                if class.name == "medium" && bound >= 64 << 10 {
                    figure_7.push(run_time_row("7", preset, bound, &costs));
                }
                figure_6.push(grown);
                if Some(&bound) == class.bounds.last() {
                    findings.claims.extend(claim(class, preset, mode, &costs));
                }
            }
        }
    }
    findings.rows.extend(figure_6);
    findings.rows.extend(figure_7);
    Ok(())
}

/// Creates a file whose every byte is written, because unwritten bytes cost the disk nothing to read.
fn create_test_file(context: &RunContext) -> io::Result<(PathBuf, FileMode)> {
    let path = context.scratch().join("udma");
    let mut random = fastrand::Rng::with_seed(context.seed());
    let mut part = vec![0; 4 << 20];
    let file = File::create(&path)?;
    for at in (0..FILE_BYTES).step_by(part.len()) {
        random.fill(&mut part);
        file.write_all_at(&part, at as u64)?;
    }
    file.sync_all()?;
    let (_, mode) = open(&path, DirectChoice::Auto)?;
    Ok((path, mode))
}

/// Returns the costs of the batches by method. Every batch counts, the first of each method with the pinning of its
/// blocks.
fn measure(path: &Path, list: &[UdmaRequest], clock: &Clock) -> Result<MethodCosts, LabError> {
    let longest = list.iter().map(|request| request.bytes).max().unwrap_or(1);
    let mut devices = vec![
        TierDevice::open(path, MemoryMethod::Kept(longest))?,
        TierDevice::open(path, MemoryMethod::EachRequest)?,
    ];
    for preset in TierPreset::ALL {
        devices.push(TierDevice::open(path, MemoryMethod::Tiers(preset))?);
    }
    let floor = &mut devices[FLOOR];
    let reads =
        list.iter().take(WARM_UP).map(|request| UdmaRequest { direction: UdmaDirection::Read, ..*request });
    batch(clock, reads, floor)?;
    let mut costs: MethodCosts = std::array::from_fn(|_| Vec::new());
    for (round, requests) in list.chunks(list.len().div_ceil(BATCHES).max(1)).enumerate() {
        for turn in 0..METHODS {
            let method = (round + turn) % METHODS;
            costs[method].push(batch(clock, requests.iter().copied(), &mut devices[method])?);
        }
    }
    devices.iter().try_for_each(TierDevice::check)?;
    Ok(costs)
}

#[expect(clippy::cast_precision_loss, reason = "a batch is far below 2^52 ns")]
fn batch(
    clock: &Clock,
    list: impl ExactSizeIterator<Item = UdmaRequest>,
    device: &mut TierDevice,
) -> Result<BatchCost, LabError> {
    let count = list.len().max(1) as f64;
    let (start, cpu) = (clock.now(), Clock::thread_cpu());
    for request in list {
        device.run(&request).map_err(super::failed)?;
    }
    let (spent, cpu) = (clock.now().since(start), Clock::thread_cpu().since(cpu));
    Ok(BatchCost { response: spent.0 as f64 / count, cpu: cpu.0 as f64 / count })
}

fn spread(costs: &[BatchCost], of: fn(&BatchCost) -> f64) -> Option<SampleSpread> {
    SampleSpread::of(&costs.iter().map(|cost| of(cost) / 1e3).collect::<Vec<f64>>())
}

/// Returns the percentage that a method saves, batch by batch.
fn gain(costs: &MethodCosts, method: usize, of: fn(&BatchCost) -> f64) -> Option<SampleSpread> {
    let pairs = costs[EACH].iter().zip(&costs[method]);
    SampleSpread::of(&pairs.map(|(each, tiers)| improvement(of(each), of(tiers))).collect::<Vec<f64>>())
}

/// Returns the percentage of a response that the disk and the kernel take.
fn floor_share(costs: &MethodCosts) -> f64 {
    let share = |(floor, each): (&BatchCost, &BatchCost)| floor.response / each.response * 100.0;
    let shares: Vec<f64> = costs[FLOOR].iter().zip(&costs[EACH]).map(share).collect();
    SampleSpread::of(&shares).map_or(f64::NAN, |spread| spread.median)
}

fn row(
    class: &UdmaClass,
    bound: usize,
    (count, unit): (usize, usize),
    direct: &str,
    costs: &MethodCosts,
) -> ReportRow {
    const COLUMNS: [[&str; 3]; TierPreset::ALL.len()] = [
        ["paper_5_2_us", "paper_5_2_improvement_percent", "paper_5_2_cpu_us"],
        ["paper_4_1_us", "paper_4_1_improvement_percent", "paper_4_1_cpu_us"],
        ["ours_us", "ours_improvement_percent", "ours_cpu_us"],
    ];
    let response = |method: usize| spread(&costs[method], |cost| cost.response);
    let cpu = |method: usize| spread(&costs[method], |cost| cost.cpu);
    let hidden =
        gain(costs, METHODS - 1, |cost| cost.response).is_none_or(|gained| gained.median < IMPROVEMENT_MIN);
    let note = if hidden {
        format!("hidden behind the disk, whose part is {:.0} %", floor_share(costs))
    } else {
        String::new()
    };
    let start = ReportRow::new()
        .with("figure", "5")
        .with("label", EvidenceLabel::Measured.to_string())
        .with("class", class.name)
        .with("up_to_bytes", bound as u64)
        .with("block_bytes", unit as u64)
        .with("requests", count as u64)
        .with("file", direct)
        .with("floor_us", response(FLOOR))
        .with("each_request_us", response(EACH))
        .with("floor_cpu_us", cpu(FLOOR))
        .with("each_request_cpu_us", cpu(EACH));
    let tiers = COLUMNS.into_iter().zip(PRESETS..).fold(start, |row, ([time, percent, used], method)| {
        row.with(time, response(method))
            .with(percent, gain(costs, method, |cost| cost.response))
            .with(used, cpu(method))
    });
    tiers.with("note", note)
}

/// Returns the row of figure 6 or 7: the improvement over the first part of a run.
#[expect(clippy::cast_precision_loss, reason = "at most ten batches")]
fn run_time_row(figure: &str, preset: TierPreset, bound: usize, costs: &MethodCosts) -> ReportRow {
    const COLUMNS: [&str; RUN_TIME_MARKS.len()] =
        ["after_10_percent_of_run", "after_20_percent_of_run", "after_50_percent_of_run", "after_all_of_run"];
    let mean = |method: usize, batches: usize| {
        let part: Vec<f64> = costs[method].iter().take(batches).map(|cost| cost.response).collect();
        part.iter().sum::<f64>() / part.len().max(1) as f64
    };
    let start = ReportRow::new()
        .with("figure", figure)
        .with("label", EvidenceLabel::Measured.to_string())
        .with("limits", preset.name())
        .with("improvement_percent_up_to_bytes", bound as u64);
    COLUMNS.into_iter().zip(RUN_TIME_MARKS).fold(start, |row, (column, tenths)| {
        let batches = (costs[EACH].len() * tenths).div_ceil(10);
        let method = PRESETS + preset as usize;
        row.with(column, improvement(mean(EACH, batches), mean(method, batches)))
    })
}

/// Evaluates the claim of a class with a preset.
fn claim(class: &UdmaClass, preset: TierPreset, mode: FileMode, costs: &MethodCosts) -> Option<LabClaim> {
    let name = preset_claim("file", class, preset)?;
    if mode != FileMode::Direct {
        let why = "the scratch folder's file system has no direct I/O: set TMPDIR to one that has";
        return Some(LabClaim::not_run(name, ClaimGoal::AtLeast(IMPROVEMENT_MIN), "%", why));
    }
    let method = PRESETS + preset as usize;
    let median = |spread: Option<SampleSpread>| spread.map_or(f64::NAN, |spread| spread.median);
    let baseline = format!(
        "memory pinned for each request: {:.0} us, {:.0} % of it the disk's (floor {:.0} us); by CPU {:.0} % less",
        median(spread(&costs[EACH], |cost| cost.response)),
        floor_share(costs),
        median(spread(&costs[FLOOR], |cost| cost.response)),
        median(gain(costs, method, |cost| cost.cpu))
    );
    let percent = median(gain(costs, method, |cost| cost.response));
    Some(improvement_claim(name, percent, EvidenceLabel::Measured, baseline))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::RunOptions;

    #[test]
    fn every_method_moves_every_request_and_claims_name_their_limits() {
        let context = RunContext::open(RunOptions { quick: true, ..RunOptions::default() }).unwrap();
        let path = context.scratch().join("short");
        std::fs::write(&path, vec![7; 4 << 20]).unwrap();
        for class in &CLASSES {
            let list = requests(class, class.bounds[0], 20, (4 << 20, 4_096), 1);
            let costs = measure(&path, &list, context.clock()).unwrap();
            assert!(costs.iter().all(|batches| batches.len() == BATCHES));
            let row = row(class, class.bounds[0], (20, 4_096), "direct", &costs);
            assert!(row.get("note").is_some() && row.get("ours_us").is_some());
            let names = TierPreset::ALL.map(|preset| claim(class, preset, FileMode::Direct, &costs));
            let names: Vec<String> = names.into_iter().flatten().map(|claim| claim.name).collect();
            let ours = format!("p3.udma.file.{}", class.name);
            assert_eq!(names, [format!("{ours}.paper"), ours]);
        }
    }
}
