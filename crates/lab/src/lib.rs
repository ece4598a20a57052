//! Every figure the project states, and the run that makes it again.
//!
//! In: the name of an experiment and how much time it may take. Out: one [`Outcome`]: the machine, the rows that were
//! measured, and the claims they bear on. Invariant: a claim that could not be measured has no value, does not hold and
//! says why; no figure is carried over from another run.
//!
//! # What this does not do
//! It asserts nothing: a test never waits for a figure. It does not depend on the daemon: an experiment that needs a
//! node starts the program at [`Options::binary`].
//!
//! # A new experiment
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

/// What one run of an experiment found.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Name of the experiment.
    pub experiment: &'static str,
    /// Where it ran.
    pub machine: Machine,
    /// What was measured.
    pub rows: Vec<Row>,
    /// What that says about what we promise.
    pub claims: Vec<Claim>,
}

/// Every experiment, in the order a reader wants them.
#[must_use]
pub fn list() -> &'static [Experiment] {
    experiments::TABLE
}

/// Runs one experiment.
///
/// # Errors
/// [`LabError::Unknown`] for a name that is not in [`list`]; the others when the scratch folder or the measuring itself
/// failed. A missing peer is no error: the claims that need it have no value.
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
