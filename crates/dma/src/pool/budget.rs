//! M: the limit of pinned bytes over all tiers and nodes, and the bytes pinned now.
//!
//! Input: bytes about to be pinned, and bytes unpinned. Output: permission to pin. Invariant: bytes are reserved before
//! memory is taken, and the sum of all reservations never exceeds the cap at that moment. A cap lowered below the
//! pinned bytes only refuses further reservations.

use headwater_host::sync::{AtomicUsize, Ordering};

/// A part of the memory system that pins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinTier {
    /// Blocks pinned for the lifetime of their owner.
    Static,
    /// Chunks of the pool.
    Pool,
    /// Memory pinned for one request.
    Dynamic,
}

impl PinTier {
    /// All tiers.
    pub const ALL: [Self; 3] = [Self::Static, Self::Pool, Self::Dynamic];
}

/// Counters of pinned bytes against the cap.
#[derive(Debug)]
pub(super) struct PinBudget {
    cap: AtomicUsize,
    pinned: AtomicUsize,
    tiers: [AtomicUsize; 3],
    /// Bytes of the pool that no request can get any more.
    lost: AtomicUsize,
}

impl PinBudget {
    pub(super) fn new(cap: usize) -> Self {
        let zero = || AtomicUsize::new(0);
        Self { cap: AtomicUsize::new(cap), pinned: zero(), tiers: [zero(), zero(), zero()], lost: zero() }
    }

    /// Returns the cap.
    pub(super) fn cap(&self) -> usize {
        self.cap.load(Ordering::Relaxed)
    }

    /// Changes the cap.
    pub(super) fn set_cap(&self, cap: usize) {
        self.cap.store(cap, Ordering::Relaxed);
    }

    /// Returns the pinned bytes.
    pub(super) fn pinned(&self) -> usize {
        self.pinned.load(Ordering::Relaxed)
    }

    /// Returns the pinned bytes of one tier.
    pub(super) fn pinned_by(&self, tier: PinTier) -> usize {
        self.tiers[tier as usize].load(Ordering::Relaxed)
    }

    /// Returns the bytes that may still be pinned.
    pub(super) fn left(&self) -> usize {
        self.cap().saturating_sub(self.pinned())
    }

    /// Returns the size of the largest request that could be served under this cap.
    pub(super) fn request_max(&self) -> usize {
        self.cap().saturating_sub(self.pinned_by(PinTier::Static)).saturating_sub(self.lost())
    }

    /// Returns the bytes that no request can get any more.
    pub(super) fn lost(&self) -> usize {
        self.lost.load(Ordering::Relaxed)
    }

    /// Counts bytes as permanently lost.
    pub(super) fn add_lost(&self, bytes: usize) {
        self.lost.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Reserves bytes to pin; returns `false` if that would exceed the cap.
    pub(super) fn reserve(&self, tier: PinTier, bytes: usize) -> bool {
        let cap = self.cap();
        let within = |pinned: usize| pinned.checked_add(bytes).filter(|&pinned| pinned <= cap);
        let had = self.pinned.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_ok();
        if had {
            self.tiers[tier as usize].fetch_add(bytes, Ordering::Relaxed);
        }
        had
    }

    /// Releases a reservation.
    pub(super) fn release(&self, tier: PinTier, bytes: usize) {
        let of_tier = self.tiers[tier as usize].fetch_sub(bytes, Ordering::Relaxed);
        let pinned = self.pinned.fetch_sub(bytes, Ordering::Relaxed);
        assert!(
            of_tier >= bytes && pinned >= bytes,
            "{bytes} bytes of {tier:?} are released, {of_tier} of it and {pinned} in total are reserved"
        );
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_tier_counts_against_the_cap() {
        let budget = PinBudget::new(100);
        assert!(budget.reserve(PinTier::Static, 30) && budget.reserve(PinTier::Pool, 50));
        assert!(!budget.reserve(PinTier::Dynamic, 21));
        assert!(budget.reserve(PinTier::Dynamic, 20));
        assert_eq!((budget.left(), budget.pinned(), budget.request_max()), (0, 100, 70));
        budget.set_cap(60);
        assert!(!budget.reserve(PinTier::Pool, 1));
        budget.release(PinTier::Pool, 50);
        assert_eq!((budget.pinned_by(PinTier::Pool), budget.left()), (0, 10));
        assert!(!budget.reserve(PinTier::Pool, usize::MAX));
    }

    #[test]
    #[should_panic(expected = "31 bytes of Static are released, 30 of it and 80 in total are reserved")]
    fn tier_never_releases_what_another_reserved() {
        let budget = PinBudget::new(100);
        assert!(budget.reserve(PinTier::Static, 30) && budget.reserve(PinTier::Pool, 50));
        budget.release(PinTier::Static, 31);
    }
}
