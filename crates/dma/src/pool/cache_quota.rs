//! The limit for all caches of threads together, and its parts.
//!
//! Input: the bytes that a cache wants to keep. Output: a part of the limit. Invariants: the parts never exceed the limit,
//! as it was when they were given; while several threads have a part, none gets more than an equal share.
//!
//! Without equal shares the first thread would take the limit for itself, and every request of a later one would go to
//! the shared memory under its lock. A thread alone gets everything; when another one comes, the pool
//! [levels](super::state::PoolState::level_caches) the parts.

use headwater_host::sync::{AtomicUsize, Ordering};

/// The smallest step in which a part grows while there is plenty.
const STEP_MIN: usize = 64 * 1_024;

/// The parts of the limit that caches have.
#[derive(Debug)]
pub(super) struct CacheQuota {
    /// Bytes given to caches.
    given: AtomicUsize,
    /// Number of caches that have a part.
    sharing: AtomicUsize,
}

impl CacheQuota {
    pub(super) fn new() -> Self {
        Self { given: AtomicUsize::new(0), sharing: AtomicUsize::new(0) }
    }

    /// Counts a cache among those that share the limit.
    pub(super) fn join(&self) {
        self.sharing.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of caches that share the limit.
    pub(super) fn sharing(&self) -> usize {
        self.sharing.load(Ordering::Relaxed).max(1)
    }

    /// Adds to the part of a cache that shares the limit and has `held` bytes of it: in large steps while there is plenty,
    /// in exact ones near the limit or the cache's share. Returns the bytes added; 0 if neither leaves `bytes`.
    pub(super) fn take(&self, limit: usize, held: usize, bytes: usize) -> usize {
        let share = limit / self.sharing();
        for step in [bytes.max(STEP_MIN).max(limit / 64), bytes] {
            let within = |given: usize| given.checked_add(step).filter(|&given| given <= limit);
            if held + step <= share
                && self.given.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_ok()
            {
                return step;
            }
        }
        0
    }

    /// Ends the part of a cache: `None` for one that never joined.
    pub(super) fn end(&self, part: Option<usize>) {
        if let Some(part) = part {
            self.shrink(part);
            self.sharing.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Takes back some bytes of a part that keeps the rest.
    pub(super) fn shrink(&self, bytes: usize) {
        self.given.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// Takes all that a cache gets in steps for `bytes` bytes.
    fn take_all(quota: &CacheQuota, bytes: usize) -> usize {
        let mut held = 0;
        while let step @ 1.. = quota.take(MIB, held, bytes) {
            held += step;
        }
        held
    }

    #[test]
    fn a_cache_alone_gets_the_limit_and_two_get_half_each() {
        let quota = CacheQuota::new();
        quota.join();
        let first = take_all(&quota, 100_000);
        assert!((MIB - 100_000..=MIB).contains(&first), "{first}");
        quota.join();
        assert_eq!((quota.sharing(), quota.take(MIB, 0, 100_000)), (2, 0), "the limit was exceeded");
        quota.shrink(first - MIB / 2);
        assert_eq!(quota.take(MIB, MIB / 2, 4_096), 0, "more than a share was given");
        let second = take_all(&quota, 4_096);
        assert_eq!(second, MIB / 2);
        quota.end(Some(second));
        assert_eq!(quota.sharing(), 1);
        assert!(quota.take(MIB, MIB / 2, 4_096) > 0);
    }

    #[test]
    fn end_of_a_cache_that_never_joined_changes_nothing() {
        let quota = CacheQuota::new();
        quota.join();
        quota.end(None);
        assert_eq!(quota.sharing(), 1);
        assert_eq!(quota.take(4_096, 0, 8_192), 0);
    }
}
