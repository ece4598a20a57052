//! What the pool has done and holds: numbers for metrics, `doctor` and whoever tunes it.
//!
//! In: counters that each arena and each thread keeps for itself. Out: a [`Statistics`], read at one moment. Invariant:
//! reading never stops an owner of a cache, and counting never shares a cache line between threads on the cached path.

use super::placement::NodeId;
use headwater_host::clock::Nanos;

/// Requests by the step that served them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// By the calling thread's cache.
    pub cache: u64,
    /// By a free run.
    pub contiguous: u64,
    /// By several free runs.
    pub scattered: u64,
    /// By memory pinned for it.
    pub grown: u64,
    /// After waiting in line.
    pub waited: u64,
}

impl Steps {
    /// Requests served in all.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.cache + self.contiguous + self.scattered + self.grown + self.waited
    }

    /// Thousandths of the requests that the caches served; 0 if there was none.
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

/// Buckets of a [`Histogram`].
pub const BUCKETS: usize = 40;

/// Spans of time by powers of two: bucket `i` counts those from 2^(i-1) up to 2^i - 1 nanoseconds, bucket 0 those of zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// The counts. The last bucket has everything longer, too.
    pub buckets: [u64; BUCKETS],
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS] }
    }
}

impl Histogram {
    /// Counts one span.
    pub fn record(&mut self, span: Nanos) {
        let bucket = (u64::BITS - span.0.leading_zeros()) as usize;
        self.buckets[bucket.min(BUCKETS - 1)] += 1;
    }

    /// How many were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// A span that at least `per_mille` thousandths of those counted do not pass: the upper end of its bucket. Zero if
    /// nothing was counted.
    #[must_use]
    pub fn at_most(&self, per_mille: u64) -> Nanos {
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

/// One node's part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatistics {
    /// Which.
    pub node: NodeId,
    /// Chunks that are pinned.
    pub chunks: usize,
    /// Bytes of these.
    pub pinned_bytes: u64,
    /// Bytes of chunks of which nothing is given out.
    pub empty_bytes: u64,
    /// Bytes that are neither given out nor in a cache.
    pub free_bytes: u64,
    /// Bytes of the longest free run.
    pub largest_free_bytes: u64,
    /// Bytes by kind of page, the largest kind first, as in `Backing::ALL`.
    pub backing_bytes: [u64; 4],
}

/// The pool at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// M.
    pub cap_bytes: u64,
    /// m for the next chunk.
    pub chunk_bytes: u64,
    /// Pinned by the static tier, the pool and the dynamic tier.
    pub tier_bytes: [u64; 3],
    /// In the hands of callers and devices.
    pub in_use_bytes: u64,
    /// In the caches of threads.
    pub cached_bytes: u64,
    /// Lent and never taken back.
    pub quarantined_bytes: u64,
    /// Such buffers.
    pub quarantined_buffers: u64,
    /// Held for good by a device or the kernel that would not let go.
    pub stuck_bytes: u64,
    /// Requests by the step that served them.
    pub steps: Steps,
    /// Requests refused.
    pub refused: u64,
    /// How long pinning took, for each chunk.
    pub pinning: Histogram,
    /// Chunks pinned since the pool was opened.
    pub grown_chunks: u64,
    /// Chunks unpinned since.
    pub retired_chunks: u64,
    /// Requests in line now.
    pub waiting: u64,
    /// Requests that gave up waiting.
    pub gave_up: u64,
    /// By node.
    pub nodes: Vec<NodeStatistics>,
}

impl Statistics {
    /// External fragmentation in thousandths: 1 - longest free run / free bytes, the largest of all nodes; 0 when nothing
    /// is free.
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
    fn a_histogram_names_the_end_of_the_bucket() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.at_most(500), Nanos::ZERO);
        for nanos in [0, 1, 2, 3, 1_000, u64::MAX] {
            histogram.record(Nanos(nanos));
        }
        assert_eq!(histogram.count(), 6);
        assert_eq!(histogram.at_most(500), Nanos(3));
        assert_eq!(histogram.at_most(800), Nanos(1_023));
        assert_eq!(histogram.at_most(1_000), Nanos((1 << (BUCKETS - 1)) - 1));
    }

    #[test]
    fn rates_of_nothing_are_zero() {
        assert_eq!(Steps::default().cache_per_mille(), 0);
        assert_eq!(Steps { cache: 9, contiguous: 1, ..Steps::default() }.cache_per_mille(), 900);
    }
}
