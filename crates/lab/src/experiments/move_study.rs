//! The study of offload by DMA, as Fastmove's: size, channels, depth, direction, DDIO and node, over the mover itself.
//!
//! Input: published constants of DSA and AMD PTDMA; where a dimension has none, a stated range of its parameter. Output: the
//! rate of copies by length and way, the break-even length before and after each optimisation, its range for what is not
//! published, and the claims `p9.study.*`. The baseline is the CPU of the same host with the same jobs. Invariant: no DMA
//! engine ran and nothing was measured: every time is virtual, and labelled `MODEL`; each byte that a mover moved was compared
//! with its source.
//!
//! # What this does not do
//! It does not time the mover's own instructions, the software channel or the kernels of the CPU: `mover` and `copy` measure
//! those. It varies one dimension after another: `move-cross` has every combination of them.

pub(super) mod cross;
mod ranges;
mod steps;

use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, LabExperiment, RunContext};
use crate::report::ReportRow;
use headwater_sim::move_model::published::{
    AMD_MIGRATION_TABLE, BATCH_ERROR, DSA_BATCH_RATES, DSA_IN_FLIGHT_TABLE, DTO_LOG, HELD_OUT_ERROR,
    largest_error,
};
use headwater_sim::move_model::study::{
    StudyPoint, StudyRun, StudySetup, StudyTime, StudyWay, break_even, compare,
};
use headwater_sim::move_model::study_machines::{NO_CEILING, amd_setup, dsa_setup};
use std::cell::Cell;
use steps::StepOutcome;

/// The experiment's entry in the table.
pub(crate) const EXPERIMENT: LabExperiment = LabExperiment {
    name: "move-study",
    summary: "study of offload: movers over modelled channels by size, channels, depth, direction, DDIO and node",
    baseline: "the CPU of the same host with the same jobs; published rates that were held out",
    claims: &["p9.study.*"],
    run,
};

/// Jobs from which a policy learns.
const LEARNED_JOBS: usize = 2_000;
/// The longest length of comparisons: of one job after another, and of jobs in flight or lists.
const LONGEST: usize = 1 << 20;
const LONGEST_IN_FLIGHT: usize = 64 << 10;
/// The break-even of the guidelines for DSA (ASPLOS'24, as recalled, not read again): waited for, and in flight. A factor of
/// two on each counts as reproduced.
const GUIDELINE_WAITED: f64 = 2.0 * 4_096.0;
const GUIDELINE_IN_FLIGHT: f64 = 2.0 * 256.0;
/// The lengths of the published negative result.
const AMD_LOSES_UP_TO: f64 = 262_144.0;
/// The CPU's part of the copies of DTO's log: the rate that a split by ratio takes for it, beside 29.9 of the channel.
const DTO_CPU_RATE: f64 = 29.9 * 0.33 / 0.67;

/// The findings of a study, and the bytes that were wrong.
#[derive(Debug, Default)]
struct StudyFindings {
    found: ExperimentFindings,
    wrong_bytes: u64,
}

impl StudyFindings {
    fn claim(&mut self, name: &str, goal: ClaimGoal, value: (f64, &'static str), baseline: &str) {
        self.claim_named(format!("p9.study.{name}"), goal, value, baseline);
    }

    /// Adds a claim with its whole name.
    fn claim_named(&mut self, name: String, goal: ClaimGoal, value: (f64, &'static str), baseline: &str) {
        self.found.claims.push(LabClaim::found(name, goal, value, EvidenceLabel::Model, baseline));
    }

    /// Returns the times of points on one mover of a setup.
    fn times(&mut self, setup: &StudySetup, points: &[StudyPoint]) -> Vec<StudyTime> {
        let mut run = StudyRun::new(setup, 1);
        let times = points.iter().map(|point| run.time(point)).collect();
        self.wrong_bytes += run.wrong_bytes();
        times
    }
}

fn run(_context: &RunContext) -> Result<ExperimentFindings, LabError> {
    let mut findings = StudyFindings::default();
    held_out(&mut findings);
    curves(&mut findings);
    let outcomes = steps::steps(&mut findings);
    step_claims(&outcomes, &mut findings);
    amd(&mut findings);
    learned(&mut findings);
    steps::by_depth(&mut findings);
    ranges::ranges(&mut findings);
    let wrong = float(findings.wrong_bytes);
    findings.claim(
        "bytes",
        ClaimGoal::AtMost(0.0),
        (wrong, "bytes that differ from their source"),
        "a comparison of every byte of every job of this run",
    );
    Ok(findings.found)
}

/// Compares times of the mover over the modelled device with published ones to which no constant was fitted.
fn held_out(findings: &mut StudyFindings) {
    const UNIT: &str = "largest relative error";
    let dsa = dsa_setup(1, NO_CEILING);
    let wrong_bytes = Cell::new(0);
    let us = |setup: &StudySetup, point: StudyPoint| {
        let mut run = StudyRun::new(setup, 1);
        let nanos = run.time(&point).ns_per_copy * float(point.copies as u64);
        wrong_bytes.set(wrong_bytes.get() + run.wrong_bytes());
        nanos / 1_000.0
    };
    let copies = 32;
    let list = largest_error(&DSA_BATCH_RATES[..6], |bytes| {
        let point = StudyPoint { copies, depth: 8, ..StudyPoint::synchronous(whole(bytes)) };
        us(&dsa, point) / float(copies as u64)
    });
    let in_flight = largest_error(&DSA_IN_FLIGHT_TABLE, |bytes| {
        us(&dsa, StudyPoint { depth: 32, ..StudyPoint::synchronous(whole(bytes)) })
    });
    let split =
        StudySetup { known_cpu_rate: DTO_CPU_RATE, ratio_part_min: 64, ..dsa.by(StudyWay::RatioSplit) };
    let log = DTO_LOG.map(|(first, last, published)| ((first + last) / 2.0 * 1_024.0, published));
    // Three pieces, of which the channel moves two.
    let dto = largest_error(&log, |bytes| {
        us(&split, StudyPoint { copies: 3, ..StudyPoint::synchronous(whole(bytes / 3.0)) })
    });
    findings.wrong_bytes += wrong_bytes.get();
    findings.claim(
        "held_out.list",
        ClaimGoal::AtMost(BATCH_ERROR),
        (list, UNIT),
        "LightDSA's rates of lists of 32 on four engines, 64 B to 16 KiB; another table of the same host",
    );
    findings.claim(
        "held_out.in_flight",
        ClaimGoal::AtMost(BATCH_ERROR),
        (in_flight, UNIT),
        "LightDSA's single jobs in flight, 4 and 8 KiB; the floor of shorter ones is the time to submit",
    );
    findings.claim(
        "held_out.dto",
        ClaimGoal::AtMost(HELD_OUT_ERROR),
        ((dto * 100.0).round() / 100.0, UNIT),
        "log of DTO on another host; the mover splits a third to the CPU; rounded to a percent",
    );
}

/// Adds the rate of copies by length, for each way.
fn curves(findings: &mut StudyFindings) {
    let (one, four) = (dsa_setup(1, NO_CEILING), dsa_setup(4, NO_CEILING));
    let single = |depth, copies| move |bytes| StudyPoint { depth, copies, ..StudyPoint::synchronous(bytes) };
    type Point<'a> = &'a dyn Fn(usize) -> StudyPoint;
    let (waited, in_flight, lists) = (single(1, 1), single(32, 1), single(4, 32));
    let series: [(&str, StudySetup, Point<'_>); 6] = [
        ("CPU", one.by(StudyWay::Cpu), &waited),
        ("DSA, waited for", one.clone(), &waited),
        ("DSA, 32 in flight", one.clone(), &in_flight),
        ("DSA, lists of 32", one.clone(), &lists),
        ("CPU and DSA, affine split of pages", one.by(StudyWay::AffineSplit), &StudyPoint::in_pieces),
        ("four DSA, pages scattered", four, &StudyPoint::in_pieces),
    ];
    for (name, setup, point) in series {
        let lengths = (6..=20).map(|doubling| 1_usize << doubling);
        let points: Vec<StudyPoint> = lengths.map(point).filter(fits).collect();
        for (point, time) in points.iter().zip(findings.times(&setup, &points)) {
            // A job in pieces counts as one copy.
            let bytes = if point.depth == 1 { point.bytes * point.copies } else { point.bytes };
            findings.found.rows.push(
                ReportRow::new()
                    .with("label", "MODEL")
                    .with("part", "curve")
                    .with("series", name)
                    .with("bytes", bytes as u64)
                    .with("gb_per_s", float(point.bytes as u64) / time.ns_per_copy)
                    .with("cpu_share", time.busy_ns_per_copy / time.ns_per_copy),
            );
        }
    }
}

/// Returns true if the jobs of a point in flight are not too large to be worth their real copies.
fn fits(point: &StudyPoint) -> bool {
    point.depth == 1 || point.bytes * point.copies * point.depth <= 16 << 20
}

fn step_claims(outcomes: &[StepOutcome], findings: &mut StudyFindings) {
    let of = |step: &str| outcomes.iter().find(|outcome| outcome.step == step);
    let bytes = |step: &str| {
        of(step).and_then(|outcome| outcome.found.bytes).map_or(f64::INFINITY, |bytes| float(bytes as u64))
    };
    let (waited, in_flight, list) = (bytes(steps::WAITED), bytes(steps::IN_FLIGHT), bytes(steps::LIST));
    let recalled = "about 4 KiB of the guidelines for DSA (ASPLOS'24, recalled), twice; LightDSA's host and its CPU's \
                    rates in a cold set";
    findings.claim("waited", ClaimGoal::AtMost(GUIDELINE_WAITED), (waited, "bytes to break even"), recalled);
    let recalled = "about 256 B of the same guidelines, twice; 32 single copies in flight";
    findings.claim(
        "in_flight",
        ClaimGoal::AtMost(GUIDELINE_IN_FLIGHT),
        (in_flight, "bytes to break even"),
        recalled,
    );
    let recalled = "about 256 B of the same guidelines, twice; lists of 32, four in flight";
    findings.claim("list", ClaimGoal::AtMost(GUIDELINE_IN_FLIGHT), (list, "bytes to break even"), recalled);
    let (ratio, affine) = (bytes(steps::RATIO), bytes(steps::AFFINE));
    let against = format!("split by bandwidth ratio {ratio:.0} bytes; jobs of 4 KiB pages, one channel");
    findings.claim("split", ClaimGoal::AtMost(1.0), (affine / ratio, "of Fastmove's break-even"), &against);
    let loss = |step: &str| of(step).map_or(f64::NAN, |outcome| outcome.found.loss);
    let against =
        format!("the CPU alone; the split by bandwidth ratio loses {:.1} %", 100.0 * loss(steps::RATIO));
    findings.claim(
        "split.loss",
        ClaimGoal::AtMost(0.02),
        (loss(steps::AFFINE), "slower at the worst length"),
        &against,
    );
}

/// Compares one PTDMA channel with the CPU: the published negative result.
fn amd(findings: &mut StudyFindings) {
    let amd = amd_setup();
    let mut wins = 0.0;
    for (bytes, _) in AMD_MIGRATION_TABLE {
        let point = [StudyPoint::synchronous(whole(bytes))];
        let [one, cpu] =
            [&amd, &amd.by(StudyWay::Cpu)].map(|setup| findings.times(setup, &point)[0].ns_per_copy);
        wins += if bytes <= AMD_LOSES_UP_TO && one <= cpu { 1.0 } else { 0.0 };
    }
    findings.claim(
        "amd.one",
        ClaimGoal::AtMost(0.0),
        (wins, "lengths to 256 KiB at which one channel wins"),
        "page migration on Zen 3, published; the mover gives each folio to one channel",
    );
    let (mut learned, mut cpu) =
        (StudyRun::new(&amd.by(StudyWay::Learned), 1), StudyRun::new(&amd.by(StudyWay::Cpu), 2));
    learned.learn(LEARNED_JOBS, 1, StudyPoint::synchronous);
    learned.freeze();
    let found = compare((&mut learned, &mut cpu), 2 << 20, StudyPoint::synchronous);
    findings.wrong_bytes += found.wrong_bytes;
    findings.claim(
        "amd.learned",
        ClaimGoal::AtMost(0.05),
        (found.loss, "slower than the CPU at the worst length"),
        "the CPU alone, 64 B to 2 MiB; the policy was not told the machine, and is frozen",
    );
}

/// Lets the policy learn the modelled DSA device, and compares it with the CPU alone.
fn learned(findings: &mut StudyFindings) {
    let dsa = dsa_setup(1, NO_CEILING);
    let (mut learned, mut cpu) =
        (StudyRun::new(&dsa.by(StudyWay::Learned), 1), StudyRun::new(&dsa.by(StudyWay::Cpu), 2));
    learned.learn(LEARNED_JOBS, 1, StudyPoint::in_pieces);
    learned.freeze();
    let found = compare((&mut learned, &mut cpu), LONGEST, StudyPoint::in_pieces);
    let told =
        break_even((&dsa.by(StudyWay::AffineSplit), &dsa.by(StudyWay::Cpu)), LONGEST, StudyPoint::in_pieces);
    findings.wrong_bytes += found.wrong_bytes + told.wrong_bytes;
    let against = format!(
        "the CPU alone; breaks even at {} bytes, told the machine at {}",
        found.bytes.unwrap_or(0),
        told.bytes.unwrap_or(0)
    );
    let loss = (found.loss, "slower than the CPU at the worst length");
    findings.claim("learned.loss", ClaimGoal::AtMost(0.05), loss, &against);
    for bytes in [16 << 10, 64 << 10, 256 << 10, 1 << 20] {
        let point = StudyPoint::in_pieces(bytes);
        let (with, without) = (learned.time(&point), cpu.time(&point));
        let saved = 1.0 - with.busy_ns_per_copy / without.busy_ns_per_copy;
        findings.found.rows.push(
            ReportRow::new()
                .with("label", "MODEL")
                .with("part", "learned")
                .with("bytes", bytes as u64)
                .with("times_the_cpu", without.ns_per_copy / with.ns_per_copy)
                .with("cpu_time_saved", saved),
        );
        if bytes == 64 << 10 {
            findings.claim(
                "cpu_saved",
                ClaimGoal::AtLeast(0.371),
                (saved, "of the CPU time of 64 KiB"),
                "Fastmove's users: 37.1 to 68.9 %; a waiter leaves its core",
            );
        }
    }
    // `compare` has counted those before.
    findings.wrong_bytes += learned.wrong_bytes() + cpu.wrong_bytes() - found.wrong_bytes;
}

#[expect(clippy::cast_precision_loss, reason = "a count or a length is far below 2^52")]
fn float(count: u64) -> f64 {
    count as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a length of a published table, positive and far below 2^53"
)]
fn whole(bytes: f64) -> usize {
    bytes as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn study_of_equal_runs_is_equal_and_every_claim_is_a_model() {
        let study = || {
            let mut findings = StudyFindings::default();
            held_out(&mut findings);
            amd(&mut findings);
            assert_eq!(findings.wrong_bytes, 0);
            findings.found
        };
        let (one, other) = (study(), study());
        assert_eq!(one.claims, other.claims);
        assert_eq!(one.rows, other.rows);
        assert!(one.claims.iter().all(|claim| claim.label == EvidenceLabel::Model));
        let negative = one.claims.iter().find(|claim| claim.name == "p9.study.amd.one");
        assert_eq!(negative.and_then(|claim| claim.value), Some(0.0));
    }
}
