//! The sleep between two polls.
//!
//! Input: the commands in flight (submission time and size class), the latencies that the [`LatencyEstimator`] learnt, the
//! real lengths of sleeps and the processor time that they took. Output: a span, zero to poll at once. Invariant of the
//! adaptive pace: a poll is late by at most a small fraction of the latency, so throughput that depends on completions
//! loses at most that fraction; no sleep is taken that takes more than half of the processor time of polling for as long.
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
/// The assumed processor time of a sleep until one was measured.
const SLEEP_COST: Nanos = Nanos(1_500);
/// A sleep is worth taking if busy polling for as long takes at least this many times its processor time.
const GAIN_MIN: u64 = 2;
/// The fraction by which a sleep moves the averages of lateness and processor time.
const AVERAGE_PART: u64 = 8;

/// The increase of the lateness bound for a sleep that was late by more than twice the usual.
const LATENESS_STEP: u64 = 5_000;
/// The fraction of what sleeps cost that is forgotten with each completion found without a sleep.
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

/// The length and the cost of a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SleepObservation {
    /// The requested length.
    pub asked: Nanos,
    /// The real length.
    pub took: Nanos,
    /// The processor time of the sleeping thread from before the sleep to after it; none if it was not measured.
    pub cpu: Option<Nanos>,
}

/// The controller of one queue's polls.
#[derive(Clone, Debug)]
pub struct PollPeriod {
    pace: PollPace,
    estimator: LatencyEstimator,
    /// The usual excess of a sleep over its requested length: close to the largest recent one.
    lateness: u64,
    /// The average excess of a sleep over its requested length.
    usual_lateness: u64,
    /// The average processor time of a sleep.
    sleep_cost: u64,
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
            usual_lateness: 0,
            sleep_cost: SLEEP_COST.0,
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

    /// Returns the processor time of a sleep, as measured; an assumption until one was measured.
    #[must_use]
    pub fn sleep_cost(&self) -> Nanos {
        Nanos(self.sleep_cost)
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
            // What sleeps cost decays slowly while there are none; otherwise a machine that was busy once would never
            // sleep again.
            for cost in [&mut self.lateness, &mut self.usual_lateness, &mut self.sleep_cost] {
                *cost -= *cost / FORGET_PART;
            }
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
    pub fn observe_sleep(&mut self, sleep: SleepObservation) {
        self.last_sleep = sleep.took;
        let late = sleep.took.since(sleep.asked).0;
        self.usual_lateness = averaged(self.usual_lateness, late);
        if let Some(cpu) = sleep.cpu {
            self.sleep_cost = averaged(self.sleep_cost, cpu.0);
        }
        if late > self.lateness {
            // At most doubled, plus a step, to bound outliers.
            self.lateness += (late - self.lateness).min(self.lateness + LATENESS_STEP).div_ceil(4);
        } else {
            self.lateness -= (self.lateness - late) / 64;
        }
    }

    /// Returns the sleep before the next poll, given submission time and class of the commands in flight.
    pub fn next_sleep(&mut self, now: Nanos, in_flight: impl Iterator<Item = (Nanos, SizeClass)>) -> Nanos {
        self.last_chosen = self.sleep_at(self.pace, now, in_flight);
        self.last_chosen
    }

    /// Returns the shortest of the sleeps that several paces choose, each for its commands in flight.
    pub(crate) fn next_sleep_of(
        &mut self,
        now: Nanos,
        paced: impl Iterator<Item = (PollPace, Vec<(Nanos, SizeClass)>)>,
    ) -> Nanos {
        let sleeps = paced.map(|(pace, in_flight)| self.sleep_at(pace, now, in_flight.into_iter()));
        self.last_chosen = sleeps.min().unwrap_or(Nanos::ZERO);
        self.last_chosen
    }

    /// Returns the sleep that a pace chooses for its commands in flight.
    fn sleep_at(
        &self,
        pace: PollPace,
        now: Nanos,
        in_flight: impl Iterator<Item = (Nanos, SizeClass)>,
    ) -> Nanos {
        match pace {
            PollPace::Busy => Nanos::ZERO,
            PollPace::Fixed(span) => span,
            PollPace::Part(percent) => self.worthwhile(self.fraction_of_mean(now, in_flight, percent)),
            PollPace::Adaptive => self.worthwhile(self.adaptive(now, in_flight)),
        }
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

    /// Returns the span if it is worth a sleep, else zero. A sleep saves the polls of its real length and takes the
    /// processor time that was measured; its lateness is in the margin of the span and decides nothing here.
    fn worthwhile(&self, span: Nanos) -> Nanos {
        let saved = span.0.saturating_add(self.usual_lateness);
        if span > Nanos::ZERO && saved >= self.sleep_cost.saturating_mul(GAIN_MIN) {
            span
        } else {
            Nanos::ZERO
        }
    }
}

/// Moves an average towards a value, at most by the average and a step, so that no outlier decides.
fn averaged(average: u64, value: u64) -> u64 {
    match value.checked_sub(average) {
        Some(above) => average + above.min(average + LATENESS_STEP) / AVERAGE_PART,
        None => average - (average - value) / AVERAGE_PART,
    }
}

#[cfg(test)]
mod tests;
