//! The model of data movement by CPU and DMA, and the mover's policy on it.
//!
//! Input: published figures of DSA and AMD PTDMA, and machines drawn from seeds. Output: the errors of the model's constants,
//! the distance of the policy's plans from the best split, the ladder of rules as a table with bars, and the claims
//! `p9.model.*`; and, measured, the CPU of a decision. The floor of a plan is the best split that an exhaustive search finds.
//! Invariant: no DMA engine ran. Every time but that of a decision is virtual, and labelled `MODEL`.

use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, LabExperiment, RunContext};
use crate::measure::{SampleSpread, cpu_ns_each};
use crate::report::ReportRow;
use headwater_dma::mover::policy::{
    CacheWrites, ChannelLoad, ChannelTraits, MovePolicy, OperationSet, PolicyConfig, WorkShape,
};
use headwater_sim::move_model::ladder::{LadderOutcome, LadderRung, ladder_machines, run_rung};
use headwater_sim::move_model::policy_run::{
    CHANGED_JOBS, NEAR_SHARE, OSCILLATING_RETURNS, PolicyRunReport, PolicyRunSummary, SIZES, WATCHED_JOBS,
    run_policy,
};
use headwater_sim::move_model::published::{
    AMD_MIGRATION_TABLE, BATCH_ERROR, DSA_BATCH_TABLE, DSA_SINGLE_TABLE, HELD_OUT_ERROR, SINGLE_ERROR,
    amd_channels_us, amd_cpu_us, dsa_batch_us, dsa_single_us, held_out_error, largest_error,
};
use std::hint::black_box;

/// The experiment's entry in the table.
pub(crate) const EXPERIMENT: LabExperiment = LabExperiment {
    name: "move-model",
    summary: "model of copies by CPU and DMA: published figures, the mover's policy against the best split, the ladder",
    baseline: "published tables; exhaustive search for the best split; Fastmove's split by bandwidth ratio",
    claims: &["p9.model.*", "p9.policy.decide"],
    run,
};

const SEEDS: u64 = 1_000;
const QUICK_SEEDS: u64 = 100;
/// The longest folio that one PTDMA channel moves slower than the CPU.
const LOSES_UP_TO: f64 = 262_144.0;
const LADDER_JOBS: usize = 40_000;
const BAR_CELLS: f64 = 40.0;

fn run(context: &RunContext) -> Result<ExperimentFindings, LabError> {
    let mut findings = ExperimentFindings::default();
    published(&mut findings);
    policy(context, &mut findings);
    ladder(context.seed(), &mut findings);
    decision(&mut findings);
    Ok(findings)
}

fn model_claim(name: &str, goal: ClaimGoal, value: (f64, &'static str), baseline: String) -> LabClaim {
    LabClaim::found(format!("p9.model.{name}"), goal, value, EvidenceLabel::Model, baseline)
}

/// Compares the constants with the published figures.
fn published(findings: &mut ExperimentFindings) {
    const UNIT: &str = "largest relative error";
    let single = largest_error(&DSA_SINGLE_TABLE, dsa_single_us);
    let batch = largest_error(&DSA_BATCH_TABLE, dsa_batch_us);
    let fitted = "LightDSA, the points that the constants were fitted to".to_owned();
    findings.claims.push(model_claim(
        "single",
        ClaimGoal::AtMost(SINGLE_ERROR),
        (single, UNIT),
        fitted.clone(),
    ));
    findings.claims.push(model_claim("batch", ClaimGoal::AtMost(BATCH_ERROR), (batch, UNIT), fitted));
    // The stated error is a whole number of percent.
    let held_out = (held_out_error() * 100.0).round() / 100.0;
    let log = "log of DTO on another host, held out; rounded to a percent".to_owned();
    findings.claims.push(model_claim("held_out", ClaimGoal::AtMost(HELD_OUT_ERROR), (held_out, UNIT), log));
    let mut wins = 0.0;
    for (bytes, rates) in AMD_MIGRATION_TABLE {
        let cpu = amd_cpu_us(bytes).unwrap_or(f64::NAN);
        let one = amd_channels_us(bytes, 1.0);
        wins += if bytes <= LOSES_UP_TO && one <= cpu { 1.0 } else { 0.0 };
        findings.rows.push(
            ReportRow::new()
                .with("label", "MODEL")
                .with("folio_kib", bytes / 1_024.0)
                .with("cpu_us", cpu)
                .with("one_ptdma_us", one)
                .with("one_published_us", bytes / rates[1] / 1_000.0)
                .with("four_ptdma_us", amd_channels_us(bytes, 4.0))
                .with("four_published_us", bytes / rates[3] / 1_000.0)
                .with("sixteen_ptdma_us", amd_channels_us(bytes, 16.0)),
        );
    }
    let zen = "page migration on Zen 3, published; constants fitted by hand to its rows".to_owned();
    let lengths = (wins, "lengths to 256 KiB at which one channel wins");
    findings.claims.push(model_claim("amd.one", ClaimGoal::AtMost(0.0), lengths, zen));
    let longest = AMD_MIGRATION_TABLE[AMD_MIGRATION_TABLE.len() - 1].0;
    let gain = amd_cpu_us(longest).unwrap_or(f64::NAN) / amd_channels_us(longest, 16.0);
    let about = "published: about 6 times at 2 MiB; no row of the table has sixteen channels".to_owned();
    findings.claims.push(model_claim("amd.sixteen", ClaimGoal::AtLeast(5.4), (gain, "times the CPU"), about));
}

/// Runs the policy on machines that it is not told.
fn policy(context: &RunContext, findings: &mut ExperimentFindings) {
    let seeds = if context.is_quick() { QUICK_SEEDS } else { SEEDS };
    let first = context.seed().wrapping_mul(SEEDS);
    let reports: Vec<PolicyRunReport> =
        (0..seeds).map(|seed| run_policy(first.wrapping_add(seed), PolicyConfig::default())).collect();
    let compared = [
        ("split", "learned, idle", reports.iter().map(|report| &report.learned).collect::<Vec<_>>()),
        ("loaded", "learned, jobs of other callers", reports.iter().map(|report| &report.loaded).collect()),
        ("converged", "200 jobs after a change", reports.iter().map(|report| &report.changed).collect()),
    ];
    for (name, when, comparisons) in compared {
        for (size, bytes) in SIZES.into_iter().enumerate() {
            findings.rows.push(size_row(when, bytes, &comparisons, size));
        }
        let summary = PolicyRunSummary::of(comparisons);
        let baseline = format!(
            "best split by exhaustive search; {seeds} seeds; mean {:.1} %, p99 {:.0} %, worst {:.0} % slower; \
             all lengths near in {} seeds; {CHANGED_JOBS} jobs after a change",
            summary.mean * 100.0,
            summary.percentile_99 * 100.0,
            summary.worst * 100.0,
            summary.near_seeds
        );
        let value = (summary.near_share(), "of lengths and seeds within 5 %");
        findings.claims.push(model_claim(name, ClaimGoal::AtLeast(1.0), value, baseline));
    }
    let most = reports.iter().map(|report| report.returns).max().unwrap_or(0);
    let oscillating = reports.iter().filter(|report| report.returns >= OSCILLATING_RETURNS).count();
    let watched = format!(
        "{OSCILLATING_RETURNS} returns to an earlier way in {WATCHED_JOBS} jobs of a length; most {most}; {seeds} seeds"
    );
    let value = (as_float(oscillating), "seeds with a length that oscillates");
    findings.claims.push(model_claim("oscillation", ClaimGoal::AtMost(0.0), value, watched));
    let cost = reports.iter().map(|report| report.with_exploration).sum::<f64>() / as_float(reports.len());
    let all = "best split; mean of all jobs of the watch, exploration included".to_owned();
    findings.claims.push(model_claim("explored", ClaimGoal::AtMost(NEAR_SHARE), (cost, "slower"), all));
}

fn size_row(when: &str, bytes: u64, comparisons: &[&[f64; SIZES.len()]], size: usize) -> ReportRow {
    let mut shares: Vec<f64> = comparisons.iter().map(|comparison| comparison[size]).collect();
    shares.sort_by(f64::total_cmp);
    let near = shares.iter().filter(|share| **share <= NEAR_SHARE).count();
    ReportRow::new()
        .with("label", "MODEL")
        .with("when", when)
        .with("kib", bytes >> 10)
        .with("near_share", as_float(near) / as_float(shares.len().max(1)))
        .with("mean_slower", shares.iter().sum::<f64>() / as_float(shares.len().max(1)))
        .with("p99_slower", shares.get(shares.len() * 99 / 100).copied())
}

/// Adds one rule after another.
fn ladder(seed: u64, findings: &mut ExperimentFindings) {
    for (index, (name, machine, cores)) in ladder_machines().into_iter().enumerate() {
        let outcomes = LadderRung::ALL.map(|rung| run_rung(&machine, cores, rung, LADDER_JOBS, seed));
        let most = outcomes.iter().fold(0.0, |most: f64, outcome| most.max(outcome.gigabytes_per_second));
        for (rung, outcome) in LadderRung::ALL.into_iter().zip(&outcomes) {
            findings.rows.push(
                ReportRow::new()
                    .with("label", "MODEL")
                    .with("machine", name)
                    .with("rung", rung.name())
                    .with("gb_per_s", outcome.gigabytes_per_second)
                    .with("mean_us", outcome.mean_micros)
                    .with("cpu_us_per_mib", outcome.cpu_micros_per_mib)
                    .with("plot_of_gb_per_s", bar(outcome.gigabytes_per_second / most)),
            );
        }
        let of = |rung: LadderRung| outcomes[rung as usize];
        let suffix = if index == 0 { "dsa" } else { "slow" };
        findings.claims.extend(ladder_claims(suffix, name, cores, of));
    }
}

fn ladder_claims(
    suffix: &str,
    name: &str,
    cores: usize,
    of: impl Fn(LadderRung) -> LadderOutcome,
) -> [LabClaim; 2] {
    let (affine, ratio, cpu) =
        (of(LadderRung::AffineSplit), of(LadderRung::RatioSplit), of(LadderRung::CpuOnly));
    let against =
        format!("{name}, {cores} cores; split by bandwidth ratio {:.1} GB/s", ratio.gigabytes_per_second);
    let gain = affine.gigabytes_per_second / ratio.gigabytes_per_second;
    let saved = 1.0 - affine.cpu_micros_per_mib / cpu.cpu_micros_per_mib;
    let used =
        format!("{name}; the CPU alone {:.0} us a MiB; a waiter leaves its core", cpu.cpu_micros_per_mib);
    [
        model_claim(
            &format!("ladder.{suffix}"),
            ClaimGoal::AtLeast(1.0),
            (gain, "times Fastmove's split"),
            against,
        ),
        model_claim(
            &format!("cpu_saved.{suffix}"),
            ClaimGoal::AtLeast(0.0),
            (saved, "of the CPU time"),
            used,
        ),
    ]
}

/// Draws a share of one as a bar.
fn bar(share: f64) -> String {
    std::iter::repeat_n('#', (1..=40).filter(|cell| f64::from(*cell) <= share * BAR_CELLS + 0.5).count())
        .collect()
}

/// Measures the CPU of a decision.
fn decision(findings: &mut ExperimentFindings) {
    const DECISIONS: u64 = 100_000;
    const ROUNDS: usize = 11;
    let channel = ChannelTraits {
        node: None,
        depth: 32,
        cache_writes: CacheWrites::Unknown,
        operations: OperationSet::ALL,
    };
    for channels in [1, 4, 16] {
        let mut policy = MovePolicy::new(&vec![channel; channels], PolicyConfig::default());
        let loads = vec![ChannelLoad::default(); channels];
        let mut samples = Vec::new();
        for _ in 0..ROUNDS {
            samples.push(cpu_ns_each(DECISIONS, || {
                for decision in 0..DECISIONS {
                    let shape = WorkShape::copy(65_536 << (decision % 4));
                    black_box(policy.decide(black_box(&shape), black_box(&loads)));
                }
            }));
        }
        let spread = SampleSpread::of(&samples);
        let row = ReportRow::new().with("label", "MEASURED").with("channels", channels as u64);
        findings.rows.push(row.with("ns_per_decision", spread));
        if channels == 1 {
            let median = spread.map_or(f64::NAN, |spread| spread.median);
            findings.claims.push(LabClaim::found(
                "p9.policy.decide",
                ClaimGoal::AtMost(100.0),
                (median, "ns of CPU a decision, one channel"),
                EvidenceLabel::Measured,
                "none: a job below its threshold takes no decision",
            ));
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a count is far below 2^52")]
fn as_float(count: usize) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bar_is_as_long_as_its_share() {
        assert_eq!(bar(1.0).len(), 40);
        assert_eq!(bar(0.5).len(), 20);
        assert_eq!(bar(0.0).len(), 0);
    }

    #[test]
    fn constants_meet_their_claims_and_every_claim_of_them_is_a_model() {
        let mut findings = ExperimentFindings::default();
        published(&mut findings);
        assert_eq!(findings.claims.len(), 5);
        for claim in &findings.claims {
            assert!(claim.holds, "{claim:?}");
            assert_eq!(claim.label, EvidenceLabel::Model);
        }
    }
}
