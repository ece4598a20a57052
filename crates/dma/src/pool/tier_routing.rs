//! The tier of each request, decided by its length in whole pages.
//!
//! Input: the [`TierChoice`] of a pool. Output: a [`PinTier`] for every request. Invariant: the pages of a request alone
//! decide, because memory is pinned in pages: a limit inside a page counts for the whole page.

use super::budget::PinTier;
use super::calibration::TierChoice;
use super::config::{ConfigError, PoolConfig, TierThresholds};
use headwater_host::reservation::PAGE_BYTES;
use headwater_host::width::narrow;

/// The limits of the tiers in pages, and their origin.
#[derive(Clone, Copy, Debug)]
pub(super) struct TierRouting {
    pub(super) choice: TierChoice,
    /// Pages of the largest request of the static tier; 0 for a pool without one.
    pub(super) small_pages: u32,
    /// Pages of the smallest request of the dynamic tier.
    pub(super) large_pages: u32,
}

impl TierRouting {
    /// Resolves the limits of a pool. Costs are measured only for a pool with a static tier, if they never were on this
    /// machine.
    pub(super) fn of(config: &PoolConfig) -> Result<Self, ConfigError> {
        let choice = TierChoice::of(config).map_err(|_| ConfigError::TiersVariable)?;
        Ok(Self::new(choice, config.static_bytes))
    }

    fn new(choice: TierChoice, static_bytes: usize) -> Self {
        let TierThresholds { small_max, large_min } = choice.thresholds;
        let pages = |bytes: usize| narrow::<_, u32>(bytes.div_ceil(PAGE_BYTES).min(u32::MAX as usize));
        let small_pages = if static_bytes == 0 { 0 } else { pages(small_max) };
        Self { choice, small_pages, large_pages: pages(large_min).max(small_pages + 1) }
    }

    /// Returns the tier for a request of `pages` pages.
    #[inline]
    pub(super) fn tier(&self, pages: u32) -> PinTier {
        if pages <= self.small_pages {
            PinTier::Static
        } else if pages < self.large_pages {
            PinTier::Pool
        } else {
            PinTier::Dynamic
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn tiers(thresholds: TierThresholds, static_bytes: usize) -> TierRouting {
        let config = PoolConfig { tiers: Some(thresholds.into()), static_bytes, ..PoolConfig::default() };
        TierRouting::of(&config).unwrap()
    }

    #[test]
    fn paper_limits_route_by_whole_pages() {
        let paper = tiers(TierThresholds::PAPER_5_2, 1 << 20);
        let of = |bytes: usize| paper.tier(u32::try_from(bytes.div_ceil(PAGE_BYTES)).unwrap());
        assert_eq!([of(1), of(4_096)], [PinTier::Static; 2]);
        assert_eq!([of(4_097), of(128 << 10)], [PinTier::Pool; 2]);
        assert_eq!([of((128 << 10) + 1), of(1 << 30)], [PinTier::Dynamic; 2]);
        let paper = tiers(TierThresholds::PAPER_4_1, 1 << 20);
        assert_eq!((paper.tier(1_023), paper.tier(1_024)), (PinTier::Pool, PinTier::Dynamic));
    }

    #[test]
    fn limit_inside_a_page_counts_for_the_page() {
        let numbers = tiers(TierThresholds { small_max: 512, large_min: 600 }, 1 << 20);
        assert_eq!((numbers.tier(1), numbers.tier(2)), (PinTier::Static, PinTier::Dynamic));
    }

    #[test]
    fn pool_without_static_blocks_has_no_small_requests() {
        let paper = tiers(TierThresholds::PAPER_5_2, 0);
        assert_eq!(paper.tier(1), PinTier::Pool);
    }
}
