//! The counters of the SMART log: those of the medium so far, and of this opening.
//!
//! Input: what hosts read and wrote, what was found damaged, and the time. Output: the totals, which the next commit record
//! keeps. Invariant: a record never counts less than the record before it.

use super::Ftl;
use crate::log::health_counters::HealthCounters;
use crate::media::Media;
use headwater_host::clock::Nanos;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

impl<M: Media> Ftl<M> {
    /// Returns the counters over the life of the medium; `now` is the time since the opening.
    pub(crate) fn health(&self, now: Nanos) -> HealthCounters {
        let since = HealthCounters {
            media_errors: self.damaged() + self.flash.damaged_pages(),
            power_on_seconds: now.since(Nanos::ZERO).0 / NANOS_PER_SECOND,
            ..self.health.traffic
        };
        self.flash.records().health_at_opening() + since
    }

    /// Returns what hosts read and wrote since the opening, to count more.
    #[inline]
    pub(crate) fn traffic_mut(&mut self) -> &mut HealthCounters {
        &mut self.health.traffic
    }

    /// Makes the next commit records keep the counters of this time.
    pub(super) fn keep_health(&mut self, now: Nanos) {
        let health = self.health(now);
        self.flash.records_mut().set_health(health);
    }

    /// Sets if the device closes: then a commit that finds everything durable says so.
    pub(crate) fn set_closing(&mut self, is_closing: bool) {
        self.health.is_closing = is_closing;
    }
}
