//! Statistics of the pool, for metrics, `doctor` and tuning.
//!
//! Input: counters that each arena and each thread keeps for itself. Output: a [`PoolStatistics`], read at one moment.
//! Invariant: reading never stops the owner of a cache, and counting never shares a cache line between threads on the
//! cached path.

use super::budget::PinTier;
use super::calibration::TierChoice;
use super::placement::NodeId;
use headwater_host::clock::Nanos;

/// Numbers of requests by the step that served them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServeCounts {
    /// Served by the calling thread's cache.
    pub cache: u64,
    /// Served by a free run.
    pub contiguous: u64,
    /// Served by several free runs.
    pub scattered: u64,
    /// Served by memory pinned for them.
    pub grown: u64,
    /// Served after waiting.
    pub waited: u64,
}

impl ServeCounts {
    /// Returns the requests served in total.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.cache + self.contiguous + self.scattered + self.grown + self.waited
    }

    /// Returns the thousandths of the requests that the caches served; 0 if there were none.
    #[must_use]
    pub fn cache_per_mille(&self) -> u64 {
        (self.cache * 1_000).checked_div(self.total()).unwrap_or(0)
    }

    pub(super) fn add(&mut self, other: Self) {
        self.cache += other.cache;
        self.contiguous += other.contiguous;
        self.scattered += other.scattered;
        self.grown += other.grown;
        self.waited += other.waited;
    }
}

/// Numbers of requests by tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierCounts {
    /// Served by the static tier, the pool and the dynamic tier, in the order of [`PinTier::ALL`]. A hit of a thread's
    /// cache counts for the tier of its length.
    pub served: [u64; 3],
    /// Small requests that found no free slot, and large ones for which the cap had no room, served by chunks of the
    /// pool. `served` counts them for the pool.
    pub overflowed: u64,
    /// Pieces of the caller's memory that were pinned in place.
    pub imported: u64,
}

impl TierCounts {
    /// Returns the requests that a tier served.
    #[must_use]
    pub fn of(&self, tier: PinTier) -> u64 {
        self.served[tier as usize]
    }

    pub(super) fn count(&mut self, wanted: PinTier, by: PinTier) {
        self.served[by as usize] += 1;
        self.overflowed += u64::from(wanted != by);
    }

    pub(super) fn add(&mut self, other: Self) {
        self.served.iter_mut().zip(other.served).for_each(|(mine, theirs)| *mine += theirs);
        self.overflowed += other.overflowed;
        self.imported += other.imported;
    }
}

/// Number of buckets of a [`DurationHistogram`].
pub const BUCKETS: usize = 40;

/// A histogram of durations by powers of two: bucket `i` counts those from 2^(i-1) to 2^i - 1 nanoseconds, bucket 0
/// those of zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DurationHistogram {
    /// The counts. The last bucket includes everything longer.
    pub buckets: [u64; BUCKETS],
}

impl Default for DurationHistogram {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS] }
    }
}

impl DurationHistogram {
    /// Counts one duration.
    pub fn record(&mut self, span: Nanos) {
        let bucket = (u64::BITS - span.0.leading_zeros()) as usize;
        self.buckets[bucket.min(BUCKETS - 1)] += 1;
    }

    /// Returns the number of durations counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Returns the upper bound of the bucket that contains the `per_mille` thousandths quantile. Zero if nothing was
    /// counted.
    #[must_use]
    pub fn quantile_bound(&self, per_mille: u64) -> Nanos {
        let wanted = (self.count() * per_mille).div_ceil(1_000);
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted && seen > 0 {
                return Nanos((1_u64 << bucket) - 1);
            }
        }
        Nanos::ZERO
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.buckets.iter_mut().zip(other.buckets).for_each(|(mine, theirs)| *mine += theirs);
    }
}

/// Statistics of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatistics {
    /// The node.
    pub node: NodeId,
    /// Pinned chunks.
    pub chunks: usize,
    /// Bytes of pinned chunks.
    pub pinned_bytes: u64,
    /// Bytes of chunks without a page in use.
    pub empty_bytes: u64,
    /// Bytes neither in use nor in a cache.
    pub free_bytes: u64,
    /// Bytes of the longest free run.
    pub largest_free_bytes: u64,
    /// Bytes by kind of page, the largest kind first, as in `Backing::ALL`.
    pub backing_bytes: [u64; 4],
}

/// Statistics of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolStatistics {
    /// M, the limit of pinned bytes.
    pub cap_bytes: u64,
    /// m, the size of the next chunk.
    pub chunk_bytes: u64,
    /// Bytes pinned by the static tier, the pool and the dynamic tier.
    pub tier_bytes: [u64; 3],
    /// The limits of the tiers, and their origin.
    pub tier_choice: TierChoice,
    /// Requests by tier.
    pub tiers: TierCounts,
    /// Bytes of free slots of the static tier.
    pub static_free_bytes: u64,
    /// Bytes held by callers and devices.
    pub in_use_bytes: u64,
    /// Bytes in the caches of threads.
    pub cached_bytes: u64,
    /// Bytes lent and never returned.
    pub quarantined_bytes: u64,
    /// Buffers lent and never returned.
    pub quarantined_buffers: u64,
    /// Bytes lost because a device or the kernel did not release them.
    pub stuck_bytes: u64,
    /// Requests by the step that served them.
    pub steps: ServeCounts,
    /// Requests refused.
    pub refused: u64,
    /// Duration of pinning, for each chunk.
    pub pinning: DurationHistogram,
    /// Chunks pinned since the pool was opened.
    pub grown_chunks: u64,
    /// Chunks unpinned since the pool was opened.
    pub retired_chunks: u64,
    /// Requests waiting now.
    pub waiting: u64,
    /// Requests cancelled while waiting.
    pub cancelled: u64,
    /// Statistics by node.
    pub nodes: Vec<NodeStatistics>,
}

impl PoolStatistics {
    /// Returns the external fragmentation in thousandths: 1 - longest free run / free bytes, the largest of all nodes;
    /// 0 when nothing is free.
    #[must_use]
    pub fn fragmentation_per_mille(&self) -> u64 {
        let of = |node: &NodeStatistics| {
            let joined = (node.largest_free_bytes * 1_000).checked_div(node.free_bytes).unwrap_or(1_000);
            1_000 - joined
        };
        self.nodes.iter().map(of).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_upper_bound_of_its_bucket() {
        let mut histogram = DurationHistogram::default();
        assert_eq!(histogram.quantile_bound(500), Nanos::ZERO);
        for nanos in [0, 1, 2, 3, 1_000, u64::MAX] {
            histogram.record(Nanos(nanos));
        }
        assert_eq!(histogram.count(), 6);
        assert_eq!(histogram.quantile_bound(500), Nanos(3));
        assert_eq!(histogram.quantile_bound(800), Nanos(1_023));
        assert_eq!(histogram.quantile_bound(1_000), Nanos((1 << (BUCKETS - 1)) - 1));
    }

    #[test]
    fn rates_without_requests_are_zero() {
        assert_eq!(ServeCounts::default().cache_per_mille(), 0);
        assert_eq!(ServeCounts { cache: 9, contiguous: 1, ..ServeCounts::default() }.cache_per_mille(), 900);
    }
}
