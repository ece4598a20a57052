//! The sleep between two polls.
//!
//! Input: the commands in flight (submission time and size class), the latencies that the [`LatencyEstimator`] learnt, the
//! real lengths of sleeps. Output: a span, zero to poll at once. Invariant of the adaptive pace: a poll is late by at
//! most a small fraction of the latency, so throughput that depends on completions loses at most that fraction; a sleep
//! that would not be worth its cost is not taken.
//!
//! ```text
//!   submitted            low estimate        mean
//!       |--------- sleep ------|-poll-poll-poll-|...          then, when overdue, at growing spans: 1/48 of the age
//!                        margin: 1/16, and the lateness of sleeps
//! ```

use super::estimator::{LatencyEstimator, ObservationKind, SizeClass};
use headwater_host::clock::Nanos;

/// The fraction of the expected latency for which polling starts before the earliest expected completion.
const MARGIN_PART: u64 = 16;
/// The longest span between polls as a fraction of the oldest command's age: it bounds the cost of a late poll.
const OVERDUE_PART: u64 = 48;
/// The processor cost of a sleep; a sleep of less than twice this is not worth taking.
const SLEEP_COST: Nanos = Nanos(1_500);

/// The increase of the lateness bound for a sleep that was late by more than twice the usual.
const LATENESS_STEP: u64 = 5_000;
/// The fraction of the lateness that is forgotten with each completion found without a sleep.
const FORGET_PART: u64 = 1_024;

/// The pace of polling: the sleep between two polls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PollPace {
    /// No sleep.
    Busy,
    /// A sleep adapted to size and observed latency.
    #[default]
    Adaptive,
    /// A sleep until this percentage of the mean latency has passed, then none.
    Part(u8),
    /// A fixed sleep.
    Fixed(Nanos),
}

/// The controller of one queue's polls.
#[derive(Clone, Debug)]
pub struct PollPeriod {
    pace: PollPace,
    estimator: LatencyEstimator,
    /// The usual excess of a sleep over its requested length: close to the largest recent one.
    lateness: u64,
    /// The sleep since the last poll, zero if there was none.
    last_sleep: Nanos,
    /// The last sleep that was chosen, for statistics.
    last_chosen: Nanos,
}

impl PollPeriod {
    /// Returns a controller without observations.
    #[must_use]
    pub fn new(pace: PollPace) -> Self {
        Self {
            pace,
            estimator: LatencyEstimator::default(),
            lateness: 0,
            last_sleep: Nanos::ZERO,
            last_chosen: Nanos::ZERO,
        }
    }

    /// Sets the pace; estimates stay.
    pub fn set_pace(&mut self, pace: PollPace) {
        self.pace = pace;
    }

    /// Returns the span that was chosen last.
    #[must_use]
    pub fn last_chosen(&self) -> Nanos {
        self.last_chosen
    }

    /// Returns the latency estimates.
    #[must_use]
    pub fn estimator(&self) -> &LatencyEstimator {
        &self.estimator
    }

    /// Notes a completion.
    #[inline]
    pub fn observe_completion(&mut self, class: SizeClass, latency: Nanos) {
        // After a short sleep the latency is nearly exact.
        if self.last_sleep == Nanos::ZERO {
            // Lateness decays slowly while there are no sleeps; otherwise a machine that was busy once would never
            // sleep again.
            self.lateness -= self.lateness / FORGET_PART;
        }
        let seen = if self.last_sleep.0 > latency.0 / 32 {
            ObservationKind::UpperBound
        } else {
            ObservationKind::Exact
        };
        self.estimator.observe(class, latency, seen);
    }

    /// Notes a poll: completions found by the next poll arrived after it.
    #[inline]
    pub fn observe_poll(&mut self) {
        self.last_sleep = Nanos::ZERO;
    }

    /// Notes a sleep.
    pub fn observe_sleep(&mut self, asked: Nanos, took: Nanos) {
        self.last_sleep = took;
        let late = took.since(asked).0;
        if late > self.lateness {
            // At most doubled, plus a step, to bound outliers.
            self.lateness += (late - self.lateness).min(self.lateness + LATENESS_STEP).div_ceil(4);
        } else {
            self.lateness -= (self.lateness - late) / 64;
        }
    }

    /// Returns the sleep before the next poll, given submission time and class of the commands in flight.
    pub fn next_sleep(&mut self, now: Nanos, in_flight: impl Iterator<Item = (Nanos, SizeClass)>) -> Nanos {
        self.last_chosen = match self.pace {
            PollPace::Busy => Nanos::ZERO,
            PollPace::Fixed(span) => span,
            PollPace::Part(percent) => self.worthwhile(self.fraction_of_mean(now, in_flight, percent)),
            PollPace::Adaptive => {
                let span = self.adaptive(now, in_flight);
                self.worthwhile(span)
            }
        };
        self.last_chosen
    }

    /// Returns the time until the earliest expected completion, less the margin.
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

    fn fraction_of_mean(
        &self,
        now: Nanos,
        in_flight: impl Iterator<Item = (Nanos, SizeClass)>,
        percent: u8,
    ) -> Nanos {
        let until = in_flight.map(|(submitted, class)| {
            let mean = self.estimator.mean(class).map_or(0, |mean| mean.0);
            submitted.after(Nanos(mean / 100 * u64::from(percent.min(100))))
        });
        until.min().map_or(Nanos::ZERO, |until| Nanos(until.since(now).0.saturating_sub(self.lateness)))
    }

    /// Returns the span if it is worth a sleep, else zero.
    fn worthwhile(&self, span: Nanos) -> Nanos {
        if span.0 < (2 * SLEEP_COST.0).max(2 * self.lateness) { Nanos::ZERO } else { span }
    }
}

#[cfg(test)]
mod tests;
