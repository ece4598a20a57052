//! The device behind in-process rings, compared with the copies that it cannot avoid.
//!
//! Input: a device on flash in memory, 70 % full, much larger than the last-level cache, with active garbage
//! collection.
//! Output: CPU nanoseconds for a get and a put. The floor copies and checks the same bytes with the same kernel and
//! does nothing else: for a get, from a random position of a region as large as the medium; for a put, to a random
//! position, as often as the medium was actually written (write amplification is inherent, not overhead). The part of a get
//! from its entry to the submitted operation has a floor of its own.

mod measured_device;
mod submit;

use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, LabExperiment, RunContext};
use crate::measure::{CompareCase, CorePin, SampleSpread, cpu_ns_each, run_interleaved};
use crate::report::ReportRow;
use headwater_host::copy::copy_crc32c;
use headwater_host::mapped_region::MappedRegion;
use measured_device::{DEPTH, MeasuredDevice, RoundKind, StageTimes, record_bytes};
use std::cell::RefCell;
use std::hint::black_box;
use submit::SubmitFloor;

/// The experiment's entry in the table.
pub(crate) const EXPERIMENT: LabExperiment = LabExperiment {
    name: "device",
    summary: "CPU of a get and a put through rings and the whole device",
    baseline: "copy and CRC of the same bytes, nothing else",
    claims: &["p1.device.*", "p8.submit.*"],
    run,
};

const LARGE: u32 = 4_096;
const SMALL: u32 = 100;

/// The amount of work of a run.
struct RunExtent {
    /// Keys with values of [`LARGE`].
    large_keys: u64,
    /// Keys with values of [`SMALL`].
    small_keys: u64,
    /// Number of commands of a round.
    commands: u64,
    rounds: usize,
}

// A medium of 512 MiB is sixteen times the largest cache of the test machines.
const QUICK: RunExtent = RunExtent { large_keys: 90_000, small_keys: 1_000_000, commands: 32_768, rounds: 9 };
const FULL: RunExtent =
    RunExtent { large_keys: 1_000_000, small_keys: 4_000_000, commands: 131_072, rounds: 15 };

fn run(context: &RunContext) -> Result<ExperimentFindings, LabError> {
    let extent = if context.is_quick() { QUICK } else { FULL };
    let _pin = CorePin::current_core();
    let mut findings = ExperimentFindings::default();
    large(context.seed(), &extent, &mut findings)?;
    small(context.seed(), &extent, &mut findings)?;
    Ok(findings)
}

/// The floor: copies the same bytes without a device.
struct CopyFloor {
    region: MappedRegion,
    buffers: Vec<u8>,
    random: fastrand::Rng,
    stride: usize,
    positions: usize,
    block_bytes: usize,
}

impl CopyFloor {
    fn new(bytes: usize, value_bytes: u32, seed: u64) -> Result<Self, LabError> {
        let mut region = MappedRegion::zeroed(bytes).map_err(|error| LabError::Start {
            program: "the floor".to_owned(),
            reason: error.to_string(),
        })?;
        // Pages that were never written all map to the one zero page, which is always in the cache.
        region.chunks_mut(64).zip(1_u64..).for_each(|(line, number)| {
            line[..8].copy_from_slice(&number.to_le_bytes());
        });
        let stride = record_bytes(value_bytes);
        Ok(Self {
            region,
            buffers: vec![1; DEPTH as usize * value_bytes.next_multiple_of(64) as usize],
            random: fastrand::Rng::with_seed(seed),
            stride,
            positions: bytes / stride,
            block_bytes: value_bytes as usize,
        })
    }

    fn round(&mut self, count: u64, work: RoundKind) {
        let buffer_stride = self.buffers.len() / DEPTH as usize;
        for (turn, _) in (0..DEPTH as usize).cycle().zip(0..count) {
            let offset = self.random.usize(..self.positions) * self.stride;
            let record = &mut self.region[offset..offset + self.block_bytes];
            let buffer = &mut self.buffers[turn * buffer_stride..][..self.block_bytes];
            black_box(match work {
                RoundKind::Get => copy_crc32c(buffer, record, 0),
                RoundKind::Put => copy_crc32c(record, buffer, 0),
            });
        }
    }
}

/// The result of one measured round: CPU nanoseconds for a command, and write amplification.
#[derive(Clone, Copy, Debug)]
struct DeviceSample {
    cpu_ns: f64,
    amplification: f64,
}

#[expect(clippy::cast_precision_loss, reason = "bytes of one run are far below 2^52")]
fn measured(subject: &mut MeasuredDevice, count: u64, work: RoundKind) -> Result<DeviceSample, LabError> {
    let before = subject.stats();
    let mut result = Ok(());
    let cpu_ns = cpu_ns_each(count, || result = subject.round(count, work));
    result?;
    let after = subject.stats();
    let programmed = (after.programmed_bytes - before.programmed_bytes) as f64;
    let client = (after.client_bytes - before.client_bytes) as f64;
    Ok(DeviceSample { cpu_ns, amplification: programmed / client })
}

fn floor_sample(floor: &RefCell<CopyFloor>, count: u64, work: RoundKind) -> DeviceSample {
    let mut floor = floor.borrow_mut();
    DeviceSample { cpu_ns: cpu_ns_each(count, || floor.round(count, work)), amplification: 1.0 }
}

fn large(seed: u64, extent: &RunExtent, findings: &mut ExperimentFindings) -> Result<(), LabError> {
    let mut subject = MeasuredDevice::filled(extent.large_keys, LARGE, seed)?;
    let floor = RefCell::new(CopyFloor::new(subject.media_bytes(), LARGE, seed)?);
    // The medium reaches steady state only after every block was collected once.
    subject.round(extent.large_keys * 3, RoundKind::Put)?;
    let stages =
        [RoundKind::Get, RoundKind::Put].map(|work| (work, subject.staged_round(extent.commands, work)));
    let subject = RefCell::new(subject);
    let count = extent.commands;
    let mut get = || {
        let subject = &mut subject.borrow_mut();
        subject.round(count / 8, RoundKind::Put)?;
        measured(subject, count, RoundKind::Get)
    };
    let mut put = || measured(&mut subject.borrow_mut(), count, RoundKind::Put);
    let mut get_floor = || Ok(floor_sample(&floor, count, RoundKind::Get));
    let mut put_floor = || Ok(floor_sample(&floor, count, RoundKind::Put));
    let mut contestants: [CompareCase<'_, DeviceSample, LabError>; 4] =
        [&mut get, &mut get_floor, &mut put, &mut put_floor];
    let samples = run_interleaved(extent.rounds, &mut contestants)?;
    let cpu = |index: usize| -> Vec<f64> { samples[index].iter().map(|sample| sample.cpu_ns).collect() };
    let amplification: Vec<f64> = samples[2].iter().map(|sample| sample.amplification).collect();
    let amplification_spread = SampleSpread::of(&amplification);
    let put_floor: Vec<f64> = cpu(3).iter().zip(&amplification).map(|(ns, times)| ns * times).collect();
    for (case, of, floor) in [("get.4k", cpu(0), cpu(1)), ("put.4k", cpu(2), put_floor.clone())] {
        findings.rows.push(
            ReportRow::new()
                .with("case", case)
                .with("cpu_ns", SampleSpread::of(&of))
                .with("floor_cpu_ns", SampleSpread::of(&floor))
                .with("ratio", SampleSpread::of_ratios(&of, &floor))
                .with("write_amplification", amplification_spread.filter(|_| case == "put.4k")),
        );
    }
    let mut names = ["get.4k", "put.4k"].into_iter();
    for (_, stages) in stages {
        findings.rows.push(stage_row(names.next().unwrap_or("4k"), stages?, count));
    }
    findings.claims.push(ratio_claim(
        "p1.device.get.4k",
        ClaimGoal::AtMost(1.15),
        (&cpu(0), &cpu(1)),
        "copy and CRC of a random record",
    ));
    let baseline = format!(
        "copy and CRC to a random place, {:.2} times a put",
        amplification_spread.map_or(f64::NAN, |spread| spread.median)
    );
    findings.claims.push(ratio_claim(
        "p1.device.put.4k",
        ClaimGoal::AtMost(1.8),
        (&cpu(2), &put_floor),
        &baseline,
    ));
    let floor = SubmitFloor::new(extent.large_keys, LARGE, seed);
    submit::compare("get.4k", &mut subject.borrow_mut(), floor, extent, findings)
}

fn small(seed: u64, extent: &RunExtent, findings: &mut ExperimentFindings) -> Result<(), LabError> {
    let mut subject = MeasuredDevice::filled(extent.small_keys, SMALL, seed)?;
    let floor = RefCell::new(CopyFloor::new(subject.media_bytes(), SMALL, seed)?);
    subject.round(extent.small_keys / 2, RoundKind::Put)?;
    let count = extent.commands * 4;
    let stages = subject.staged_round(count, RoundKind::Get)?;
    let subject = RefCell::new(subject);
    let mut get = || {
        let subject = &mut subject.borrow_mut();
        subject.round(count / 8, RoundKind::Put)?;
        measured(subject, count, RoundKind::Get)
    };
    let mut get_floor = || Ok(floor_sample(&floor, count, RoundKind::Get));
    let mut contestants: [CompareCase<'_, DeviceSample, LabError>; 2] = [&mut get, &mut get_floor];
    let samples = run_interleaved(extent.rounds, &mut contestants)?;
    let cpu = |index: usize| -> Vec<f64> { samples[index].iter().map(|sample| sample.cpu_ns).collect() };
    let (of, floor) = (cpu(0), cpu(1));
    let rates: Vec<f64> = of.iter().map(|ns| 1e9 / ns).collect();
    let rate = SampleSpread::of(&rates);
    findings.rows.push(
        ReportRow::new()
            .with("case", "get.100")
            .with("cpu_ns", SampleSpread::of(&of))
            .with("floor_cpu_ns", SampleSpread::of(&floor))
            .with("commands_per_s", rate),
    );
    findings.rows.push(stage_row("get.100", stages, count));
    let baseline = format!(
        "copy and CRC of a random record at {:.0} ns",
        SampleSpread::of(&floor).map_or(f64::NAN, |spread| spread.median)
    );
    findings.claims.push(LabClaim::found(
        "p1.device.get.100",
        ClaimGoal::AtLeast(1_000_000.0),
        (rate.map_or(f64::NAN, |spread| spread.median), "gets a second and core"),
        EvidenceLabel::Measured,
        baseline,
    ));
    let floor = SubmitFloor::new(extent.small_keys, SMALL, seed);
    submit::compare("get.100", &mut subject.borrow_mut(), floor, extent, findings)
}

#[expect(clippy::cast_precision_loss, reason = "52 bits of nanoseconds are 52 days")]
fn stage_row(case: &'static str, stages: StageTimes, count: u64) -> ReportRow {
    let each = |ns: u64| ns as f64 / count.max(1) as f64;
    ReportRow::new()
        .with("stages of", case)
        .with("client_submit_reap_ns", each(stages.client))
        .with("fetch_decode_submit_ns", each(stages.fetch))
        .with("device_poll_ns", each(stages.device))
        .with("completion_ns", each(stages.complete))
}

fn ratio_claim(name: &str, goal: ClaimGoal, (of, floor): (&[f64], &[f64]), floor_name: &str) -> LabClaim {
    let value = SampleSpread::of_ratios(of, floor).map_or(f64::NAN, |spread| spread.median);
    let floor_ns = SampleSpread::of(floor).map_or(f64::NAN, |spread| spread.median);
    LabClaim::found(
        name,
        goal,
        (value, "ratio of CPU a command"),
        EvidenceLabel::Measured,
        format!("{floor_name}, {floor_ns:.0} ns"),
    )
}
