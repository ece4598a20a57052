//! What a cache counts.
//!
//! In: events. Out: sums since the cache was made, and how things stand. Invariant: sums only grow.

/// Sums since the cache was made, and how things stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStatistics {
    /// Pages that were asked for and were here.
    pub hits: u64,
    /// Pages that were asked for and had to come from the device, or were on their way.
    pub misses: u64,
    /// Pages that were read before they were asked for.
    pub ahead_read: u64,
    /// Of those, pages that were asked for later.
    pub ahead_used: u64,
    /// Of those, pages that went without having been asked for.
    pub ahead_wasted: u64,
    /// Transfers that wrote pages back.
    pub write_backs: u64,
    /// Pages in them.
    pub pages_written: u64,
    /// Pages that could not be written back, each time one could not.
    pub write_failures: u64,
    /// Reads that failed.
    pub read_failures: u64,
    /// Pages that made room for others.
    pub evictions: u64,
    /// Answers from below that answer nothing.
    pub strays: u64,
    /// Bytes in pages that the device does not have yet, in whole pages.
    pub dirty_bytes: u64,
    /// Bytes in pages that are here, in whole pages.
    pub resident_bytes: u64,
    /// Bytes that the cache has room for.
    pub capacity_bytes: u64,
}
