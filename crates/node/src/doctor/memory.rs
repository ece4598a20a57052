//! `headwater doctor --memory`: what it costs to make memory ready for a device, and what follows from it.
//!
//! In: this host's measured costs, `HEADWATER_TIERS`, limits of the system. Out: a table that is the paper's Figure 1 for
//! this machine, the borders of the tiers with their reasons, and findings. Nothing is changed and nothing needs root.

use super::{Finding, Verdict, machine};
use crate::config::Bytes;
use headwater_dma::pool::PoolConfig;
use headwater_dma::pool::calibration::{self, Choice, ChosenBy, NotBorders, TIERS_VARIABLE, Way};
use headwater_host::calibration::Origin;
use headwater_host::calibration::memory::{MemoryCost, MemoryCosts};
use headwater_host::clock::Clock;
use serde::Serialize;
use std::fmt;

/// What is known about memory here.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryReport {
    /// A row a size, in nanoseconds.
    pub costs: Vec<MemoryCost>,
    /// Where the rows come from.
    pub measured: String,
    /// The borders of the tiers. Empty when the override names none.
    pub tiers: Option<Tiers>,
    /// Limits, pages, nodes and reasons.
    pub findings: Vec<Finding>,
}

/// The borders in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Tiers {
    /// Largest request that goes through staging blocks.
    pub small_max_bytes: u64,
    /// Smallest request that is pinned for itself.
    pub large_min_bytes: u64,
    /// The caller's own memory is used in place from here on; nothing is never.
    pub import_min_bytes: Option<u64>,
}

impl MemoryReport {
    /// Looks at this machine. Measures in less than 50 ms if that was never done.
    #[must_use]
    pub fn make() -> Self {
        let costs = MemoryCosts::load_or_measure(&Clock::start());
        Self::of(&costs, calibration::told().as_deref())
    }

    fn of(costs: &MemoryCosts, told: Option<&str>) -> Self {
        let measured = match costs.origin {
            Origin::Measured => format!("measured just now, in {} ms", costs.took.0 / 1_000_000),
            Origin::Cached => "measured by an earlier run on this machine".to_owned(),
        };
        let way = Way::usual(costs);
        let choice = Choice::resolve(told, costs, PoolConfig::default().chunk, way);
        let mut findings = vec![
            machine::memlock(),
            machine::huge_pages(),
            machine::transparent_huge_pages(),
            machine::numa(),
        ];
        findings.push(copy_or_pin(costs));
        findings.push(borders(&choice, way));
        let tiers = choice.ok().map(|choice| Tiers {
            small_max_bytes: wide(choice.borders.small_max),
            large_min_bytes: wide(choice.borders.large_min),
            import_min_bytes: choice.import_min.map(wide),
        });
        Self { costs: costs.rows.clone(), measured, tiers, findings }
    }
}

/// From where on pinning what is there is cheaper than copying it.
fn copy_or_pin(costs: &MemoryCosts) -> Finding {
    let lines: Vec<String> = Way::ALL
        .into_iter()
        .map(|way| match way.wins_from(costs) {
            Some(bytes) => format!("{way} from {} on", Bytes(wide(bytes))),
            None if costs.rows.iter().all(|row| way.cost(row).is_none()) => format!("{way}: refused here"),
            None => format!("{way}: never"),
        })
        .collect();
    Finding::new("copy or pin", Verdict::Note, format!("cheaper than a cold copy is {}", lines.join("; "))).why(
        "pages of new memory are filled with zeroes when they are pinned, which costs more than the pin: memory that is \
         there already is registered, or copied into memory that is pinned",
    )
}

fn borders(choice: &Result<Choice, NotBorders>, way: Way) -> Finding {
    let choice = match choice {
        Ok(choice) => choice,
        Err(error) => {
            return Finding::new("tiers", Verdict::Problem, error.to_string())
                .change(format!("unset {TIERS_VARIABLE}   # to use what was measured"));
        }
    };
    let size = |bytes| Bytes(wide(bytes));
    let import = match choice.import_min {
        None => "the caller's memory is always copied".to_owned(),
        Some(bytes) if bytes == choice.borders.small_max + 1 => {
            "the caller's memory is used in place whenever it is not staged".to_owned()
        }
        Some(bytes) => format!("the caller's memory is used in place from {} on", size(bytes)),
    };
    let found = format!(
        "staged up to {}, pinned for itself from {} on, pooled between; {import} ({})",
        size(choice.borders.small_max),
        size(choice.borders.large_min),
        choice.chosen_by
    );
    match choice.chosen_by {
        ChosenBy::Calibration => Finding::new("tiers", Verdict::Active, found)
            .why(format!(
                "a page is copied faster than pinned; from the size of a chunk on memory is not kept; memory is used in \
                 place from where {way} was cheaper than a cold copy"
            ))
            .change(format!("{TIERS_VARIABLE}=paper-4.1|paper-5.2|SMALL:LARGE   # in bytes")),
        ChosenBy::Paper41 | ChosenBy::Paper52 | ChosenBy::Numbers => Finding::new("tiers", Verdict::Note, found)
            .why(format!("{TIERS_VARIABLE} says so"))
            .change(format!("unset {TIERS_VARIABLE}   # to use what was measured")),
    }
}

/// The columns of the table: heading, what it is, the cell.
type Column = (&'static str, &'static str, fn(&MemoryCost) -> Option<u64>);

const COLUMNS: [Column; 7] = [
    ("copy hot", "copying what the caches have", |row| row.copy_hot_ns),
    ("copy cold", "copying what they have forgotten", |row| row.copy_cold_ns),
    ("map+lock", "mapping new memory, locking and unmapping it: pinning for one request", |row| {
        row.map_and_lock_ns
    }),
    ("lock", "locking and unlocking memory that is there", |row| row.lock_resident_ns),
    ("register 4K", "registering it with io_uring and taking it back, in pages of 4 KiB", |row| {
        row.register_small_ns
    }),
    ("register THP", "the same in transparent huge pages", |row| row.register_huge_ns),
    (
        "map huge",
        "mapping and unmapping reserved huge pages, filled: what the paper's 800 us for 1 KB were",
        |row| row.map_reserved_huge_ns,
    ),
];

impl fmt::Display for MemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Copying or pinning, in microseconds ({}); - is refused or not there.", self.measured)?;
        write!(f, "{:>10}", "size")?;
        for (heading, ..) in COLUMNS {
            write!(f, "{heading:>14}")?;
        }
        writeln!(f)?;
        for row in &self.costs {
            write!(f, "{:>10}", Bytes(row.bytes).to_string())?;
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

fn wide(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
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
        MemoryCosts { rows, origin: Origin::Measured, took: Nanos::from_millis(31) }
    }

    #[test]
    fn the_table_has_a_row_a_size_and_says_what_was_refused() {
        let text = MemoryReport::of(&costs(), None).to_string();
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
    fn the_borders_say_who_chose_them_and_nonsense_is_a_problem() {
        let calibrated = MemoryReport::of(&costs(), None);
        let expected =
            Tiers { small_max_bytes: 4 << 10, large_min_bytes: 4 << 20, import_min_bytes: Some(64 << 10) };
        assert_eq!(calibrated.tiers, Some(expected));
        let paper = MemoryReport::of(&costs(), Some("paper-5.2"));
        assert_eq!(paper.tiers.unwrap().large_min_bytes, (128 << 10) + 1);
        assert!(paper.to_string().contains("HEADWATER_TIERS says so"));
        let nonsense = MemoryReport::of(&costs(), Some("large"));
        assert!(nonsense.tiers.is_none());
        assert!(nonsense.findings.iter().any(|finding| finding.verdict == Verdict::Problem));
    }

    #[test]
    fn the_report_is_json_too() {
        let json = serde_json::to_value(MemoryReport::of(&costs(), None)).unwrap();
        assert_eq!(json["costs"][1]["copy_cold_ns"], 7_800);
        assert_eq!(json["tiers"]["import_min_bytes"], 65_536);
    }
}
