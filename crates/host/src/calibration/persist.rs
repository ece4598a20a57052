//! The length from which a durable copy is faster past the cache than through it.
//!
//! Input: a clock, the calibration cache. Output: a [`PersistThreshold`]. Invariant: as for every calibration, a cached
//! value counts on the machine, kernel and version that measured it. It is measured in DRAM; persistent memory writes
//! slower, which moves the threshold down.

use super::{CacheFile, CacheLocation, Calibration, CalibrationOrigin, measure};
use crate::clock::Clock;
use crate::copy::persist::STREAMING_PERSIST_BYTES_MIN;
use crate::width::to_usize;

/// The measured choice between streaming and cached durable copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PersistThreshold {
    /// The length from which a durable copy streams; `usize::MAX` if a cached one is faster at every length.
    pub streaming_from_bytes: usize,
    /// The source of the value.
    pub origin: CalibrationOrigin,
}

impl PersistThreshold {
    /// Returns this host's threshold: the cached one, or a measured one, which it then caches.
    #[must_use]
    pub fn load_or_measure(clock: &Clock) -> Self {
        Self::load_or_measure_at(clock, &CacheLocation::of_this_host())
    }

    fn load_or_measure_at(clock: &Clock, place: &CacheLocation) -> Self {
        if let Some(kept) = place.cached_values().and_then(|kept| kept.streaming_persist_from_bytes) {
            return Self { streaming_from_bytes: to_usize(kept), origin: CalibrationOrigin::Cached };
        }
        let default = STREAMING_PERSIST_BYTES_MIN as u64;
        let measured = measure::streaming_persist_from_bytes(clock).unwrap_or(default);
        // The value is stored beside the machine's other values, which must exist first.
        let _ = Calibration::load_or_measure_at(clock, place, None);
        place.update(|cache: &mut CacheFile, fingerprint| {
            if let Some(kept) = cache.machines.get_mut(fingerprint) {
                kept.streaming_persist_from_bytes = Some(measured);
            }
        });
        Self { streaming_from_bytes: to_usize(measured), origin: CalibrationOrigin::Measured }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn second_run_uses_the_cached_threshold_and_keeps_the_other_values() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("calibration.json");
        let place = CacheLocation::at(Some(path.clone()));
        let clock = Clock::start();
        let before = Calibration::load_or_measure_at(&clock, &place, None);
        let first = PersistThreshold::load_or_measure_at(&clock, &place);
        assert_eq!(first.origin, CalibrationOrigin::Measured);
        let second = PersistThreshold::load_or_measure_at(&clock, &place);
        assert_eq!(second, PersistThreshold { origin: CalibrationOrigin::Cached, ..first });
        let after = Calibration::load_or_measure_at(&clock, &place, None);
        assert_eq!(after, Calibration { origin: CalibrationOrigin::Cached, ..before });
        assert!(fs::read_to_string(&path).unwrap().contains("streaming_persist_from_bytes"));
    }

    #[test]
    fn unwritable_cache_measures_each_time() {
        let place = CacheLocation::at(None);
        let found = PersistThreshold::load_or_measure_at(&Clock::start(), &place);
        assert_eq!(found.origin, CalibrationOrigin::Measured);
    }
}
