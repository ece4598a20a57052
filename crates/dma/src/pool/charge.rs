//! Permission for other tiers to pin: their part of the cap.
//!
//! Input: a tier and a length. Output: a [`Charge`]. Invariant: the cap counts the bytes exactly as long as the charge
//! lives.

use super::budget::Tier;
use super::depot::Depot;
use super::error::PoolError;
use std::fmt;

/// Bytes of the cap that are pinned outside the pool's chunks.
#[must_use = "a charge that is dropped no longer counts"]
pub struct Charge {
    depot: &'static Depot,
    tier: Tier,
    bytes: usize,
}

impl Charge {
    pub(super) fn take(depot: &'static Depot, tier: Tier, bytes: usize) -> Result<Self, PoolError> {
        if !depot.is_ours() {
            return Err(PoolError::Forked);
        }
        if depot.is_closed() {
            return Err(PoolError::Closed);
        }
        let most = depot.budget.most();
        if bytes > most {
            return Err(PoolError::OverCap { bytes, most });
        }
        // Waiting requests have priority.
        let waiting = depot.line.waiting();
        if waiting > 0 || !depot.charge(tier, bytes) {
            return Err(PoolError::WouldBlock { bytes, waiting });
        }
        Ok(Self { depot, tier, bytes })
    }

    /// Returns the bytes charged.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the tier charged.
    #[must_use]
    pub fn tier(&self) -> Tier {
        self.tier
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.depot.is_ours() {
            self.depot.budget.release(self.tier, self.bytes);
            self.depot.serve();
        }
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Charge({:?}, {} bytes)", self.tier, self.bytes)
    }
}
