//! The cost of making memory ready for a device, compared with copying into memory that already is.
//!
//! Input: a clock, the calibration cache. Output: [`MemoryCosts`], one row per size: the paper's Figure 1 for this
//! machine, with each operation named. Invariant: a cell is the median of real operations, or is empty because the
//! system refused; from [`SPAN`] on every operation runs once only, so that the whole measurement takes less than 50 ms
//! on a machine that is not overloaded.

mod measure;

use super::{CacheFile, CacheLocation, Calibration, CalibrationOrigin};
use crate::clock::{Clock, Nanos};
use serde::{Deserialize, Serialize};

/// The time during which operations are repeated.
pub const SPAN: Nanos = Nanos::from_millis(35);

/// The measured sizes.
pub const SIZES: [usize; 8] = [4 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20, 4 << 20];

/// The costs of one size: each operation and its undoing, in nanoseconds. Empty where the system refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryCost {
    /// The size in bytes.
    pub bytes: u64,
    /// Copying from recently read memory to recently written memory.
    pub copy_hot_ns: Option<u64>,
    /// Copying from and to memory that is no longer in the caches.
    pub copy_cold_ns: Option<u64>,
    /// Mapping new memory, locking it, unmapping it: pinning for one request.
    pub map_and_lock_ns: Option<u64>,
    /// Locking and unlocking resident memory.
    pub lock_resident_ns: Option<u64>,
    /// Registering resident memory, in pages of 4 KiB, with `io_uring`, and unregistering it.
    pub register_small_ns: Option<u64>,
    /// Registering and unregistering memory in transparent huge pages.
    pub register_huge_ns: Option<u64>,
    /// Mapping reserved huge pages, populated, and unmapping them: the operation that the paper gives as 800 us for one
    /// page.
    pub map_reserved_huge_ns: Option<u64>,
}

/// The costs of every size, smallest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryCosts {
    /// One row per size.
    pub rows: Vec<MemoryCost>,
    /// The source of the values.
    pub origin: CalibrationOrigin,
    /// The duration of the measurement, if it was made in this run.
    pub took: Nanos,
}

impl MemoryCosts {
    /// Returns this host's costs: cached ones, or measured ones, which it then caches.
    #[must_use]
    pub fn load_or_measure(clock: &Clock) -> Self {
        Self::load_or_measure_at(clock, &CacheLocation::of_this_host())
    }

    /// Measures now, and neither reads nor writes the cache.
    #[must_use]
    pub fn measure(clock: &Clock) -> Self {
        let start = clock.now();
        let rows = measure::rows(clock, start.after(SPAN));
        Self { rows, origin: CalibrationOrigin::Measured, took: clock.now().since(start) }
    }

    pub(super) fn load_or_measure_at(clock: &Clock, place: &CacheLocation) -> Self {
        if let Some(rows) =
            place.cached_values().and_then(|kept| kept.memory).filter(|rows| are_current_rows(rows))
        {
            return Self { rows, origin: CalibrationOrigin::Cached, took: Nanos::ZERO };
        }
        let costs = Self::measure(clock);
        // The rows are stored beside the machine's other values, which must exist first.
        let _ = Calibration::load_or_measure_at(clock, place, None);
        place.update(|cache: &mut CacheFile, fingerprint| {
            if let Some(kept) = cache.machines.get_mut(fingerprint) {
                kept.memory = Some(costs.rows.clone());
            }
        });
        costs
    }
}

/// Returns true if cached rows have the sizes and values that would be measured now.
fn are_current_rows(rows: &[MemoryCost]) -> bool {
    let sizes = SIZES.iter().map(|&bytes| bytes as u64);
    rows.iter().map(|row| row.bytes).eq(sizes) && rows.iter().all(|row| row.copy_hot_ns.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn every_size_has_a_row_and_copies_are_always_measured() {
        let costs = MemoryCosts::measure(&Clock::start());
        assert_eq!(costs.rows.len(), SIZES.len());
        assert!(costs.rows[0].copy_hot_ns.is_some());
        for (row, bytes) in costs.rows.iter().zip(SIZES) {
            assert_eq!(row.bytes, bytes as u64);
        }
    }

    #[test]
    fn second_run_uses_cached_rows() {
        let directory = tempfile::TempDir::new().unwrap();
        let place = CacheLocation::at(Some(directory.path().join("calibration.json")));
        let clock = Clock::start();
        let rows = SIZES.map(|bytes| MemoryCost {
            bytes: bytes as u64,
            copy_hot_ns: Some(7),
            ..MemoryCost::default()
        });
        let _ = MemoryCosts::load_or_measure_at(&clock, &place);
        place.update(|cache, fingerprint| {
            cache.machines.get_mut(fingerprint).unwrap().memory = Some(rows.to_vec());
        });
        let second = MemoryCosts::load_or_measure_at(&clock, &place);
        assert_eq!((second.origin, second.rows), (CalibrationOrigin::Cached, rows.to_vec()));
        // The other values are unchanged.
        assert_eq!(Calibration::load_or_measure_at(&clock, &place, None).origin, CalibrationOrigin::Cached);
    }

    #[test]
    fn unknown_cache_fields_of_another_version_are_preserved() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("calibration.json");
        let place = CacheLocation::at(Some(path.clone()));
        let clock = Clock::start();
        let _ = MemoryCosts::load_or_measure_at(&clock, &place);
        let mut file: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let machines = file["machines"].as_object_mut().unwrap();
        let kept = machines.values_mut().next().unwrap().as_object_mut().unwrap();
        // Written by a version without this table, and by one with more values.
        kept.remove("memory").unwrap();
        kept.insert("later".to_owned(), serde_json::json!({ "threshold": 5 }));
        fs::write(&path, serde_json::to_vec(&file).unwrap()).unwrap();
        assert_eq!(Calibration::load_or_measure_at(&clock, &place, None).origin, CalibrationOrigin::Cached);
        assert_eq!(MemoryCosts::load_or_measure_at(&clock, &place).origin, CalibrationOrigin::Measured);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("\"memory\"") && text.contains("\"later\""), "{text}");
    }

    #[test]
    fn damaged_rows_are_measured_again() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("calibration.json");
        let place = CacheLocation::at(Some(path.clone()));
        let clock = Clock::start();
        let _ = MemoryCosts::load_or_measure_at(&clock, &place);
        for damage in ["[]", "[{\"bytes\": 3}]", "7", "[{\"bytes\": \"x\"}]"] {
            let mut file: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            let machines = file["machines"].as_object_mut().unwrap();
            let kept = machines.values_mut().next().unwrap().as_object_mut().unwrap();
            kept.insert("memory".to_owned(), serde_json::from_str(damage).unwrap());
            fs::write(&path, serde_json::to_vec(&file).unwrap()).unwrap();
            assert_eq!(
                MemoryCosts::load_or_measure_at(&clock, &place).origin,
                CalibrationOrigin::Measured,
                "{damage}"
            );
        }
    }
}
