//! Thresholds measured on this host and cached.
//!
//! Input: a clock, the cache file of an earlier run, `HEADWATER_SPIN_US`. Output: a [`Calibration`]. Invariant: a
//! cached value is used only on the machine, kernel and version that measured it; a cache that is missing, damaged or
//! cannot be written costs a measurement of a few milliseconds and nothing else.

mod measure;
pub mod memory;
pub mod persist;

use crate::clock::{Clock, Nanos};
use crate::topology::Topology;
use memory::MemoryCost;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// The longest spin before sleep that calibration chooses.
pub const SPIN_MAX: Nanos = Nanos::from_micros(50);

/// Overrides [`Calibration::spin_before_sleep`], in microseconds.
pub const SPIN_VARIABLE: &str = "HEADWATER_SPIN_US";

/// The streaming threshold used if there is no time or memory to measure: a page, as measured on Zen 4.
const STREAMING_FROM_DEFAULT: u64 = 4_096;

/// The maximum number of machines in one cache file.
const MACHINES_MAX: usize = 64;

/// The thresholds of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calibration {
    /// The time that an idle core polls before it sleeps: as long as a wake-up takes, at most [`SPIN_MAX`]; zero on a
    /// single core, where no other thread works during the spin.
    pub spin_before_sleep: Nanos,
    /// The time to wake a sleeping thread and to be woken by it, through two eventfds.
    pub wake_round_trip: Nanos,
    /// The length from which a copy into cold memory is faster past the cache; `u64::MAX` if it never is.
    pub streaming_copy_from_bytes: u64,
    /// The source of the values.
    pub origin: CalibrationOrigin,
    /// The effect of the spin override.
    pub spin_override: SpinOverride,
}

/// The source of a calibration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CalibrationOrigin {
    /// Measured in this run.
    #[default]
    Measured,
    /// Measured by an earlier run on this machine.
    Cached,
}

/// The effect of [`SPIN_VARIABLE`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SpinOverride {
    /// The variable is not set.
    Unset,
    /// The variable replaced the measured spin.
    Used,
    /// The value is not a whole number of microseconds, and was ignored.
    Ignored(String),
}

/// The cached values of one machine. Values that another version adds stay in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct CachedValues {
    wake_round_trip_ns: u64,
    streaming_copy_from_bytes: u64,
    /// Since version 0.1: absent until it is requested, and if it does not parse.
    #[serde(default, deserialize_with = "rows_or_none", skip_serializing_if = "Option::is_none")]
    memory: Option<Vec<MemoryCost>>,
    /// Since version 0.1: absent until it is requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    streaming_persist_from_bytes: Option<u64>,
    #[serde(flatten)]
    extra: BTreeMap<String, serde_json::Value>,
}

/// Deserialises the rows; `None` if they are not in this version's format.
fn rows_or_none<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<MemoryCost>>, D::Error> {
    let value = serde_json::Value::deserialize(from)?;
    Ok(serde_json::from_value(value).ok())
}

/// The cache file: values by the fingerprint of the machine that measured them.
#[derive(Debug, Default, Serialize, Deserialize)]
struct CacheFile {
    machines: BTreeMap<String, CachedValues>,
}

impl Calibration {
    /// Returns this host's thresholds: cached ones, or measured ones, which it then caches.
    #[must_use]
    pub fn load_or_measure(clock: &Clock) -> Self {
        Self::load_or_measure_at(clock, &CacheLocation::of_this_host(), spin_setting().as_deref())
    }

    /// Returns this host's thresholds if an earlier run cached them. Measures nothing and writes nothing.
    #[must_use]
    pub fn cached() -> Option<Self> {
        Self::cached_at(&CacheLocation::of_this_host(), spin_setting().as_deref())
    }

    fn cached_at(place: &CacheLocation, spin: Option<&str>) -> Option<Self> {
        let kept = place.cached_values()?;
        Some(Self::from_cached(&kept, CalibrationOrigin::Cached, place.cores, spin))
    }

    fn load_or_measure_at(clock: &Clock, place: &CacheLocation, spin: Option<&str>) -> Self {
        if let Some(cached) = Self::cached_at(place, spin) {
            return cached;
        }
        let kept = measure(clock);
        place.update(|cache, fingerprint| {
            if cache.machines.len() >= MACHINES_MAX {
                cache.machines.clear();
            }
            cache.machines.insert(fingerprint.to_owned(), kept.clone());
        });
        Self::from_cached(&kept, CalibrationOrigin::Measured, place.cores, spin)
    }

    fn from_cached(kept: &CachedValues, origin: CalibrationOrigin, cores: usize, spin: Option<&str>) -> Self {
        let wake_round_trip = Nanos(kept.wake_round_trip_ns);
        let measured = if cores > 1 { wake_round_trip.min(SPIN_MAX) } else { Nanos::ZERO };
        let (spin_before_sleep, spin_override) = match spin.map(|text| (text, text.trim().parse::<u64>())) {
            None => (measured, SpinOverride::Unset),
            Some((_, Ok(micros))) => (Nanos(micros.saturating_mul(1_000)), SpinOverride::Used),
            Some((text, Err(_))) => (measured, SpinOverride::Ignored(text.to_owned())),
        };
        Self {
            spin_before_sleep,
            wake_round_trip,
            streaming_copy_from_bytes: kept.streaming_copy_from_bytes,
            origin,
            spin_override,
        }
    }
}

/// Returns the text of the setting that overrides the measured time of spinning.
fn spin_setting() -> Option<String> {
    env::var_os(SPIN_VARIABLE).map(|value| value.to_string_lossy().into_owned())
}

/// The cache file and the fingerprint of this machine.
#[derive(Debug)]
struct CacheLocation {
    path: Option<PathBuf>,
    fingerprint: String,
    cores: usize,
}

impl CacheLocation {
    fn of_this_host() -> Self {
        Self::at(cache_file())
    }

    fn at(path: Option<PathBuf>) -> Self {
        let topology = Topology::read();
        Self { path, fingerprint: fingerprint(&topology), cores: topology.cores() }
    }

    /// Returns the cached values of this machine.
    fn cached_values(&self) -> Option<CachedValues> {
        self.path.as_deref().and_then(load)?.machines.remove(&self.fingerprint)
    }

    /// Reads the file, changes it, writes it back. A cache that cannot be written is measured again next time.
    fn update(&self, change: impl FnOnce(&mut CacheFile, &str)) {
        if let Some(path) = &self.path {
            let mut cache = load(path).unwrap_or_default();
            change(&mut cache, &self.fingerprint);
            let _ = store(path, &cache);
        }
    }
}

fn measure(clock: &Clock) -> CachedValues {
    CachedValues {
        memory: None,
        streaming_persist_from_bytes: None,
        extra: BTreeMap::new(),
        // A system without spare eventfds or threads gets the longest spin.
        wake_round_trip_ns: measure::wake_round_trip(clock).unwrap_or(SPIN_MAX).0,
        streaming_copy_from_bytes: measure::streaming_copy_from_bytes(clock)
            .unwrap_or(STREAMING_FROM_DEFAULT),
    }
}

/// Returns the identity of the configuration for which the values hold.
fn fingerprint(topology: &Topology) -> String {
    format!(
        "{} | {} cores | Linux {} | headwater {}",
        topology.cpu_model,
        topology.cores(),
        topology.kernel_release,
        env!("CARGO_PKG_VERSION")
    )
}

/// Returns the file that keeps the measurements of this user, if there is a place for one.
#[must_use]
pub fn cache_file() -> Option<PathBuf> {
    cache_path(env::var_os("XDG_CACHE_HOME").as_deref(), env::var_os("HOME").as_deref())
}

/// Returns the path of the cache under the user's cache directory, if there is one.
fn cache_path(cache_home: Option<&std::ffi::OsStr>, home: Option<&std::ffi::OsStr>) -> Option<PathBuf> {
    // By the XDG specification, a path that is not absolute counts as unset.
    let absolute = |path: Option<&std::ffi::OsStr>| path.map(PathBuf::from).filter(|path| path.is_absolute());
    let directory = absolute(cache_home).or_else(|| Some(absolute(home)?.join(".cache")))?;
    Some(directory.join("headwater").join("calibration.json"))
}

fn load(path: &Path) -> Option<CacheFile> {
    serde_json::from_slice(&fs::read(path).ok()?).ok()
}

/// Writes the cache to a temporary file and renames it, so that two processes never leave half a file.
fn store(path: &Path, cache: &CacheFile) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let unfinished = path.with_extension(format!("{}.unfinished", std::process::id()));
    fs::write(&unfinished, serde_json::to_vec_pretty(cache)?)?;
    fs::rename(&unfinished, path).inspect_err(|_| {
        let _ = fs::remove_file(&unfinished);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: CachedValues = CachedValues {
        wake_round_trip_ns: 7_000,
        streaming_copy_from_bytes: 2_048,
        memory: None,
        streaming_persist_from_bytes: None,
        extra: BTreeMap::new(),
    };

    fn at(path: Option<&Path>) -> Calibration {
        Calibration::load_or_measure_at(&Clock::start(), &CacheLocation::at(path.map(Path::to_owned)), None)
    }

    #[test]
    fn second_run_uses_cached_values() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("deep/calibration.json");
        let first = at(Some(&path));
        assert_eq!(first.origin, CalibrationOrigin::Measured);
        assert!(first.spin_before_sleep <= SPIN_MAX);
        let second = at(Some(&path));
        assert_eq!(second, Calibration { origin: CalibrationOrigin::Cached, ..first });
    }

    #[test]
    fn cached_values_are_there_once_a_run_has_measured() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("calibration.json");
        let place = CacheLocation::at(Some(path.clone()));
        assert_eq!(Calibration::cached_at(&place, None), None);
        assert!(!path.exists(), "a look at the cache wrote it");
        let measured = at(Some(&path));
        let expected = Calibration { origin: CalibrationOrigin::Cached, ..measured };
        assert_eq!(Calibration::cached_at(&place, None), Some(expected));
    }

    #[test]
    fn damaged_cache_is_measured_again_and_rewritten() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("calibration.json");
        for damage in ["", "{", "[]", "{\"machines\": {\"x\": 3}}", "\u{0}"] {
            fs::write(&path, damage).unwrap();
            assert_eq!(at(Some(&path)).origin, CalibrationOrigin::Measured, "{damage:?}");
            assert_eq!(at(Some(&path)).origin, CalibrationOrigin::Cached, "{damage:?}");
        }
    }

    #[test]
    fn values_of_another_machine_are_kept_but_not_used() {
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("calibration.json");
        let mut cache = CacheFile::default();
        cache.machines.insert("another".into(), KEPT);
        store(&path, &cache).unwrap();
        assert_eq!(at(Some(&path)).origin, CalibrationOrigin::Measured);
        assert_eq!(load(&path).unwrap().machines["another"], KEPT);
        assert_eq!(load(&path).unwrap().machines.len(), 2);
    }

    #[test]
    fn unwritable_cache_is_no_error() {
        assert_eq!(at(Some(Path::new("/proc/nowhere/calibration.json"))).origin, CalibrationOrigin::Measured);
        assert_eq!(at(None).origin, CalibrationOrigin::Measured);
    }

    #[test]
    fn spin_override_wins_and_invalid_value_is_reported() {
        let from = |spin| Calibration::from_cached(&KEPT, CalibrationOrigin::Cached, 4, spin);
        assert_eq!(from(None).spin_before_sleep, Nanos(7_000));
        assert_eq!(from(Some("120")).spin_before_sleep, Nanos::from_micros(120));
        assert_eq!(from(Some("0")).spin_before_sleep, Nanos::ZERO);
        assert_eq!(from(Some("0")).spin_override, SpinOverride::Used);
        for nonsense in ["", "-1", "5us", "1e3"] {
            assert_eq!(from(Some(nonsense)).spin_before_sleep, Nanos(7_000));
            assert_eq!(from(Some(nonsense)).spin_override, SpinOverride::Ignored(nonsense.into()));
        }
    }

    #[test]
    fn spin_is_capped_and_zero_on_a_single_core() {
        let slow = CachedValues { wake_round_trip_ns: 900_000, ..KEPT };
        assert_eq!(
            Calibration::from_cached(&slow, CalibrationOrigin::Cached, 2, None).spin_before_sleep,
            SPIN_MAX
        );
        assert_eq!(
            Calibration::from_cached(&slow, CalibrationOrigin::Cached, 1, None).spin_before_sleep,
            Nanos::ZERO
        );
    }

    #[test]
    fn cache_path_follows_xdg() {
        let path = |cache: Option<&str>, home: Option<&str>| {
            cache_path(cache.map(AsRef::as_ref), home.map(AsRef::as_ref))
        };
        let tail = "headwater/calibration.json";
        assert_eq!(path(Some("/c"), Some("/h")), Some(Path::new("/c").join(tail)));
        assert_eq!(path(Some("c"), Some("/h")), Some(Path::new("/h/.cache").join(tail)));
        assert_eq!(path(None, Some("/h")), Some(Path::new("/h/.cache").join(tail)));
        assert_eq!(path(None, None), None);
    }
}
