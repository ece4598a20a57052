//! The Keep Alive timer (NVMe Base 2.0 section 3.9).
//!
//! Input: the host's timeout, its Keep Alive commands, and the time. Output: the deadline, and true once it has passed.

use headwater_host::clock::Nanos;

/// KAS: the granularity of the timer, in units of 100 ms.
pub(super) const GRANULARITY_100MS: u16 = 1;
const GRANULARITY_MS: u32 = 100;

/// The timer of one controller; 0 means no timer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeepAliveTimer {
    timeout_ms: u32,
    started_at: Nanos,
}

impl KeepAliveTimer {
    /// Sets KATO, rounded up to the granularity, and restarts the timer.
    pub(super) fn set(&mut self, timeout_ms: u32, now: Nanos) {
        self.timeout_ms = timeout_ms.div_ceil(GRANULARITY_MS).saturating_mul(GRANULARITY_MS);
        self.started_at = now;
    }

    /// Returns KATO.
    pub(super) fn timeout_ms(&self) -> u32 {
        self.timeout_ms
    }

    /// Restarts the timer, because the host sent a Keep Alive.
    pub(super) fn restart(&mut self, now: Nanos) {
        self.started_at = now;
    }

    /// Returns the time at which the timer expires, if it is set.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        (self.timeout_ms > 0).then(|| self.started_at.after(Nanos::from_millis(u64::from(self.timeout_ms))))
    }

    /// Returns true if the timer has expired.
    pub(super) fn has_expired(&self, now: Nanos) -> bool {
        self.deadline().is_some_and(|deadline| deadline < now)
    }
}
