//! The tiers of memory that devices use: the limits by the length of a request, their origin, and the sizes of each tier.
//!
//! Input: the measured costs of this machine, `HEADWATER_TIERS`, the defaults of devices' pools. Output: findings.
//! Invariant: limits and sizes are those that a device opened now gets, from the functions that open its pool.

use super::{DoctorFinding, FindingVerdict};
use crate::config::ByteSize;
use headwater_dma::pool::calibration::{
    ChoiceOrigin, InvalidThresholds, PrepareMethod, TIERS_VARIABLE, TierChoice,
};
use headwater_dma::pool::{ChunkRule, PoolConfig};
use headwater_host::calibration::memory::{MemoryCost, MemoryCosts};
use headwater_host::calibration::{CalibrationOrigin, cache_file};
use headwater_host::clock::Clock;
use headwater_io::PoolDefaults;
use std::path::Path;

/// The tiers of this machine.
#[derive(Debug)]
pub(super) struct TierReport {
    /// The limits; `None` if `HEADWATER_TIERS` is invalid.
    pub(super) choice: Option<TierChoice>,
    /// The limits with their origin, and the sizes.
    pub(super) findings: Vec<DoctorFinding>,
}

/// Examines the tiers. Measures the costs of memory, in less than 50 ms, if no earlier run did.
#[must_use]
pub fn examine() -> Vec<DoctorFinding> {
    let costs = MemoryCosts::load_or_measure(&Clock::start());
    let variable = headwater_dma::pool::calibration::tiers_variable();
    report(&costs, variable.as_deref(), cache_file().as_deref()).findings
}

/// Returns the report for a value of `HEADWATER_TIERS`.
pub(super) fn report(costs: &MemoryCosts, setting: Option<&str>, file: Option<&Path>) -> TierReport {
    let way = PrepareMethod::default_for(costs);
    // Calibration never makes a request large that is shorter than 4 MiB, the longest first chunk of a device.
    let chunk = PoolDefaults::ALL.map(|kind| kind.chunk_bytes).into_iter().max().unwrap_or(0);
    let choice = TierChoice::resolve(setting, costs, chunk, way);
    let calibrated = TierChoice::calibrated(costs, chunk, way);
    let limits = limits_finding(&choice, &calibrated, &measurement(costs, file), why(costs, way));
    TierReport { choice: choice.ok(), findings: vec![limits, sizes_finding()] }
}

/// Returns the source of the measurements.
fn measurement(costs: &MemoryCosts, file: Option<&Path>) -> String {
    let file = file.map_or_else(|| "kept in no file".to_owned(), |file| format!("in {}", file.display()));
    match costs.origin {
        CalibrationOrigin::Measured => {
            format!("measured just now, in {} ms, {file}", costs.took.0 / 1_000_000)
        }
        CalibrationOrigin::Cached => format!("measured by an earlier run on this machine, {file}"),
    }
}

fn size(bytes: usize) -> ByteSize {
    ByteSize(bytes as u64)
}

/// Returns the limits as a sentence: "to 4 KiB in slots that stay pinned, ...".
fn limits(choice: &TierChoice) -> String {
    let small = match choice.thresholds.small_max {
        0 => "none in slots that stay pinned".to_owned(),
        bytes => format!("to {} in slots that stay pinned", size(bytes)),
    };
    let large = match choice.thresholds.large_min % 1_024 {
        1 => format!("longer than {}", size(choice.thresholds.large_min - 1)),
        _ => format!("from {} on", size(choice.thresholds.large_min)),
    };
    format!("{small}, {large} pinned for one request, from the pool's chunks between")
}

/// Returns the place where memory of the caller is used.
fn import(choice: &TierChoice) -> String {
    match choice.import_min {
        None => "copying memory of the caller is always cheaper than pinning it".to_owned(),
        Some(bytes) if bytes == choice.thresholds.small_max + 1 => {
            "pinning memory of the caller is cheaper than copying it whenever it is not small".to_owned()
        }
        Some(bytes) => {
            format!("pinning memory of the caller is cheaper than copying it from {} on", size(bytes))
        }
    }
}

/// Returns the measurements that calibration decides by.
fn why(costs: &MemoryCosts, way: PrepareMethod) -> String {
    let micros = |nanos: u64| format!("{}.{:02} us", nanos / 1_000, nanos % 1_000 / 10);
    let pin = |row: &MemoryCost| PrepareMethod::ALL.into_iter().filter_map(|way| way.cost(row)).min();
    let page = costs.rows.first().and_then(|row| Some((row.copy_hot_ns?, pin(row)?)));
    let page = page.map_or_else(
        || "a page cannot be pinned here, so it is copied".to_owned(),
        |(copy, pin)| format!("copying a page takes {}, pinning it at least {}", micros(copy), micros(pin)),
    );
    let used = match way.cheaper_from(costs) {
        Some(bytes) => format!("{way} is cheaper than a cold copy from {} on", size(bytes)),
        None => format!("{way} is never cheaper than a cold copy"),
    };
    format!("{page}; a request that would fill a chunk by itself is not kept pinned; {used}")
}

fn limits_finding(
    choice: &Result<TierChoice, InvalidThresholds>,
    calibrated: &TierChoice,
    measured: &str,
    why: String,
) -> DoctorFinding {
    let unset = format!("unset {TIERS_VARIABLE}   # to use the measured limits");
    let choice = match choice {
        Ok(choice) => choice,
        Err(error) => {
            return DoctorFinding::new("tiers", FindingVerdict::Problem, error.to_string()).change(unset);
        }
    };
    let origin = match choice.origin {
        ChoiceOrigin::Calibration => {
            let found = format!("{}; {} (calibrated: {measured})", limits(choice), import(choice));
            let change = format!("{TIERS_VARIABLE}=paper-4.1|paper-5.2|SMALL:LARGE   # in bytes");
            return DoctorFinding::new("tiers", FindingVerdict::Active, found).why(why).change(change);
        }
        ChoiceOrigin::Paper41 => "paper-4.1: section 4.1 of the uDMA paper",
        ChoiceOrigin::Paper52 => "paper-5.2: section 5.2 of the uDMA paper",
        ChoiceOrigin::Numbers => "the numbers that were given",
    };
    DoctorFinding::new("tiers", FindingVerdict::Note, format!("{} ({origin})", limits(choice)))
        .why(format!(
            "set by {TIERS_VARIABLE}; calibrated limits would be: {} ({measured})",
            limits(calibrated)
        ))
        .change(unset)
}

/// Returns the sizes of the tiers by kind of device.
fn sizes_finding() -> DoctorFinding {
    let kinds = PoolDefaults::ALL.map(|kind| {
        let chunks = match kind.chunk_rule {
            ChunkRule::Fixed => size(kind.chunk_bytes).to_string(),
            ChunkRule::Adaptive { min, max } => {
                format!("{} at first and {} to {} by the load", size(kind.chunk_bytes), size(min), size(max))
            }
        };
        format!(
            "{} slots of {} in all, chunks of {chunks}, at most {} pinned",
            kind.schemes,
            size(kind.static_bytes),
            size(kind.cap_bytes)
        )
    });
    let idle = PoolConfig::default().idle.0 / 1_000_000_000;
    DoctorFinding::new("tier sizes", FindingVerdict::Note, kinds.join("; "))
        .why(format!(
            "defaults of the devices that programs open; nothing is pinned before the first request of a tier, and an \
             empty chunk is unpinned after {idle} s"
        ))
        .change(
            "pool-static=, pool-chunk= (m), pool-cap= (M), pool-idle= (t), pool-tiers= and pool-node= in the URL of a \
             device",
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater::Device;
    use headwater_host::clock::Nanos;

    fn costs(origin: CalibrationOrigin) -> MemoryCosts {
        let row = |bytes, cold, register| MemoryCost {
            bytes,
            copy_hot_ns: Some(70),
            copy_cold_ns: Some(cold),
            register_small_ns: Some(register),
            ..MemoryCost::default()
        };
        let rows = vec![row(4 << 10, 750, 1_500), row(64 << 10, 7_800, 2_890)];
        MemoryCosts { rows, origin, took: Nanos::from_millis(31) }
    }

    fn text(setting: Option<&str>, origin: CalibrationOrigin) -> String {
        let report = report(&costs(origin), setting, Some(Path::new("/cache/calibration.json")));
        report.findings.iter().map(|finding| format!("{finding}\n")).collect()
    }

    #[test]
    fn calibrated_limits_say_where_the_figures_come_from_and_why() {
        let now = text(None, CalibrationOrigin::Measured);
        for says in [
            "to 4 KiB in slots that stay pinned, from 4 MiB on pinned for one request",
            "(calibrated: measured just now, in 31 ms, in /cache/calibration.json)",
            "pinning memory of the caller is cheaper than copying it from 64 KiB on",
            "copying a page takes 0.07 us, pinning it at least 1.50 us",
        ] {
            assert!(now.contains(says), "`{says}` is missing in\n{now}");
        }
        assert!(text(None, CalibrationOrigin::Cached).contains("measured by an earlier run on this machine"));
    }

    #[test]
    fn presets_are_named_beside_the_limits_that_were_measured() {
        let paper = text(Some("paper-5.2"), CalibrationOrigin::Cached);
        assert!(paper.contains("longer than 128 KiB pinned for one request"), "{paper}");
        assert!(paper.contains("(paper-5.2: section 5.2 of the uDMA paper)"), "{paper}");
        assert!(paper.contains("set by HEADWATER_TIERS; calibrated limits would be: to 4 KiB"), "{paper}");
        assert!(text(Some("paper-4.1"), CalibrationOrigin::Cached).contains("section 4.1 of the uDMA paper"));
        let numbers = text(Some("0:65536"), CalibrationOrigin::Cached);
        assert!(numbers.contains("none in slots") && numbers.contains("from 64 KiB on"), "{numbers}");
        assert!(text(Some("large"), CalibrationOrigin::Cached).contains("PROBLEM   tiers"));
    }

    #[test]
    fn sizes_and_limits_are_those_of_the_devices_that_a_program_opens() {
        let folder = tempfile::tempdir().unwrap();
        let file = format!("io-uring:{}?create=1MiB", folder.path().join("disk").display());
        let urls = ["mem:64MiB", &file, "null:1MiB"];
        let said = text(None, CalibrationOrigin::Cached);
        for (url, kind) in urls.into_iter().zip(PoolDefaults::ALL) {
            assert!(kind.schemes.contains(url.split_once(':').unwrap().0), "{url}: {}", kind.schemes);
            let device = Device::open(url).unwrap();
            let config = device.pool().config();
            assert_eq!((config.chunk, config.chunk_rule), (kind.chunk_bytes, kind.chunk_rule), "{url}");
            assert_eq!((config.cap, config.static_bytes), (kind.cap_bytes, kind.static_bytes), "{url}");
            let size = format!("{} slots of {} in all", kind.schemes, size(config.static_bytes));
            assert!(said.contains(&size), "`{size}` is missing in\n{said}");
        }
        assert!(said.contains("after 10 s") && said.contains("pool-tiers="), "{said}");
    }
}
