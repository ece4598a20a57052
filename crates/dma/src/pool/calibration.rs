//! The choice of a tier per request size: copy or pin, from measurements of this machine or from configuration.
//!
//! Input: [`MemoryCosts`] of this host, m, and the operator's setting. Output: a [`TierChoice`] with its origin. Invariant:
//! a request is never imported at a size where copying was measured to be cheaper.
//!
//! One setting applies to the whole process: [`TIERS_VARIABLE`], unless a pool was opened with its own thresholds.
//! [`TierChoice::of`] resolves both.
//!
//! Rule of `calibrated`. Small: one page, which is one entry of a PRP list, if copying a page is cheaper than every way
//! of pinning it; else none. Large: from m on, since such a request would fill a chunk by itself, but not below 4 MiB.
//! Import: the smallest measured size from which on, at every measured size, preparing the caller's resident memory for
//! the device was cheaper than copying it to prepared memory, both with cold caches; never, if there is no such size.

use super::{PoolConfig, TierSetting, TierThresholds};
use headwater_host::calibration::memory::{MemoryCost, MemoryCosts};
use headwater_host::clock::Clock;
use std::fmt;
use std::sync::OnceLock;

/// Environment variable that overrides the measurements: `calibrated`, `paper-4.1`, `paper-5.2`, or `SMALL:LARGE` in
/// bytes.
pub const TIERS_VARIABLE: &str = "HEADWATER_TIERS";

/// Bytes of a page: the largest small request that calibration chooses.
const SMALL: usize = 4_096;

/// The smallest large request that calibration chooses: that of section 4.1 of the paper. Below it, memory that is kept
/// pinned for the next request costs the system little, and memory pinned for one request costs more than its transfer.
const LARGE: usize = 4 << 20;

/// A method to prepare resident memory for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrepareMethod {
    /// Locking it.
    Lock,
    /// Registering it with `io_uring`, in pages of 4 KiB.
    RegisterSmall,
    /// Registering it with `io_uring`, in transparent huge pages.
    RegisterHuge,
}

impl PrepareMethod {
    /// All methods.
    pub const ALL: [Self; 3] = [Self::Lock, Self::RegisterSmall, Self::RegisterHuge];

    /// Returns how imported memory is prepared on this host: registered where `io_uring` works, else locked.
    #[must_use]
    pub fn default_for(costs: &MemoryCosts) -> Self {
        let registers = costs.rows.iter().any(|row| row.register_small_ns.is_some());
        if registers { Self::RegisterSmall } else { Self::Lock }
    }

    /// Returns its cost in a row, if measured.
    #[must_use]
    pub fn cost(self, row: &MemoryCost) -> Option<u64> {
        match self {
            Self::Lock => row.lock_resident_ns,
            Self::RegisterSmall => row.register_small_ns,
            Self::RegisterHuge => row.register_huge_ns,
        }
    }

    /// Returns the size from which on it was cheaper than a cold copy, at every larger measured size too.
    #[must_use]
    pub fn cheaper_from(self, costs: &MemoryCosts) -> Option<usize> {
        let wins = |row: &&MemoryCost| matches!((self.cost(row), row.copy_cold_ns), (Some(pin), Some(copy)) if pin < copy);
        let first = costs.rows.iter().rev().take_while(wins).last()?;
        usize::try_from(first.bytes).ok()
    }
}

impl fmt::Display for PrepareMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lock => "locking it",
            Self::RegisterSmall => "registering it in 4 KiB pages",
            Self::RegisterHuge => "registering it in huge pages",
        })
    }
}

/// The origin of a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChoiceOrigin {
    /// Measurements of this machine.
    Calibration,
    /// Section 4.1 of the paper.
    Paper41,
    /// Section 5.2 of the paper.
    Paper52,
    /// The operator's numbers.
    Numbers,
}

impl fmt::Display for ChoiceOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Calibration => "calibrated",
            Self::Paper41 => "paper-4.1",
            Self::Paper52 => "paper-5.2",
            Self::Numbers => "as configured",
        })
    }
}

/// The tier thresholds, and the size from which on the caller's memory is used in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierChoice {
    /// Thresholds of the tiers.
    pub thresholds: TierThresholds,
    /// Smallest request whose memory, if the caller provides it, is used in place instead of copied; `None` for never.
    pub import_min: Option<usize>,
    /// The origin of the choice.
    pub origin: ChoiceOrigin,
}

/// An error for a value of [`TIERS_VARIABLE`] that is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{TIERS_VARIABLE}={text} is not a tier setting: \
     use calibrated, paper-4.1, paper-5.2, or SMALL:LARGE in bytes with SMALL below LARGE"
)]
pub struct InvalidThresholds {
    /// The value.
    pub text: String,
}

/// Returns the value of [`TIERS_VARIABLE`] in the environment of this process.
#[must_use]
pub fn tiers_variable() -> Option<String> {
    std::env::var_os(TIERS_VARIABLE).map(|value| value.to_string_lossy().into_owned())
}

/// Checks that the value of [`TIERS_VARIABLE`], if set, is valid.
///
/// # Errors
/// [`InvalidThresholds`] if it is not.
pub fn check_tiers_variable() -> Result<(), InvalidThresholds> {
    tiers_variable().map_or(Ok(()), |text| TierSetting::parse(&text).map(|_| ()))
}

/// Returns the setting of a pool: its own, else that of the variable, else the measured limits.
fn setting_of(own: Option<TierSetting>, variable: Option<&str>) -> Result<TierSetting, InvalidThresholds> {
    match (own, variable) {
        (Some(setting), _) => Ok(setting),
        (None, Some(text)) => TierSetting::parse(text),
        (None, None) => Ok(TierSetting::Calibrated),
    }
}

impl TierChoice {
    /// Returns the choice for a pool: its configured thresholds, else those of [`TIERS_VARIABLE`], else the measured
    /// ones; measuring takes less than 50 ms if it was never done on this machine.
    ///
    /// # Errors
    /// [`InvalidThresholds`] if the variable is not valid.
    pub fn of(config: &PoolConfig) -> Result<Self, InvalidThresholds> {
        if let TierSetting::Limits(limits) = setting_of(config.tiers, tiers_variable().as_deref())? {
            return Ok(Self::of_limits(limits));
        }
        if config.static_bytes == 0 {
            // Without a static tier nothing depends on the costs but imports, which are chosen when they are made.
            let thresholds = TierThresholds { small_max: 0, large_min: LARGE.max(config.chunk) };
            return Ok(Self { thresholds, import_min: None, origin: ChoiceOrigin::Calibration });
        }
        static COSTS: OnceLock<MemoryCosts> = OnceLock::new();
        let costs = COSTS.get_or_init(|| MemoryCosts::load_or_measure(&Clock::start()));
        Ok(Self::calibrated(costs, config.chunk, PrepareMethod::default_for(costs)))
    }

    /// Returns the choice for given thresholds. The paper has no import: its presets and plain numbers import from the
    /// large threshold on.
    fn of_limits(thresholds: TierThresholds) -> Self {
        let origin = match thresholds {
            TierThresholds::PAPER_4_1 => ChoiceOrigin::Paper41,
            TierThresholds::PAPER_5_2 => ChoiceOrigin::Paper52,
            _ => ChoiceOrigin::Numbers,
        };
        Self { thresholds, import_min: Some(thresholds.large_min), origin }
    }

    /// Returns the choice by measured costs, for chunks of `chunk` bytes and memory imported by the method `way`.
    #[must_use]
    pub fn calibrated(costs: &MemoryCosts, chunk: usize, way: PrepareMethod) -> Self {
        let copies = |row: &MemoryCost| {
            let pin = PrepareMethod::ALL.into_iter().filter_map(|way| way.cost(row)).min();
            row.copy_hot_ns.is_some_and(|copy| pin.is_none_or(|pin| copy <= pin))
        };
        let page = costs.rows.first();
        let small_max = if page.is_none_or(copies) { SMALL } else { 0 };
        let thresholds = TierThresholds { small_max, large_min: LARGE.max(chunk) };
        let import_min = way.cheaper_from(costs).map(|bytes| bytes.max(small_max + 1));
        Self { thresholds, import_min, origin: ChoiceOrigin::Calibration }
    }

    /// Returns the choice for a value of [`TIERS_VARIABLE`], or the measured one if it is unset or `calibrated`.
    ///
    /// # Errors
    /// [`InvalidThresholds`] if the text is not valid.
    pub fn resolve(
        text: Option<&str>,
        costs: &MemoryCosts,
        chunk: usize,
        way: PrepareMethod,
    ) -> Result<Self, InvalidThresholds> {
        Ok(match text.map_or(Ok(TierSetting::Calibrated), TierSetting::parse)? {
            TierSetting::Calibrated => Self::calibrated(costs, chunk, way),
            TierSetting::Limits(limits) => Self::of_limits(limits),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_host::calibration::CalibrationOrigin;
    use headwater_host::clock::Nanos;

    const CHUNK: usize = 4 << 20;

    /// Builds rows of bytes, hot copy, cold copy, lock, register.
    fn costs(rows: &[[u64; 5]]) -> MemoryCosts {
        let rows = rows.iter().map(|&[bytes, hot, cold, lock, register]| MemoryCost {
            bytes,
            copy_hot_ns: Some(hot),
            copy_cold_ns: Some(cold),
            lock_resident_ns: Some(lock),
            register_small_ns: Some(register),
            ..MemoryCost::default()
        });
        MemoryCosts { rows: rows.collect(), origin: CalibrationOrigin::Cached, took: Nanos::ZERO }
    }

    /// Returns measurements of the reference machine: copying 4 KiB beats every pin, registering wins from 16 KiB on.
    fn measured() -> MemoryCosts {
        costs(&[
            [4 << 10, 70, 750, 5_800, 1_500],
            [16 << 10, 400, 2_100, 7_500, 1_790],
            [64 << 10, 1_700, 7_800, 13_800, 2_890],
            [1 << 20, 43_000, 118_000, 141_000, 24_600],
            [4 << 20, 196_000, 470_000, 552_000, 93_000],
        ])
    }

    #[test]
    fn memory_is_imported_only_where_cheaper_than_copying() {
        let choice = TierChoice::calibrated(&measured(), CHUNK, PrepareMethod::RegisterSmall);
        assert_eq!(choice.thresholds, TierThresholds { small_max: 4_096, large_min: CHUNK });
        assert_eq!(choice.import_min, Some(16 << 10));
        assert_eq!(TierChoice::calibrated(&measured(), CHUNK, PrepareMethod::Lock).import_min, None);
        // An unmeasured method is not cheaper.
        assert_eq!(TierChoice::calibrated(&measured(), CHUNK, PrepareMethod::RegisterHuge).import_min, None);
    }

    #[test]
    fn a_win_below_a_larger_loss_is_ignored() {
        let costs = costs(&[[4_096, 1, 900, 1, 800], [16_384, 1, 900, 1, 1_000], [65_536, 1, 900, 1, 800]]);
        assert_eq!(PrepareMethod::RegisterSmall.cheaper_from(&costs), Some(65_536));
    }

    #[test]
    fn there_is_no_static_tier_if_pinning_a_page_is_cheaper_than_copying() {
        let costs = costs(&[[4_096, 900, 900, 5_000, 800]]);
        let choice = TierChoice::calibrated(&costs, CHUNK, PrepareMethod::RegisterSmall);
        assert_eq!((choice.thresholds.small_max, choice.import_min), (0, Some(4_096)));
    }

    #[test]
    fn a_machine_without_measurements_copies() {
        let choice = TierChoice::calibrated(&MemoryCosts::default(), CHUNK, PrepareMethod::RegisterHuge);
        assert_eq!(choice.thresholds, TierThresholds { small_max: 4_096, large_min: CHUNK });
        assert_eq!(choice.import_min, None);
    }

    #[test]
    fn the_two_settings_of_the_paper_are_presets_that_differ() {
        let of = |text| {
            TierChoice::resolve(Some(text), &measured(), CHUNK, PrepareMethod::Lock).unwrap().thresholds
        };
        // Section 4.1: "greater than or equal to 4 MB". Section 5.2: "larger than 128 KB".
        assert_eq!(of("paper-4.1"), TierThresholds { small_max: 4_096, large_min: 4 << 20 });
        assert_eq!(of("paper-5.2"), TierThresholds { small_max: 4_096, large_min: (128 << 10) + 1 });
    }

    #[test]
    fn configured_thresholds_need_no_measurement() {
        let of = |tiers: TierThresholds| {
            TierChoice::of(&PoolConfig { tiers: Some(tiers.into()), ..PoolConfig::default() }).unwrap()
        };
        let choice = of(TierThresholds::PAPER_5_2);
        assert_eq!((choice.origin, choice.import_min), (ChoiceOrigin::Paper52, Some((128 << 10) + 1)));
        assert_eq!(of(TierThresholds { small_max: 0, large_min: 9 }).origin, ChoiceOrigin::Numbers);
    }

    #[test]
    fn own_setting_of_a_pool_wins_over_the_variable() {
        // `calibrated` for one pool was the same as no setting, so that the variable decided.
        let variable = Some("paper-5.2");
        assert_eq!(setting_of(Some(TierSetting::Calibrated), variable), Ok(TierSetting::Calibrated));
        assert_eq!(setting_of(None, variable), Ok(TierThresholds::PAPER_5_2.into()));
        assert_eq!(setting_of(None, None), Ok(TierSetting::Calibrated));
        assert_eq!(setting_of(Some(TierSetting::Calibrated), Some("large")), Ok(TierSetting::Calibrated));
        assert!(setting_of(None, Some("large")).is_err());
    }

    #[test]
    fn the_override_wins_and_invalid_values_are_refused() {
        let of = |text| TierChoice::resolve(text, &measured(), CHUNK, PrepareMethod::RegisterSmall);
        assert_eq!(of(None), Ok(TierChoice::calibrated(&measured(), CHUNK, PrepareMethod::RegisterSmall)));
        assert_eq!(of(Some("calibrated")), of(None));
        let choice = of(Some("512: 65536")).unwrap();
        assert_eq!(choice.thresholds, TierThresholds { small_max: 512, large_min: 65_536 });
        assert_eq!((choice.import_min, choice.origin), (Some(65_536), ChoiceOrigin::Numbers));
        for nonsense in ["", "paper", "4096", "9:9", "9:8", "-1:8", "1:2:3", "x:y"] {
            let error = of(Some(nonsense)).unwrap_err();
            assert!(error.to_string().contains("paper-5.2"), "{error}");
        }
    }
}
