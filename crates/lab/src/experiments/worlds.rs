//! The rate of the simulator: fresh worlds a second of CPU, and the worlds that broke a promise.
//!
//! Input: seeds that no run had before. Output: worlds a second of one core, and the seeds of those that failed. `headwater
//! sim replay --seed N` runs one of them again.

use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, LabExperiment, RunContext};
use crate::report::ReportRow;
use headwater_host::clock::Nanos;
use headwater_sim::replay::replay;
use headwater_sim::swarm::{SwarmPlan, run_swarm};

/// The experiment's entry in the table.
pub(crate) const EXPERIMENT: LabExperiment = LabExperiment {
    name: "worlds",
    summary: "worlds of the simulator a second of CPU, and the worlds that broke a promise",
    baseline: "108 a second before part 6, one process a seed",
    claims: &["p6.sim.worlds", "p6.sim.failed"],
    run,
};

const FULL: Nanos = Nanos::from_millis(60_000);
const QUICK: Nanos = Nanos::from_millis(15_000);

#[expect(clippy::cast_precision_loss, reason = "a run has fewer than 2^52 worlds")]
fn run(context: &RunContext) -> Result<ExperimentFindings, LabError> {
    let time = if context.is_quick() { QUICK } else { FULL };
    // Worlds of the one kind that the baseline was measured with.
    let fresh = SwarmPlan::fresh();
    let report = run_swarm(&SwarmPlan { time, ..fresh.from(fresh.first) }, replay);
    let rate = report.worlds as f64 / (report.cpu.0 as f64 / 1e9);
    let mut rows = vec![
        ReportRow::new()
            .with("first seed", report.first)
            .with("worlds", report.worlds)
            .with("a second of CPU", rate)
            .with("commands", report.commands)
            .with("power cuts", report.cuts)
            .with("failed", report.failures.len() as u64),
    ];
    rows.extend(
        report.failures.iter().map(|failed| ReportRow::new().with("first seed", failed.cause.as_str())),
    );
    let claims = vec![
        LabClaim::found(
            "p6.sim.worlds",
            ClaimGoal::AtLeast(1_000.0),
            (rate, "worlds a second of CPU"),
            EvidenceLabel::Measured,
            "108 before part 6".to_owned(),
        ),
        LabClaim::found(
            "p6.sim.failed",
            ClaimGoal::AtMost(0.0),
            (report.failures.len() as f64, "worlds that broke a promise"),
            EvidenceLabel::Measured,
            format!("{} fresh worlds", report.worlds),
        ),
    ];
    Ok(ExperimentFindings { rows, claims })
}
