//! `headwater doctor --memory`: the costs of preparing memory for a device, and the tier thresholds derived from them.
//!
//! Input: the measured costs of this host, `HEADWATER_TIERS`, limits of the system. Output: a table that is the paper's
//! Figure 1 for this machine, the tier thresholds with their reasons, and findings. Nothing is changed and nothing
//! needs root.

use super::{DoctorFinding, FindingVerdict, machine, tiers};
use crate::config::ByteSize;
use headwater_dma::pool::calibration::{self, PrepareMethod};
use headwater_host::calibration::memory::{MemoryCost, MemoryCosts};
use headwater_host::calibration::{CalibrationOrigin, cache_file};
use headwater_host::clock::Clock;
use serde::Serialize;
use std::fmt;

/// The costs of memory on this machine, and the tiers.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryReport {
    /// One row for each size, in nanoseconds.
    pub costs: Vec<MemoryCost>,
    /// Source of the rows.
    pub measured: String,
    /// Tier thresholds; `None` if `HEADWATER_TIERS` is invalid.
    pub tiers: Option<TierBounds>,
    /// Limits, pages, nodes and reasons.
    pub findings: Vec<DoctorFinding>,
}

/// The tier thresholds in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TierBounds {
    /// Largest request that is served by the static tier.
    pub small_max_bytes: u64,
    /// Smallest request that is pinned individually.
    pub large_min_bytes: u64,
    /// Smallest request for which the caller's memory is used in place; `None` for never.
    pub import_min_bytes: Option<u64>,
    /// `calibrated`, `paper-4.1`, `paper-5.2` or `as configured`.
    pub origin: String,
}

impl MemoryReport {
    /// Returns the report of this machine. Measures the costs, in less than 50 ms, if no earlier run did.
    #[must_use]
    pub fn measure() -> Self {
        let costs = MemoryCosts::load_or_measure(&Clock::start());
        Self::from_costs(&costs, calibration::tiers_variable().as_deref())
    }

    fn from_costs(costs: &MemoryCosts, setting: Option<&str>) -> Self {
        let measured = match costs.origin {
            CalibrationOrigin::Measured => format!("measured just now, in {} ms", costs.took.0 / 1_000_000),
            CalibrationOrigin::Cached => "measured by an earlier run on this machine".to_owned(),
        };
        let mut findings = vec![
            machine::memlock(),
            machine::huge_pages(),
            machine::transparent_huge_pages(),
            machine::numa(),
        ];
        findings.push(copy_or_pin(costs));
        let report = tiers::report(costs, setting, cache_file().as_deref());
        findings.extend(report.findings);
        let tiers = report.choice.map(|choice| TierBounds {
            small_max_bytes: choice.thresholds.small_max as u64,
            large_min_bytes: choice.thresholds.large_min as u64,
            import_min_bytes: choice.import_min.map(|bytes| bytes as u64),
            origin: choice.origin.to_string(),
        });
        Self { costs: costs.rows.clone(), measured, tiers, findings }
    }
}

/// Returns the size from which pinning existing memory is cheaper than copying it, for each method.
fn copy_or_pin(costs: &MemoryCosts) -> DoctorFinding {
    let lines: Vec<String> = PrepareMethod::ALL
        .into_iter()
        .map(|way| match way.cheaper_from(costs) {
            Some(bytes) => format!("{way} from {} on", ByteSize(bytes as u64)),
            None if costs.rows.iter().all(|row| way.cost(row).is_none()) => format!("{way}: refused here"),
            None => format!("{way}: never"),
        })
        .collect();
    DoctorFinding::new("copy or pin", FindingVerdict::Note, format!("cheaper than a cold copy is {}", lines.join("; "))).why(
        "pages of new memory are filled with zeroes when they are pinned, which costs more than the pin: existing \
         memory is registered, or copied into pinned memory",
    )
}

/// A column of the table: heading, description, cell.
type CostColumn = (&'static str, &'static str, fn(&MemoryCost) -> Option<u64>);

const COLUMNS: [CostColumn; 7] = [
    ("copy hot", "copying memory that is in the CPU caches", |row| row.copy_hot_ns),
    ("copy cold", "copying memory that is not", |row| row.copy_cold_ns),
    ("map+lock", "mapping new memory, locking and unmapping it: pinning for one request", |row| {
        row.map_and_lock_ns
    }),
    ("lock", "locking and unlocking resident memory", |row| row.lock_resident_ns),
    ("register 4K", "registering it with io_uring and unregistering it, in pages of 4 KiB", |row| {
        row.register_small_ns
    }),
    ("register THP", "the same in transparent huge pages", |row| row.register_huge_ns),
    ("map huge", "mapping, filling and unmapping reserved huge pages: the paper's 800 us for 1 KB", |row| {
        row.map_reserved_huge_ns
    }),
];

impl fmt::Display for MemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Copying or pinning, in microseconds ({}); - is refused or unavailable.", self.measured)?;
        write!(f, "{:>10}", "size")?;
        for (heading, ..) in COLUMNS {
            write!(f, "{heading:>14}")?;
        }
        writeln!(f)?;
        for row in &self.costs {
            write!(f, "{:>10}", ByteSize(row.bytes).to_string())?;
            for (.., cell) in COLUMNS {
                let text = cell(row).map_or_else(|| "-".to_owned(), micros);
                write!(f, "{text:>14}")?;
            }
            writeln!(f)?;
        }
        writeln!(f)?;
        for (heading, meaning, _) in COLUMNS {
            writeln!(f, "  {heading:<13} {meaning}")?;
        }
        for finding in &self.findings {
            write!(f, "\n{finding}")?;
        }
        Ok(())
    }
}

fn micros(nanos: u64) -> String {
    format!("{}.{:02}", nanos / 1_000, nanos % 1_000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_host::clock::Nanos;

    fn costs() -> MemoryCosts {
        let row = |bytes, cold, register| MemoryCost {
            bytes,
            copy_hot_ns: Some(70),
            copy_cold_ns: Some(cold),
            map_and_lock_ns: Some(10_500),
            lock_resident_ns: Some(500_000),
            register_small_ns: Some(register),
            ..MemoryCost::default()
        };
        let rows = vec![row(4 << 10, 750, 1_500), row(64 << 10, 7_800, 2_890)];
        MemoryCosts { rows, origin: CalibrationOrigin::Measured, took: Nanos::from_millis(31) }
    }

    #[test]
    fn table_has_a_row_for_each_size_and_shows_refused_methods() {
        let text = MemoryReport::from_costs(&costs(), None).to_string();
        assert!(text.contains("measured just now, in 31 ms"), "{text}");
        let row = text.lines().find(|line| line.trim_start().starts_with("4 KiB")).unwrap();
        assert!(row.contains("0.07") && row.contains("10.50") && row.contains(" -"), "{row}");
        assert!(text.contains(
            "registering it in 4 KiB pages from 64 KiB on; registering it in huge pages: refused here"
        ));
        assert!(text.contains("locking it: never"), "{text}");
        for what in ["locked memory", "huge pages", "transparent huge", "NUMA nodes", "tiers"] {
            assert!(text.contains(what), "{what} is missing in\n{text}");
        }
    }

    #[test]
    fn thresholds_show_their_source_and_an_invalid_setting_is_a_problem() {
        let calibrated = MemoryReport::from_costs(&costs(), None);
        let expected = TierBounds {
            small_max_bytes: 4 << 10,
            large_min_bytes: 4 << 20,
            import_min_bytes: Some(64 << 10),
            origin: "calibrated".to_owned(),
        };
        assert_eq!(calibrated.tiers, Some(expected));
        let paper = MemoryReport::from_costs(&costs(), Some("paper-5.2"));
        assert_eq!(paper.tiers.clone().unwrap().large_min_bytes, (128 << 10) + 1);
        assert!(paper.to_string().contains("set by HEADWATER_TIERS"));
        let invalid = MemoryReport::from_costs(&costs(), Some("large"));
        assert!(invalid.tiers.is_none());
        assert!(invalid.findings.iter().any(|finding| finding.verdict == FindingVerdict::Problem));
    }

    #[test]
    fn report_serialises_to_json() {
        let json = serde_json::to_value(MemoryReport::from_costs(&costs(), None)).unwrap();
        assert_eq!(json["costs"][1]["copy_cold_ns"], 7_800);
        assert_eq!(json["tiers"]["import_min_bytes"], 65_536);
    }
}
