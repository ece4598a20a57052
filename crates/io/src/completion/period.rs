//! How long to sleep between two looks.
//!
//! In: the commands in flight (when each was submitted, and its class of size), what the [`Estimator`] knows of their
//! like, how long sleeps really took. Out: a span, zero for "look at once". Invariant of the adaptive pace: what a look may
//! come too late is bounded by a small part of the latency itself, so throughput that waits for completions loses at most
//! that part; where a sleep would not be worth its cost, there is none.
//!
//! ```text
//!   submitted            low estimate        mean
//!       |--------- sleep ------|-look-look-look-|...          then, long overdue, at growing spans: 1/32 of the age
//!                        margin: 1/16, and what sleeps are late by
//! ```

use super::estimator::{Estimator, Seen, SizeClass};
use headwater_host::clock::Nanos;

/// Before the earliest answer that is expected, this part of its latency is looked through.
const MARGIN_PART: u64 = 16;
/// Looks may be apart by this part of the age of the oldest command: it bounds what a late look costs.
const OVERDUE_PART: u64 = 48;
/// A sleep costs the processor about this much by itself, and is not worth taking for less than twice that.
const SLEEP_COST: Nanos = Nanos(1_500);

/// A sleep that was late by more than twice the usual counts as late by that and this.
const LATENESS_STEP: u64 = 5_000;
/// What is forgotten of lateness with each answer that was waited for without a sleep.
const FORGET_PART: u64 = 1_024;

/// How long to sleep between looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// Not at all.
    Busy,
    /// As size and observed latency say.
    #[default]
    Adaptive,
    /// Until this part of the mean latency is over, in hundredths of it; then not at all.
    Part(u8),
    /// So long, always.
    Fixed(Nanos),
}

/// The controller of one queue's looks.
#[derive(Clone, Debug)]
pub struct Period {
    pace: Pace,
    estimator: Estimator,
    /// What sleeps take longer than they were asked for: nearly the most of late.
    lateness: u64,
    /// The sleep since the last look, zero if there was none.
    slept: Nanos,
    /// The last sleep that was chosen, for whoever wants to know.
    chosen: Nanos,
}

impl Period {
    /// Nothing is known yet.
    #[must_use]
    pub fn new(pace: Pace) -> Self {
        Self { pace, estimator: Estimator::default(), lateness: 0, slept: Nanos::ZERO, chosen: Nanos::ZERO }
    }

    /// The pace.
    #[must_use]
    pub fn pace(&self) -> Pace {
        self.pace
    }

    /// Another pace; what was learnt stays.
    pub fn set_pace(&mut self, pace: Pace) {
        self.pace = pace;
    }

    /// The span that was chosen last.
    #[must_use]
    pub fn chosen(&self) -> Nanos {
        self.chosen
    }

    /// What is known of latencies.
    #[must_use]
    pub fn estimator(&self) -> &Estimator {
        &self.estimator
    }

    /// A command was found answered.
    #[inline]
    pub fn answered(&mut self, class: SizeClass, latency: Nanos) {
        // A short sleep leaves little doubt.
        if self.slept == Nanos::ZERO {
            // What was learnt of sleeps is forgotten slowly without any, or a machine that was busy once would be so for ever.
            self.lateness -= self.lateness / FORGET_PART;
        }
        let seen = if self.slept.0 > latency.0 / 32 { Seen::Late } else { Seen::Fresh };
        self.estimator.observe(class, latency, seen);
    }

    /// A look is over: what the next one finds has come since.
    #[inline]
    pub fn looked(&mut self) {
        self.slept = Nanos::ZERO;
    }

    /// A sleep is over.
    pub fn woke(&mut self, asked: Nanos, took: Nanos) {
        self.slept = took;
        let late = took.since(asked).0;
        if late > self.lateness {
            // At most doubled, and a little, for the sake of outliers.
            self.lateness += (late - self.lateness).min(self.lateness + LATENESS_STEP).div_ceil(4);
        } else {
            self.lateness -= (self.lateness - late) / 64;
        }
    }

    /// How long to sleep before the next look, for the commands in flight: when each was submitted, and its class.
    pub fn next(&mut self, now: Nanos, in_flight: impl Iterator<Item = (Nanos, SizeClass)>) -> Nanos {
        self.chosen = match self.pace {
            Pace::Busy => Nanos::ZERO,
            Pace::Fixed(span) => span,
            Pace::Part(percent) => self.worth(self.part(now, in_flight, percent)),
            Pace::Adaptive => {
                let span = self.adaptive(now, in_flight);
                self.worth(span)
            }
        };
        self.chosen
    }

    /// Until the earliest answer that is expected, less the margin.
    fn adaptive(&self, now: Nanos, in_flight: impl Iterator<Item = (Nanos, SizeClass)>) -> Nanos {
        let (mut earliest, mut oldest) = (Nanos(u64::MAX), now);
        for (submitted, class) in in_flight {
            let low = self.estimator.low(class).map_or(0, |low| low.0);
            let margin = (low / MARGIN_PART).max(self.lateness);
            earliest = earliest.min(submitted.after(Nanos(low.saturating_sub(margin))));
            oldest = oldest.min(submitted);
        }
        if earliest == Nanos(u64::MAX) {
            return Nanos::ZERO;
        }
        let bounded = (now.since(oldest).0 / OVERDUE_PART).saturating_sub(self.lateness);
        earliest.since(now).max(Nanos(bounded))
    }

    fn part(&self, now: Nanos, in_flight: impl Iterator<Item = (Nanos, SizeClass)>, percent: u8) -> Nanos {
        let until = in_flight.map(|(submitted, class)| {
            let mean = self.estimator.mean(class).map_or(0, |mean| mean.0);
            submitted.after(Nanos(mean / 100 * u64::from(percent.min(100))))
        });
        until.min().map_or(Nanos::ZERO, |until| Nanos(until.since(now).0.saturating_sub(self.lateness)))
    }

    /// A span that is worth sleeping for, or none.
    fn worth(&self, span: Nanos) -> Nanos {
        if span.0 < (2 * SLEEP_COST.0).max(2 * self.lateness) { Nanos::ZERO } else { span }
    }
}

#[cfg(test)]
mod tests;
