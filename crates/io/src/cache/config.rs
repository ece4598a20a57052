//! The configuration of a cache, and its errors.
//!
//! Input: an operator's settings. Output: the same, validated. Invariant: a setting takes effect with the call that
//! sets it.

use headwater_host::clock::Nanos;
use headwater_nvme::spec::status::Status;

/// The time at which a write completes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WritePolicy {
    /// Completion from the cache. The data reach the device by age, by the share of dirty pages, or with a flush.
    #[default]
    Back,
    /// Completion after the device has the data.
    Through,
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
    pub dirty_most: u8,
    /// The age at which a dirty page is written back.
    pub dirty_age: Nanos,
    /// The pages of the largest prefetch; 0 for none.
    pub ahead_pages: u32,
    /// The most write-backs in flight.
    pub write_backs: u32,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            policy: WritePolicy::Back,
            pages: 16_384,
            block_pages: 512,
            dirty_background: 10,
            dirty_most: 40,
            dirty_age: Nanos::from_millis(5_000),
            ahead_pages: 128,
            write_backs: 16,
        }
    }
}

/// The fewest pages of a cache.
pub const PAGES_LEAST: usize = 8;

impl CacheConfig {
    pub(super) fn check(&self) -> Result<(), CacheError> {
        let pages = self.pages;
        if !(PAGES_LEAST..=super::index::FRAMES_MAX).contains(&pages) {
            return Err(CacheError::Pages { pages, least: PAGES_LEAST, most: super::index::FRAMES_MAX });
        }
        if !self.block_pages.is_power_of_two() || self.block_pages > super::index::FRAMES_MAX {
            return Err(CacheError::BlockPages { block_pages: self.block_pages });
        }
        let shares = self.dirty_background <= self.dirty_most && (1..=90).contains(&self.dirty_most);
        if !shares || self.write_backs == 0 {
            let Self { dirty_background, dirty_most, write_backs, .. } = *self;
            return Err(CacheError::Dirty { dirty_background, dirty_most, write_backs });
        }
        Ok(())
    }

    /// Returns the blocks of memory for this many pages.
    pub(super) fn blocks(&self, pages: usize) -> usize {
        pages.div_ceil(self.block_pages)
    }
}

/// A refusal of a cache, which had no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// An invalid device shape.
    #[error(
        "cannot cache {device_bytes} bytes in blocks of {block_bytes}; use blocks of a power of two up to 4096 bytes"
    )]
    Shape {
        /// The device's length.
        device_bytes: u64,
        /// The device's block size.
        block_bytes: u32,
    },
    /// Too few or too many pages.
    #[error("the cache has {pages} pages; set {least} to {most}")]
    Pages {
        /// The pages given.
        pages: usize,
        /// The fewest.
        least: usize,
        /// The most.
        most: usize,
    },
    /// A block of memory that is not a power of two.
    #[error("a memory block has {block_pages} pages; set a power of two")]
    BlockPages {
        /// The pages given.
        block_pages: usize,
    },
    /// Limits of dirty pages that contradict each other, or no write-backs.
    #[error(
        "dirty limits of {dirty_background} and {dirty_most} percent with {write_backs} write-backs; set at most 90, \
         the first at most the second, and at least one write-back"
    )]
    Dirty {
        /// The background limit.
        dirty_background: u8,
        /// The limit of dirty pages.
        dirty_most: u8,
        /// The write-backs in flight.
        write_backs: u32,
    },
    /// A buffer too short for a block of memory.
    #[error("a memory block has {bytes} bytes and needs {needed}; allocate as many as requested")]
    Memory {
        /// The bytes given.
        bytes: usize,
        /// The bytes needed.
        needed: usize,
    },
    /// A range beyond the end of the device.
    #[error("{bytes} bytes at offset {offset} exceed the device of {device_bytes} bytes; stay inside it")]
    Range {
        /// The start of the range.
        offset: u64,
        /// The length of the range.
        bytes: u64,
        /// The length of the device.
        device_bytes: u64,
    },
    /// A direct request that is not whole blocks.
    #[error(
        "{bytes} bytes at offset {offset} are not whole blocks of {block_bytes} bytes; use the cached path"
    )]
    Misaligned {
        /// The start of the range.
        offset: u64,
        /// The length of the range.
        bytes: u64,
        /// The bytes of a block.
        block_bytes: u32,
    },
    /// Another shrink in progress.
    #[error("the cache is already shrinking; wait until it has finished")]
    Shrinking,
    /// A user that has left the cache.
    #[error("this user has left the cache; join again")]
    Left,
    /// The device is gone.
    #[error("the device is gone: {0}; open it again")]
    Gone(Status),
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
            CacheConfig { dirty_most: 100, ..good },
            CacheConfig { write_backs: 0, ..good },
        ];
        for config in bad {
            assert!(config.check().is_err(), "{config:?}");
        }
    }
}
