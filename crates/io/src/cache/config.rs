//! The configuration of a cache, and its errors.
//!
//! Input: an operator's settings. Output: the same, validated. Invariant: a setting takes effect with the call that
//! sets it.

use crate::error::CacheError;
use headwater_host::clock::Nanos;

/// The time at which a write completes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WritePolicy {
    /// Completion from the cache. The data reach the device by age, by the share of dirty pages, or with a flush.
    #[default]
    Back,
    /// Completion after the device has the data.
    Through,
}

/// The threads that do the work of a cache that no call causes: write-back by age, and the polls for its completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackgroundWork {
    /// A thread of the cache, which sleeps while no page is dirty.
    #[default]
    Thread,
    /// The threads that call: without calls nothing is written back.
    Callers,
}

/// The settings of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// The time at which a write completes.
    pub policy: WritePolicy,
    /// The pages in the cache, rounded up to whole blocks of memory.
    pub pages: usize,
    /// The pages of one block of memory, by which the cache grows and shrinks: a power of two.
    pub block_pages: usize,
    /// The percentage of dirty pages above which pages are written back in the background.
    pub dirty_background: u8,
    /// The most dirty pages in percent; a write that needs more waits.
    pub dirty_max: u8,
    /// The age at which a dirty page is written back.
    pub dirty_age: Nanos,
    /// The pages of the largest prefetch; 0 for none.
    pub prefetch_pages: u32,
    /// The most write-backs in flight.
    pub write_backs: u32,
    /// The threads that write back without a call. A [`BlockCache`](super::BlockCache) has no thread of its own: a
    /// [`CachedHandle`](crate::CachedHandle) starts it.
    pub background: BackgroundWork,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            policy: WritePolicy::Back,
            pages: 16_384,
            block_pages: 512,
            dirty_background: 10,
            dirty_max: 40,
            dirty_age: Nanos::from_millis(5_000),
            prefetch_pages: 128,
            write_backs: 16,
            background: BackgroundWork::Thread,
        }
    }
}

/// The fewest pages of a cache.
pub const PAGES_MIN: usize = 8;

impl CacheConfig {
    pub(super) fn check(&self) -> Result<(), CacheError> {
        let pages = self.pages;
        if !(PAGES_MIN..=super::index::FRAMES_MAX).contains(&pages) {
            return Err(CacheError::Pages { pages, least: PAGES_MIN, most: super::index::FRAMES_MAX });
        }
        if !self.block_pages.is_power_of_two() || self.block_pages > super::index::FRAMES_MAX {
            return Err(CacheError::BlockPages { block_pages: self.block_pages });
        }
        let shares = self.dirty_background <= self.dirty_max && (1..=90).contains(&self.dirty_max);
        if !shares || self.write_backs == 0 {
            let Self { dirty_background, dirty_max: dirty_most, write_backs, .. } = *self;
            return Err(CacheError::Dirty { dirty_background, dirty_most, write_backs });
        }
        Ok(())
    }

    /// Returns the blocks of memory for this many pages.
    pub(super) fn blocks(&self, pages: usize) -> usize {
        pages.div_ceil(self.block_pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictory_settings_are_refused() {
        let good = CacheConfig::default();
        good.check().unwrap();
        let bad = [
            CacheConfig { pages: 7, ..good },
            CacheConfig { pages: usize::MAX, ..good },
            CacheConfig { block_pages: 3, ..good },
            CacheConfig { block_pages: 0, ..good },
            CacheConfig { dirty_background: 50, ..good },
            CacheConfig { dirty_max: 100, ..good },
            CacheConfig { write_backs: 0, ..good },
        ];
        for config in bad {
            assert!(config.check().is_err(), "{config:?}");
        }
    }
}
