//! The figures of the uDMA paper, measured with its protocol on this machine.
//!
//! Input: the costs of pinning and copying on this machine, a model of the paper's device, and a device on a file
//! accessed with direct I/O.
//! Output: figures 1, 5, 6 and 7: pinning for each request compared with the three tiers of a device's buffers, in
//! virtual time (`MODEL`) and in real time (`MEASURED`), with the paper's limits and with those of this machine. Figures 8
//! and 9 are `RocksDB`'s: the experiment `rocksdb` measures them.
//! Invariant: the experiment fails unless the counters of each pool say that every request of the run was served by the
//! tier of its length.
//!
//! The protocol is section 5.2: 50,000 random requests of up to 4 KB, 5,000 of 4 to 128 KB, 5,000 above, one at a time;
//! half of them reads, which the paper leaves open. With the paper's limits the static tier has its 32 MB and chunks
//! have its 4 MB. Its blocks of 32 MB for big requests, which many requests share, are chunks and no memory that is
//! pinned for a request: what its section 4.1 designs and its section 5.2 measures differ. Here a request above the
//! limit is pinned for itself, as section 4.1 says, so that with the limit of section 5.2 a big request gains nothing.

mod files;
mod model;
mod protocol;
mod tier_device;

use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, LabExperiment, RunContext};
use crate::report::ReportRow;
use headwater_dma::pool::calibration::PrepareMethod;
use headwater_host::calibration::memory::MemoryCosts;
use protocol::{TierPreset, UdmaClass};
use std::fmt::Display;

/// The experiment's entry in the table.
pub(crate) const EXPERIMENT: LabExperiment = LabExperiment {
    name: "udma",
    summary: "figures 1, 5, 6 and 7 of the uDMA paper: three tiers compared with pinning for each request",
    baseline: "memory pinned for each request; one buffer kept for all of them (floor)",
    claims: &["p3.udma.*"],
    run,
};

/// Improvement of response times by the three tiers according to the paper, in per cent.
const IMPROVEMENT_MIN: f64 = 17.0;
/// The measured size nearest to the 60 KB at which the paper's curves cross.
const CROSSING_KIB_MAX: f64 = 64.0;
const CALIBRATION_MS_MAX: f64 = 50.0;

fn run(context: &RunContext) -> Result<ExperimentFindings, LabError> {
    let mut findings = ExperimentFindings::default();
    let costs = MemoryCosts::measure(context.clock());
    figure_1(&costs, &mut findings);
    model::run(context, &costs, &mut findings)?;
    files::run(context, &mut findings)?;
    Ok(findings)
}

#[expect(clippy::cast_precision_loss, reason = "kibibytes and milliseconds")]
fn figure_1(costs: &MemoryCosts, findings: &mut ExperimentFindings) {
    for row in &costs.rows {
        findings.rows.push(
            ReportRow::new()
                .with("figure", "1")
                .with("bytes", row.bytes)
                .with("copy_hot_ns", row.copy_hot_ns)
                .with("copy_cold_ns", row.copy_cold_ns)
                .with("mmap_and_mlock_ns", row.map_and_lock_ns)
                .with("mlock_resident_ns", row.lock_resident_ns)
                .with("register_4k_pages_ns", row.register_small_ns)
                .with("register_huge_pages_ns", row.register_huge_ns)
                .with("map_reserved_huge_ns", row.map_reserved_huge_ns),
        );
    }
    let crossing = PrepareMethod::RegisterHuge.cheaper_from(costs);
    let fresh = costs.rows.iter().rev().take_while(
        |row| matches!((row.map_and_lock_ns, row.copy_cold_ns), (Some(pin), Some(copy)) if pin < copy),
    );
    let fresh = match fresh.last() {
        Some(row) => format!("from {} KiB", row.bytes >> 10),
        None => "at no size".to_owned(),
    };
    let name = "p3.udma.fig1.crossing";
    let unit = "KiB from which pinning resident huge pages is cheaper than a cold copy";
    let goal = ClaimGoal::AtMost(CROSSING_KIB_MAX);
    findings.claims.push(match crossing {
        Some(bytes) => LabClaim::found(
            name,
            goal,
            (bytes as f64 / 1_024.0, unit),
            EvidenceLabel::Measured,
            format!("60 KB in the paper; memory mapped and locked for the request is cheaper {fresh}"),
        ),
        None => {
            LabClaim::not_run(name, goal, unit, "pinning was not cheaper at the largest size, or was refused")
        }
    });
    findings.claims.push(LabClaim::found(
        "p3.udma.fig1.span",
        ClaimGoal::AtMost(CALIBRATION_MS_MAX),
        (costs.took.0 as f64 / 1e6, "ms for all of the table"),
        EvidenceLabel::Measured,
        "none: the table is made at start",
    ));
}

/// Returns the name of the claim of a class with a preset: with our limits, and with those in which the paper measures.
fn preset_claim(kind: &str, class: &UdmaClass, preset: TierPreset) -> Option<String> {
    match preset {
        TierPreset::Ours => Some(format!("p3.udma.{kind}.{}", class.name)),
        TierPreset::Paper52 => Some(format!("p3.udma.{kind}.{}.paper", class.name)),
        TierPreset::Paper41 => None,
    }
}

fn failed(error: impl Display) -> LabError {
    LabError::Measure { program: "the device".to_owned(), reason: error.to_string() }
}

/// Returns the percentage by which `after` is below `before`.
fn improvement(before: f64, after: f64) -> f64 {
    (1.0 - after / before) * 100.0
}

/// Evaluates the claim that the response time of a class of requests improves by at least the paper's percentage.
fn improvement_claim(name: String, percent: f64, label: EvidenceLabel, baseline: String) -> LabClaim {
    let unit = "% shorter mean response than with pinning for each request";
    LabClaim::found(name, ClaimGoal::AtLeast(IMPROVEMENT_MIN), (percent, unit), label, baseline)
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_host::calibration::memory::MemoryCost;

    #[test]
    fn crossing_is_the_size_from_which_pinning_is_always_cheaper() {
        let row = |bytes, copy, register| MemoryCost {
            bytes,
            copy_cold_ns: Some(copy),
            register_huge_ns: Some(register),
            ..MemoryCost::default()
        };
        let rows = vec![row(4_096, 700, 1_300), row(16_384, 2_100, 1_500), row(65_536, 7_800, 1_500)];
        let mut findings = ExperimentFindings::default();
        figure_1(&MemoryCosts { rows, ..MemoryCosts::default() }, &mut findings);
        assert_eq!((findings.rows.len(), findings.claims[0].value), (3, Some(16.0)));
        assert!(findings.claims[0].holds && findings.claims[0].baseline.contains("at no size"));
        let mut nothing = ExperimentFindings::default();
        figure_1(&MemoryCosts::default(), &mut nothing);
        assert!(!nothing.claims[0].holds);
    }

    #[test]
    fn improvement_is_the_relative_reduction_in_per_cent() {
        assert!((improvement(100.0, 83.0) - 17.0).abs() < 1e-9);
        assert!(improvement(100.0, 110.0) < 0.0);
    }
}
