//! Permission for other tiers to pin: their part of the cap.
//!
//! Input: a tier and a length. Output: a [`CapCharge`]. Invariant: the cap counts the bytes exactly as long as the charge
//! lives.

use super::budget::PinTier;
use super::error::PoolError;
use super::state::PoolState;
use std::fmt;

/// Bytes of the cap that are pinned outside the pool's chunks.
#[must_use = "a charge that is dropped no longer counts"]
pub struct CapCharge {
    state: &'static PoolState,
    tier: PinTier,
    bytes: usize,
}

impl CapCharge {
    pub(super) fn take(state: &'static PoolState, tier: PinTier, bytes: usize) -> Result<Self, PoolError> {
        Self::check(state, bytes)?;
        // Waiting requests have priority.
        let waiting = state.wait_queue.waiting();
        let taken = if waiting > 0 { None } else { Self::try_take(state, tier, bytes) };
        taken.ok_or(PoolError::WouldBlock { bytes, waiting })
    }

    /// Checks that the pool can ever grant a charge of `bytes` bytes.
    pub(super) fn check(state: &'static PoolState, bytes: usize) -> Result<(), PoolError> {
        if !state.is_current_process() {
            return Err(PoolError::Forked);
        }
        if state.is_closed() {
            return Err(PoolError::Closed);
        }
        let most = state.budget.request_max();
        if bytes > most { Err(PoolError::OverCap { bytes, max: most }) } else { Ok(()) }
    }

    /// Takes a charge without regard to waiting requests.
    pub(super) fn try_take(state: &'static PoolState, tier: PinTier, bytes: usize) -> Option<Self> {
        // Not `then_some`: a value that is dropped releases bytes.
        state.charge(tier, bytes).then(|| Self { state, tier, bytes })
    }

    /// Returns the bytes charged.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the tier charged.
    #[must_use]
    pub fn tier(&self) -> PinTier {
        self.tier
    }
}

impl Drop for CapCharge {
    fn drop(&mut self) {
        if self.state.is_current_process() {
            self.state.budget.release(self.tier, self.bytes);
            self.state.serve_waiters();
        }
    }
}

impl fmt::Debug for CapCharge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CapCharge({:?}, {} bytes)", self.tier, self.bytes)
    }
}
