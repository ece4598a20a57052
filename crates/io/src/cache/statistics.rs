//! The counters of a cache.
//!
//! Input: events. Output: totals since the cache's creation, and its current state. Invariant: totals only grow.

/// The totals since the cache's creation, and its current state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStatistics {
    /// Pages accessed and found in the cache.
    pub hits: u64,
    /// Pages accessed that had to be read from the device, or were being read.
    pub misses: u64,
    /// Pages prefetched.
    pub prefetched: u64,
    /// Prefetched pages that were used later.
    pub prefetch_used: u64,
    /// Prefetched pages that were evicted unused.
    pub prefetch_wasted: u64,
    /// Transfers that wrote pages back.
    pub write_backs: u64,
    /// Pages in these transfers.
    pub pages_written: u64,
    /// Failed write-backs of pages, counted for each attempt.
    pub write_failures: u64,
    /// Reads that failed.
    pub read_failures: u64,
    /// Pages evicted.
    pub evictions: u64,
    /// Completions of the backing device that match no transfer.
    pub unmatched_completions: u64,
    /// Bytes of dirty pages, in whole pages.
    pub dirty_bytes: u64,
    /// Bytes of cached pages, in whole pages.
    pub resident_bytes: u64,
    /// Bytes that the cache has room for.
    pub capacity_bytes: u64,
}
