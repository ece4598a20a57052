//! The Keep Alive timer (NVMe Base 2.0 section 3.9).
//!
//! In: what a host asked for, its Keep Alive commands, and time. Out: whether it has been silent for too long.

use headwater_host::clock::Nanos;

/// KAS: the timer's granularity, in units of 100 ms.
pub(super) const GRANULARITY_100MS: u16 = 1;
const GRANULARITY_MS: u32 = 100;

/// The timer of one controller; 0 stands for none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct KeepAlive {
    timeout_ms: u32,
    heard: Nanos,
}

impl KeepAlive {
    /// KATO changes: rounded up to the granularity, and counted from now.
    pub(super) fn set(&mut self, timeout_ms: u32, now: Nanos) {
        self.timeout_ms = timeout_ms.div_ceil(GRANULARITY_MS).saturating_mul(GRANULARITY_MS);
        self.heard = now;
    }

    /// KATO.
    pub(super) fn timeout_ms(&self) -> u32 {
        self.timeout_ms
    }

    /// The host said that it is alive.
    pub(super) fn hear(&mut self, now: Nanos) {
        self.heard = now;
    }

    /// When the timer runs out, if it runs.
    pub(super) fn deadline(&self) -> Option<Nanos> {
        (self.timeout_ms > 0).then(|| self.heard.after(Nanos::from_millis(u64::from(self.timeout_ms))))
    }

    /// Whether it has run out.
    pub(super) fn has_expired(&self, now: Nanos) -> bool {
        self.deadline().is_some_and(|deadline| deadline < now)
    }
}
