//! M: how many bytes may be pinned, over every tier and node, and how many are.
//!
//! In: bytes about to be pinned, and bytes unpinned. Out: leave to do so. Invariant: leave is given before memory is
//! taken, and the sum of all leave never passes the cap of that moment. A cap that is lowered below what is pinned only
//! refuses more; it takes nothing away.

use headwater_host::sync::{AtomicUsize, Ordering};

/// Who pins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tier {
    /// Blocks that are pinned for life.
    Static,
    /// Chunks of the pool.
    Pool,
    /// Memory pinned for one request.
    Dynamic,
}

impl Tier {
    /// Every tier.
    pub const ALL: [Self; 3] = [Self::Static, Self::Pool, Self::Dynamic];
}

/// The counters.
#[derive(Debug)]
pub(super) struct Budget {
    cap: AtomicUsize,
    pinned: AtomicUsize,
    tiers: [AtomicUsize; 3],
    /// Of the pool's bytes those that no request can have any more.
    lost: AtomicUsize,
}

impl Budget {
    pub(super) fn new(cap: usize) -> Self {
        let zero = || AtomicUsize::new(0);
        Self { cap: AtomicUsize::new(cap), pinned: zero(), tiers: [zero(), zero(), zero()], lost: zero() }
    }

    /// The cap.
    pub(super) fn cap(&self) -> usize {
        self.cap.load(Ordering::Relaxed)
    }

    /// Changes the cap.
    pub(super) fn set_cap(&self, cap: usize) {
        self.cap.store(cap, Ordering::Relaxed);
    }

    /// What is pinned now.
    pub(super) fn pinned(&self) -> usize {
        self.pinned.load(Ordering::Relaxed)
    }

    /// What one tier has pinned now.
    pub(super) fn of(&self, tier: Tier) -> usize {
        self.tiers[tier as usize].load(Ordering::Relaxed)
    }

    /// What may still be pinned.
    pub(super) fn left(&self) -> usize {
        self.cap().saturating_sub(self.pinned())
    }

    /// The largest request that could ever be served under this cap.
    pub(super) fn most(&self) -> usize {
        self.cap().saturating_sub(self.of(Tier::Static)).saturating_sub(self.lost())
    }

    /// Bytes that no request can have any more.
    pub(super) fn lost(&self) -> usize {
        self.lost.load(Ordering::Relaxed)
    }

    /// Counts bytes as lost for good.
    pub(super) fn lose(&self, bytes: usize) {
        self.lost.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Asks for leave to pin; `false` if that would pass the cap.
    pub(super) fn reserve(&self, tier: Tier, bytes: usize) -> bool {
        let cap = self.cap();
        let within = |pinned: usize| pinned.checked_add(bytes).filter(|&pinned| pinned <= cap);
        let had = self.pinned.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_ok();
        if had {
            self.tiers[tier as usize].fetch_add(bytes, Ordering::Relaxed);
        }
        had
    }

    /// Gives leave back.
    pub(super) fn release(&self, tier: Tier, bytes: usize) {
        self.tiers[tier as usize].fetch_sub(bytes, Ordering::Relaxed);
        self.pinned.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_tier_counts_and_none_passes_the_cap() {
        let budget = Budget::new(100);
        assert!(budget.reserve(Tier::Static, 30) && budget.reserve(Tier::Pool, 50));
        assert!(!budget.reserve(Tier::Dynamic, 21));
        assert!(budget.reserve(Tier::Dynamic, 20));
        assert_eq!((budget.left(), budget.pinned(), budget.most()), (0, 100, 70));
        budget.set_cap(60);
        assert!(!budget.reserve(Tier::Pool, 1));
        budget.release(Tier::Pool, 50);
        assert_eq!((budget.of(Tier::Pool), budget.left()), (0, 10));
        assert!(!budget.reserve(Tier::Pool, usize::MAX));
    }
}
