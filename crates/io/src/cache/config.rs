//! How a cache behaves, and what it refuses.
//!
//! In: an operator's wishes. Out: the same, found possible. Invariant: every number here is in force from the call that
//! sets it on.

use headwater_host::clock::Nanos;
use headwater_nvme::spec::status::Status;

/// When a write is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WritePolicy {
    /// Once it is in the cache. It reaches the device by its age, by the share of dirty pages, or with a flush.
    #[default]
    Back,
    /// Once the device has it.
    Through,
}

/// How a cache behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// When a write is answered.
    pub policy: WritePolicy,
    /// Pages in the cache, rounded up to whole blocks of memory.
    pub pages: usize,
    /// Pages of one block of memory, by which the cache grows and shrinks: a power of two.
    pub block_pages: usize,
    /// Of 100 pages, how many may be dirty before pages are written back without being asked for.
    pub dirty_background: u8,
    /// Of 100 pages, how many may be dirty at all; a write that needs more waits.
    pub dirty_most: u8,
    /// How old a dirty page may become before it is written back.
    pub dirty_age: Nanos,
    /// Pages of the largest read-ahead; 0 for none.
    pub ahead_pages: u32,
    /// Write-backs that are under way at a time.
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

/// Fewest pages of a cache.
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

    /// Blocks of memory for so many pages.
    pub(super) fn blocks(&self, pages: usize) -> usize {
        pages.div_ceil(self.block_pages)
    }
}

/// What a cache refuses. Nothing happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// Not the shape of a device.
    #[error(
        "a device of {device_bytes} bytes in blocks of {block_bytes} cannot be cached; blocks are powers of two up to 4096 bytes"
    )]
    Shape {
        /// Its length.
        device_bytes: u64,
        /// Its block.
        block_bytes: u32,
    },
    /// Too few pages, or too many.
    #[error("a cache of {pages} pages; give {least} to {most}")]
    Pages {
        /// What was asked for.
        pages: usize,
        /// The fewest.
        least: usize,
        /// The most.
        most: usize,
    },
    /// A block of memory that is no power of two.
    #[error("blocks of {block_pages} pages; give a power of two")]
    BlockPages {
        /// What was asked for.
        block_pages: usize,
    },
    /// Shares of dirty pages that contradict each other, or no write-back at all.
    #[error(
        "dirty pages from {dirty_background} to {dirty_most} in 100 by {write_backs} write-backs; give at most 90, the second at least the first, and one write-back"
    )]
    Dirty {
        /// From where on they are written back.
        dirty_background: u8,
        /// How many there may be.
        dirty_most: u8,
        /// Write-backs at a time.
        write_backs: u32,
    },
    /// A buffer from which no block of memory can be cut.
    #[error("a block of {bytes} bytes for {needed} bytes of pages")]
    Memory {
        /// What it has.
        bytes: usize,
        /// What is needed.
        needed: usize,
    },
    /// A range beyond the end of the device.
    #[error("{bytes} bytes at {offset} of a device of {device_bytes} bytes")]
    Range {
        /// Where it starts.
        offset: u64,
        /// How long it is.
        bytes: u64,
        /// How long the device is.
        device_bytes: u64,
    },
    /// Bytes that are no whole blocks, past the cache.
    #[error("{bytes} bytes at {offset} are no whole blocks of {block_bytes} bytes; go through the cache")]
    Misaligned {
        /// Where they start.
        offset: u64,
        /// How many they are.
        bytes: u64,
        /// Bytes of a block.
        block_bytes: u32,
    },
    /// Another change of size is under way.
    #[error("the cache is shrinking already; wait for it")]
    Shrinking,
    /// Who asks has left.
    #[error("this user of the cache has left it")]
    Left,
    /// The way to the device is gone.
    #[error("the device is gone: {0}")]
    Gone(Status),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_contradicts_itself_is_refused_with_the_numbers() {
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
