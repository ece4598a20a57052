//! The properties of a job beside its steps: what it promises, and what the policy knows of its memories.
//!
//! Input: what the owner of a job states. Output: a guarantee that the engines give, and hints by which the policy chooses them.
//! Invariant: a hint that is wrong costs time and nothing else.

use super::policy::MoveDirection;
use headwater_host::calibration::Calibration;
use headwater_host::copy::STREAMING_BYTES_MIN;
use headwater_host::numa::NodeId;
use headwater_host::topology::LastLevelCache;

/// The guarantee that a job gives for what it wrote, when it has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MoveDurability {
    /// Other threads see the bytes.
    #[default]
    Visible,
    /// The bytes have left the caches: persistent memory keeps them when the power fails.
    Persistent,
}

/// The use of what a job wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheIntent {
    /// It is read soon: it stays in the cache, unless the job is persistent or the range is longer than the last-level cache.
    #[default]
    ReadSoon,
    /// It is not read soon: fills, copies from private memory, and copies without a checksum to shared memory pass the cache by
    /// from the [border](StreamingBorder) of the mover on.
    NotSoon,
}

/// The length from which a range may be longer than the last-level cache: below it none is.
const LONG_BYTES_MIN: usize = 1 << 20;

/// The length from which a copy by the CPU is faster past the cache than through it, if what it writes is not read soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamingBorder(usize);

impl StreamingBorder {
    /// Returns the border of a calibration (`Calibration::streaming_copy_from_bytes`): `u64::MAX` if no copy is faster past the
    /// cache. Below [`STREAMING_BYTES_MIN`] no kernel passes the cache by, so that no border lies there.
    #[must_use]
    pub fn from_bytes(bytes: u64) -> Self {
        Self(usize::try_from(bytes).unwrap_or(usize::MAX).max(STREAMING_BYTES_MIN))
    }

    /// Returns the border that an earlier run measured on this machine; the default one if none did. Measures nothing.
    #[must_use]
    pub fn of_this_host() -> Self {
        let found = Calibration::cached();
        found.map_or_else(Self::default, |found| Self::from_bytes(found.streaming_copy_from_bytes))
    }

    /// Returns the length in bytes; `usize::MAX` if only what is longer than the last-level cache passes it by.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.0
    }

    /// Returns true if a range is written past the cache: it is not read soon and has the length of the border, or it is longer
    /// than the cache, so that its front would have left before its end is there, whatever the border is.
    #[inline]
    pub(super) fn is_passed(self, bytes: usize, intent: CacheIntent) -> bool {
        let is_long = bytes >= LONG_BYTES_MIN && bytes > last_level_cache_bytes();
        is_long || (intent == CacheIntent::NotSoon && bytes >= self.0)
    }
}

impl Default for StreamingBorder {
    /// Returns the border of a machine that was not calibrated: the shortest copy that the kernels make past the cache.
    fn default() -> Self {
        Self(STREAMING_BYTES_MIN)
    }
}

/// Returns the bytes of the last-level cache; the most there are if it is not known.
fn last_level_cache_bytes() -> usize {
    let found = LastLevelCache::of_this_machine().bytes();
    found.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(usize::MAX)
}

/// The NUMA nodes of a job's memories, where they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryNodes {
    /// The node of the bytes that it reads.
    pub source: Option<NodeId>,
    /// The node of the bytes that it writes.
    pub target: Option<NodeId>,
}

/// The kind of memory that a job reads. The kind that it writes follows from its durability.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceKind {
    /// DRAM.
    #[default]
    Dram,
    /// Persistent memory, which is read more slowly.
    Persistent,
}

impl SourceKind {
    /// Returns the direction of a job that reads this kind of memory.
    pub(super) const fn direction(self, durability: MoveDurability) -> MoveDirection {
        match (self, durability) {
            (Self::Dram, MoveDurability::Visible) => MoveDirection::BetweenDram,
            (Self::Dram, MoveDurability::Persistent) => MoveDirection::ToPersistent,
            (Self::Persistent, MoveDurability::Visible) => MoveDirection::FromPersistent,
            (Self::Persistent, MoveDurability::Persistent) => MoveDirection::BetweenPersistent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn border_bounds_what_passes_the_cache_unless_it_is_longer() {
        let passed = |border: StreamingBorder, bytes| {
            [CacheIntent::ReadSoon, CacheIntent::NotSoon].map(|intent| border.is_passed(bytes, intent))
        };
        let plain = StreamingBorder::default();
        assert_eq!(passed(plain, STREAMING_BYTES_MIN - 1), [false, false]);
        assert_eq!(passed(plain, STREAMING_BYTES_MIN), [false, true]);
        let calibrated = StreamingBorder::from_bytes(16_384);
        assert_eq!(passed(calibrated, 16_383), [false, false]);
        assert_eq!(passed(calibrated, 16_384), [false, true]);
        // What is read soon passes the cache by only if it does not fit.
        let fits = last_level_cache_bytes().max(LONG_BYTES_MIN - 1);
        assert!(!passed(calibrated, fits)[0]);
        let never = StreamingBorder::from_bytes(u64::MAX);
        assert_eq!(passed(never, fits.min(usize::MAX - 1)), [false, false]);
        // A calibration that found no border does not keep in the cache what does not fit.
        for border in [plain, calibrated, never] {
            if let Some(longer) = fits.checked_add(1) {
                assert_eq!(passed(border, longer), [true, true]);
            }
        }
        assert_eq!(StreamingBorder::from_bytes(0), plain);
    }
}
