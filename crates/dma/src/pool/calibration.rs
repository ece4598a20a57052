//! Which tier serves which size: copy or pin, as measured on this machine, or as somebody says.
//!
//! In: [`MemoryCosts`] of this host, m, and what the operator asked for. Out: a [`Choice`] with its reasons. Invariant: a
//! request is never imported where copying it was measured to be cheaper.
//!
//! There is one way to say so for everything in the process: [`TIERS_VARIABLE`], unless a pool was told its borders when it
//! was opened. [`Choice::of`] is what everybody asks.
//!
//! The rule of `calibrated`. Small: one page, which is one entry of a PRP list, as long as copying a page is cheaper than
//! every way of pinning it; else none. Large: from m on, since such a request would fill a chunk by itself. Import: the
//! smallest measured size from which on, up to the largest, making the caller's resident memory ready was cheaper than
//! copying as much to memory that is ready, both with cold caches; never, if that was not seen.

use super::{PoolConfig, TierBorders};
use headwater_host::calibration::memory::{MemoryCost, MemoryCosts};
use headwater_host::clock::Clock;
use std::fmt;
use std::sync::OnceLock;

/// Overrides what was measured: `calibrated`, `paper-4.1`, `paper-5.2`, or `SMALL:LARGE` in bytes.
pub const TIERS_VARIABLE: &str = "HEADWATER_TIERS";

/// A page, and the longest small request that is chosen.
const SMALL: usize = 4_096;

/// A way to make memory that is there ready for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Locking it.
    Lock,
    /// Registering it with `io_uring`, in pages of 4 KiB.
    RegisterSmall,
    /// Registering it with `io_uring`, in transparent huge pages.
    RegisterHuge,
}

impl Way {
    /// Every way.
    pub const ALL: [Self; 3] = [Self::Lock, Self::RegisterSmall, Self::RegisterHuge];

    /// How memory that a caller brings is made ready on this host: registered where `io_uring` works, locked else.
    #[must_use]
    pub fn usual(costs: &MemoryCosts) -> Self {
        let registers = costs.rows.iter().any(|row| row.register_small_ns.is_some());
        if registers { Self::RegisterSmall } else { Self::Lock }
    }

    /// What it costs in a row.
    #[must_use]
    pub fn cost(self, row: &MemoryCost) -> Option<u64> {
        match self {
            Self::Lock => row.lock_resident_ns,
            Self::RegisterSmall => row.register_small_ns,
            Self::RegisterHuge => row.register_huge_ns,
        }
    }

    /// From how many bytes on it was cheaper than a cold copy, at every larger size too.
    #[must_use]
    pub fn wins_from(self, costs: &MemoryCosts) -> Option<usize> {
        let wins = |row: &&MemoryCost| matches!((self.cost(row), row.copy_cold_ns), (Some(pin), Some(copy)) if pin < copy);
        let first = costs.rows.iter().rev().take_while(wins).last()?;
        usize::try_from(first.bytes).ok()
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lock => "locking it",
            Self::RegisterSmall => "registering it in 4 KiB pages",
            Self::RegisterHuge => "registering it in huge pages",
        })
    }
}

/// Who chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChosenBy {
    /// What was measured.
    Calibration,
    /// Section 4.1 of the paper.
    Paper41,
    /// Section 5.2 of the paper.
    Paper52,
    /// The operator, by number.
    Numbers,
}

impl fmt::Display for ChosenBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Calibration => "calibrated",
            Self::Paper41 => "paper-4.1",
            Self::Paper52 => "paper-5.2",
            Self::Numbers => "as told",
        })
    }
}

/// The borders, and from where on the caller's own memory is used in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Of the tiers.
    pub borders: TierBorders,
    /// Memory that the caller brings is used in place from so many bytes on, and copied below; `None` is never.
    pub import_min: Option<usize>,
    /// Who chose.
    pub chosen_by: ChosenBy,
}

/// The override is not one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{TIERS_VARIABLE}={text} names no borders: say calibrated, paper-4.1, paper-5.2, or SMALL:LARGE in bytes with SMALL below LARGE"
)]
pub struct NotBorders {
    /// What was said.
    pub text: String,
}

/// What [`TIERS_VARIABLE`] says in the environment of this process.
#[must_use]
pub fn told() -> Option<String> {
    std::env::var_os(TIERS_VARIABLE).map(|value| value.to_string_lossy().into_owned())
}

/// Whether [`TIERS_VARIABLE`] says something that can be.
///
/// # Errors
/// [`NotBorders`] if it does not.
pub fn check_told() -> Result<(), NotBorders> {
    told().map_or(Ok(()), |text| TierBorders::named(&text).map(|_| ()))
}

impl Choice {
    /// For a pool: the borders that it was told, else those that [`TIERS_VARIABLE`] names, else what was measured, which
    /// takes less than 50 ms if that was never done on this machine.
    ///
    /// # Errors
    /// [`NotBorders`] where the variable names none.
    pub fn of(config: &PoolConfig) -> Result<Self, NotBorders> {
        if let Some(borders) = config.tiers {
            return Ok(Self::told(borders));
        }
        if let Some(borders) = told().map_or(Ok(None), |text| TierBorders::named(&text))? {
            return Ok(Self::told(borders));
        }
        static COSTS: OnceLock<MemoryCosts> = OnceLock::new();
        let costs = COSTS.get_or_init(|| MemoryCosts::load_or_measure(&Clock::start()));
        Ok(Self::calibrated(costs, config.chunk, Way::usual(costs)))
    }

    /// The paper knows no import: its presets and plain numbers import from where requests are large.
    fn told(borders: TierBorders) -> Self {
        let chosen_by = match borders {
            TierBorders::PAPER_4_1 => ChosenBy::Paper41,
            TierBorders::PAPER_5_2 => ChosenBy::Paper52,
            _ => ChosenBy::Numbers,
        };
        Self { borders, import_min: Some(borders.large_min), chosen_by }
    }

    /// What the costs say, for chunks of `chunk` bytes, with memory that is imported in the given way.
    #[must_use]
    pub fn calibrated(costs: &MemoryCosts, chunk: usize, way: Way) -> Self {
        let copies = |row: &MemoryCost| {
            let pin = Way::ALL.into_iter().filter_map(|way| way.cost(row)).min();
            row.copy_hot_ns.is_some_and(|copy| pin.is_none_or(|pin| copy <= pin))
        };
        let page = costs.rows.first();
        let small_max = if page.is_none_or(copies) { SMALL } else { 0 };
        let borders = TierBorders { small_max, large_min: chunk.max(small_max + 1) };
        let import_min = way.wins_from(costs).map(|bytes| bytes.max(small_max + 1));
        Self { borders, import_min, chosen_by: ChosenBy::Calibration }
    }

    /// What the operator asked for by [`TIERS_VARIABLE`], or what the costs say if that is nothing or `calibrated`.
    ///
    /// # Errors
    /// [`NotBorders`] for a text that names none.
    pub fn resolve(
        text: Option<&str>,
        costs: &MemoryCosts,
        chunk: usize,
        way: Way,
    ) -> Result<Self, NotBorders> {
        let told = text.map_or(Ok(None), TierBorders::named)?;
        Ok(told.map_or_else(|| Self::calibrated(costs, chunk, way), Self::told))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_host::calibration::Origin;
    use headwater_host::clock::Nanos;

    const CHUNK: usize = 4 << 20;

    /// Rows of bytes, hot copy, cold copy, lock, register.
    fn costs(rows: &[[u64; 5]]) -> MemoryCosts {
        let rows = rows.iter().map(|&[bytes, hot, cold, lock, register]| MemoryCost {
            bytes,
            copy_hot_ns: Some(hot),
            copy_cold_ns: Some(cold),
            lock_resident_ns: Some(lock),
            register_small_ns: Some(register),
            ..MemoryCost::default()
        });
        MemoryCosts { rows: rows.collect(), origin: Origin::Cached, took: Nanos::ZERO }
    }

    /// As measured on the machine of the reference: a copy of 4 KiB beats every pin, registering wins from 16 KiB on.
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
    fn memory_is_imported_only_where_that_was_cheaper_than_copying() {
        let choice = Choice::calibrated(&measured(), CHUNK, Way::RegisterSmall);
        assert_eq!(choice.borders, TierBorders { small_max: 4_096, large_min: CHUNK });
        assert_eq!(choice.import_min, Some(16 << 10));
        assert_eq!(Choice::calibrated(&measured(), CHUNK, Way::Lock).import_min, None);
        // Not measured is not cheaper.
        assert_eq!(Choice::calibrated(&measured(), CHUNK, Way::RegisterHuge).import_min, None);
    }

    #[test]
    fn one_lucky_size_below_a_loss_proves_nothing() {
        let costs = costs(&[[4_096, 1, 900, 1, 800], [16_384, 1, 900, 1, 1_000], [65_536, 1, 900, 1, 800]]);
        assert_eq!(Way::RegisterSmall.wins_from(&costs), Some(65_536));
    }

    #[test]
    fn where_a_page_is_pinned_faster_than_copied_there_is_no_static_tier() {
        let costs = costs(&[[4_096, 900, 900, 5_000, 800]]);
        let choice = Choice::calibrated(&costs, CHUNK, Way::RegisterSmall);
        assert_eq!((choice.borders.small_max, choice.import_min), (0, Some(4_096)));
    }

    #[test]
    fn a_machine_that_could_not_measure_copies() {
        let choice = Choice::calibrated(&MemoryCosts::default(), CHUNK, Way::RegisterHuge);
        assert_eq!(choice.borders, TierBorders { small_max: 4_096, large_min: CHUNK });
        assert_eq!(choice.import_min, None);
    }

    #[test]
    fn the_papers_two_settings_are_presets_and_contradict_each_other() {
        let of = |text| Choice::resolve(Some(text), &measured(), CHUNK, Way::Lock).unwrap().borders;
        // Section 4.1: "greater than or equal to 4 MB". Section 5.2: "larger than 128 KB".
        assert_eq!(of("paper-4.1"), TierBorders { small_max: 4_096, large_min: 4 << 20 });
        assert_eq!(of("paper-5.2"), TierBorders { small_max: 4_096, large_min: (128 << 10) + 1 });
    }

    #[test]
    fn a_pool_that_was_told_its_borders_asks_nobody() {
        let of = |tiers| Choice::of(&PoolConfig { tiers: Some(tiers), ..PoolConfig::default() }).unwrap();
        let told = of(TierBorders::PAPER_5_2);
        assert_eq!((told.chosen_by, told.import_min), (ChosenBy::Paper52, Some((128 << 10) + 1)));
        assert_eq!(of(TierBorders { small_max: 0, large_min: 9 }).chosen_by, ChosenBy::Numbers);
    }

    #[test]
    fn the_override_wins_and_nonsense_is_told() {
        let of = |text| Choice::resolve(text, &measured(), CHUNK, Way::RegisterSmall);
        assert_eq!(of(None), Ok(Choice::calibrated(&measured(), CHUNK, Way::RegisterSmall)));
        assert_eq!(of(Some("calibrated")), of(None));
        let told = of(Some("512: 65536")).unwrap();
        assert_eq!(told.borders, TierBorders { small_max: 512, large_min: 65_536 });
        assert_eq!((told.import_min, told.chosen_by), (Some(65_536), ChosenBy::Numbers));
        for nonsense in ["", "paper", "4096", "9:9", "9:8", "-1:8", "1:2:3", "x:y"] {
            let error = of(Some(nonsense)).unwrap_err();
            assert!(error.to_string().contains("paper-5.2"), "{error}");
        }
    }
}
