//! The experiments that reproduce every figure that the project states.
//!
//! Input: the name of an experiment and its options.
//! Output: one [`ExperimentOutcome`]: the machine, the measured rows, and the claims that they support or refute.
//! Invariant: a claim that could not be measured has no value, does not hold and states why; no figure is taken from
//! another run.
//!
//! # Limits
//! It asserts nothing: no test depends on a figure. It does not depend on the daemon: an experiment that needs a node
//! starts the program at [`RunOptions::binary`].
//!
//! # Adding an experiment
//! One file in `experiments/` with a `pub(crate) const EXPERIMENT: LabExperiment`, one line in `experiments.rs`.
#![forbid(unsafe_code)]

pub mod claim;
pub mod experiment;
pub mod figures;
pub mod machine;
pub mod measure;
pub mod plots;
pub mod report;
pub mod run_comparison;

mod attached_client;
mod canned_server;
mod cpu_account;
mod driver;
mod experiments;
mod flash_zones;
mod payload_floor;
mod redis_peer;
mod resp_load;
mod server;
mod server_comparison;
mod server_sample;
mod store_client;

pub use claim::{ClaimGoal, EvidenceLabel, LabClaim};
pub use experiment::{ExperimentFindings, LabError, LabExperiment, RunContext, RunOptions};
pub use figures::{FiguresError, render_figures};
pub use machine::MachineInfo;
pub use plots::{PlotFile, render_plots};
pub use report::{ReportRow, RowCell, render_list, render_table};
pub use run_comparison::{
    ClaimAgreement, ComparedClaim, ComparedRun, ComparisonError, RunComparison, compare_runs,
    render_comparison,
};

use headwater_host::clock::UnixMillis;
use serde::Serialize;

/// The result of one run of an experiment.
#[derive(Clone, Debug, Serialize)]
pub struct ExperimentOutcome {
    /// Name of the experiment.
    pub experiment: &'static str,
    /// The command that runs it again.
    pub command: String,
    /// The day of the run, UTC: `2026-11-22`.
    pub date: String,
    /// True if it was a short run.
    pub quick: bool,
    /// The machine on which it ran.
    pub machine: MachineInfo,
    /// The measured rows.
    pub rows: Vec<ReportRow>,
    /// The claims, evaluated on these measurements.
    pub claims: Vec<LabClaim>,
}

/// Returns every experiment, in the order of the list.
#[must_use]
pub fn list() -> &'static [LabExperiment] {
    experiments::TABLE
}

/// Runs one experiment.
///
/// # Errors
/// [`LabError::Unknown`] for a name that is not in [`list`]; the other variants if the scratch folder or the
/// measurement fails. A missing peer is not an error: the claims that need it have no value.
pub fn run(name: &str, options: RunOptions) -> Result<ExperimentOutcome, LabError> {
    let experiment = list()
        .iter()
        .find(|experiment| experiment.name == name)
        .ok_or_else(|| LabError::Unknown { name: name.to_owned() })?;
    let quick = options.quick;
    let context = RunContext::open(options)?;
    let date = date_of(context.clock().wall());
    let machine = MachineInfo::read(context.scratch());
    let findings = (experiment.run)(&context)?;
    Ok(ExperimentOutcome {
        experiment: experiment.name,
        command: format!("headwater lab run {name}{}", if quick { " --quick" } else { "" }),
        date,
        quick,
        machine,
        rows: findings.rows,
        claims: findings.claims,
    })
}

/// Returns the day of a wall time, UTC, in the proleptic Gregorian calendar.
fn date_of(wall: UnixMillis) -> String {
    const MILLIS_PER_DAY: u64 = 86_400_000;
    const DAYS_PER_ERA: u64 = 146_097;
    // Days since 1 March of year 0: a leap day is then the last day of its year.
    let days = wall.0 / MILLIS_PER_DAY + 719_468;
    let (era, day) = (days / DAYS_PER_ERA, days % DAYS_PER_ERA);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let day = |days: u64| date_of(UnixMillis(days * 86_400_000 + 86_399_999));
        assert_eq!(day(0), "1970-01-01");
        assert_eq!(day(11_016), "2000-02-29");
        assert_eq!(day(11_017), "2000-03-01");
        assert_eq!(day(20_454), "2026-01-01");
        assert_eq!(day(47_540), "2100-02-28");
        assert_eq!(day(47_541), "2100-03-01");
    }
}
