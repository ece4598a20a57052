//! The experiments that reproduce every figure that the project states.
//!
//! Input: the name of an experiment and its options.
//! Output: one [`Outcome`]: the machine, the measured rows, and the claims that they support or refute.
//! Invariant: a claim that could not be measured has no value, does not hold and states why; no figure is taken from
//! another run.
//!
//! # Limits
//! It asserts nothing: no test depends on a figure. It does not depend on the daemon: an experiment that needs a node
//! starts the program at [`Options::binary`].
//!
//! # Adding an experiment
//! One file in `experiments/` with a `pub(crate) const EXPERIMENT: Experiment`, one line in `experiments.rs`.
#![forbid(unsafe_code)]

pub mod claim;
pub mod experiment;
pub mod machine;
pub mod measure;
pub mod report;

mod canned;
mod cpu_account;
mod driver;
mod experiments;
mod load;
mod server;
mod stores;

pub use claim::{Claim, Goal, Label};
pub use experiment::{Context, Experiment, Findings, LabError, Options};
pub use machine::Machine;
pub use report::{Cell, Row, render_list, render_table};

use serde::Serialize;

/// The result of one run of an experiment.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Name of the experiment.
    pub experiment: &'static str,
    /// The machine on which it ran.
    pub machine: Machine,
    /// The measured rows.
    pub rows: Vec<Row>,
    /// The claims, evaluated on these measurements.
    pub claims: Vec<Claim>,
}

/// Returns every experiment, in the order of the list.
#[must_use]
pub fn list() -> &'static [Experiment] {
    experiments::TABLE
}

/// Runs one experiment.
///
/// # Errors
/// [`LabError::Unknown`] for a name that is not in [`list`]; the other variants if the scratch folder or the
/// measurement fails. A missing peer is not an error: the claims that need it have no value.
pub fn run(name: &str, options: Options) -> Result<Outcome, LabError> {
    let experiment = list()
        .iter()
        .find(|experiment| experiment.name == name)
        .ok_or_else(|| LabError::Unknown { name: name.to_owned() })?;
    let context = Context::open(options)?;
    let machine = Machine::read(context.scratch());
    let findings = (experiment.run)(&context)?;
    Ok(Outcome { experiment: experiment.name, machine, rows: findings.rows, claims: findings.claims })
}
