//! User-level I/O: the cost of a handle, the `io_uring` backend compared with fio, polling periods, differentiated
//! service, and the cache.
//!
//! Input: this machine, and fio and perf if they are installed.
//! Output: the claims `p4.*` and figures 3 and 4 of the `NVMeDirect` paper on a model device: in the machine's time if
//! CPU is counted, in virtual time (`MODEL`) if only the order of commands matters.
//! Invariant: compared methods ran interleaved, in this run.
//!
//! # Not reproduced here
//! Figure 2 needs an NVMe device behind an IOMMU: a guest produces its rows, in the same form and labelled `EMULATED`
//! (`tests/vm/more/figure2.sh`). Table 2 (Redis under YCSB-A) needs the plugin for Redis. Both are listed in rows with
//! their status.

mod cache;
pub(in crate::experiments) mod fio;
mod null;
mod period;
mod service;
mod uring;

use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, LabExperiment, RunContext};
use crate::measure::SampleSpread;
use crate::report::ReportRow;
use headwater_host::clock::Nanos;
use std::fmt::Display;

/// The experiment's entry in the table.
pub(crate) const EXPERIMENT: LabExperiment = LabExperiment {
    name: "io",
    summary: "handles, io_uring, polling periods, differentiated service and the block cache",
    baseline: "a queue pair and its controller's end alone (floor); fio's io_uring engine; busy polling; a plain copy",
    claims: &["p4.*"],
    run,
};

/// Bytes of most reads and writes here.
const PAGE_BYTES: usize = 4_096;

fn run(context: &RunContext) -> Result<ExperimentFindings, LabError> {
    let mut findings = ExperimentFindings::default();
    null::run(context, &mut findings)?;
    uring::run(context, &mut findings)?;
    period::run(context, &mut findings)?;
    service::run(context, &mut findings)?;
    cache::run(context, &mut findings)?;
    for (figure, what, status, why) in [
        (
            "2",
            "IOPS by queue depth: our driver, attached to a node that has it, the kernel, io_uring, passthrough",
            "NOT HERE",
            "needs an NVMe device behind an IOMMU: tests/vm/more/figure2.sh gives these rows, labelled EMULATED",
        ),
        ("Table 2", "Redis under YCSB-A", "NOT REPRODUCED", "there is no plugin for Redis yet"),
    ] {
        let row = ReportRow::new().with("figure", figure).with("what", what);
        findings.rows.push(row.with("status", status).with("why", why));
    }
    Ok(findings)
}

fn failed(error: impl Display) -> LabError {
    LabError::Measure { program: "user-level I/O".to_owned(), reason: error.to_string() }
}

/// Converts a count to a floating-point number.
#[expect(clippy::cast_precision_loss, reason = "counts and nanoseconds of a run are far below 2^52")]
fn decimal(count: u64) -> f64 {
    count as f64
}

/// Converts a span to seconds.
fn seconds(span: Nanos) -> f64 {
    decimal(span.0) / 1e9
}

fn median(samples: &[f64]) -> f64 {
    SampleSpread::of(samples).map_or(f64::NAN, |spread| spread.median)
}

/// Evaluates a claim on the median of samples, with their spread in the baseline text.
fn measured(
    name: impl Into<String>,
    goal: ClaimGoal,
    (samples, unit): (&[f64], &'static str),
    baseline: &str,
) -> LabClaim {
    let spread = SampleSpread::of(samples);
    let (low, high) = spread.map_or((f64::NAN, f64::NAN), |spread| (spread.min, spread.max));
    let baseline = format!("{baseline}; samples {low:.3} to {high:.3}");
    LabClaim::found(name, goal, (median(samples), unit), EvidenceLabel::Measured, baseline)
}
