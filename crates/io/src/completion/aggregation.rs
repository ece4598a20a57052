//! Aggregation of several completions into one notification.
//!
//! Input: completions, with the time. Output: the time of the notification. Invariant: a notification is due exactly
//! when `count` completions have arrived or the first of them has waited for `time`.

use headwater_host::clock::Nanos;

/// The notification settings, as in NVMe's Interrupt Coalescing (Base 2.0 section 5.27.1.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionAggregation {
    /// The number of completions for one notification; 0 and 1 notify of each at once.
    pub count: u32,
    /// The longest time that a completion waits for further ones.
    pub time: Nanos,
}

impl CompletionAggregation {
    /// A notification of each completion at once.
    pub const NONE: Self = Self { count: 1, time: Nanos::ZERO };
}

impl Default for CompletionAggregation {
    fn default() -> Self {
        Self::NONE
    }
}

/// The time of the next notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotificationTime {
    /// Now.
    Now,
    /// At this time, unless enough completions arrive earlier.
    At(Nanos),
    /// No completion is pending.
    Never,
}

/// The completions since the last notification.
#[derive(Clone, Copy, Debug)]
pub struct CompletionAggregator {
    aggregation: CompletionAggregation,
    pending: u32,
    first: Nanos,
}

impl CompletionAggregator {
    /// Returns an aggregator without completions.
    #[must_use]
    pub fn new(aggregation: CompletionAggregation) -> Self {
        Self { aggregation, pending: 0, first: Nanos::ZERO }
    }

    /// Returns true if each completion is notified at once, so that no time is needed.
    #[must_use]
    #[inline]
    pub fn is_immediate(&self) -> bool {
        self.aggregation.count <= 1 || self.aggregation.time == Nanos::ZERO
    }

    /// Counts completions that arrived.
    pub fn add(&mut self, completions: u32, now: Nanos) {
        if self.pending == 0 {
            self.first = now;
        }
        self.pending = self.pending.saturating_add(completions);
    }

    /// Returns the time of the notification. With nothing in flight no completion can follow, and the caller notifies
    /// at once.
    #[must_use]
    pub fn due(&self, now: Nanos) -> NotificationTime {
        let at = self.first.after(self.aggregation.time);
        match self.pending {
            0 => NotificationTime::Never,
            come if come >= self.aggregation.count || now >= at => NotificationTime::Now,
            _ => NotificationTime::At(at),
        }
    }

    /// Starts over after a notification.
    pub fn reset(&mut self) {
        self.pending = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notification_is_due_at_the_count_or_the_time_and_not_before() {
        let mut aggregator = CompletionAggregator::new(CompletionAggregation { count: 3, time: Nanos(100) });
        assert_eq!(aggregator.due(Nanos(5)), NotificationTime::Never);
        aggregator.add(1, Nanos(10));
        assert_eq!(aggregator.due(Nanos(20)), NotificationTime::At(Nanos(110)));
        aggregator.add(1, Nanos(50));
        assert_eq!(
            aggregator.due(Nanos(109)),
            NotificationTime::At(Nanos(110)),
            "the time starts at the first completion"
        );
        assert_eq!(aggregator.due(Nanos(110)), NotificationTime::Now);
        aggregator.add(1, Nanos(60));
        assert_eq!(aggregator.due(Nanos(60)), NotificationTime::Now);
        aggregator.reset();
        assert_eq!(aggregator.due(Nanos(60)), NotificationTime::Never);
        let mut at_once = CompletionAggregator::new(CompletionAggregation::NONE);
        at_once.add(1, Nanos(1));
        assert_eq!(at_once.due(Nanos(1)), NotificationTime::Now);
    }

    #[test]
    fn notifications_are_as_few_as_the_count_allows_and_never_late() {
        for seed in 0..50 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let settings = CompletionAggregation { count: rng.u32(1..20), time: Nanos(rng.u64(1..500)) };
            let mut aggregator = CompletionAggregator::new(settings);
            let (mut now, mut oldest, mut notified, mut come) = (Nanos::ZERO, None, 0, 0);
            for _ in 0..5_000 {
                let next = now.after(Nanos(rng.u64(..100)));
                // The caller wakes up at the time that the aggregator returned.
                if let NotificationTime::At(at) = aggregator.due(now)
                    && at <= next
                {
                    now = at;
                    assert_eq!(aggregator.due(now), NotificationTime::Now);
                } else {
                    now = next;
                    aggregator.add(1, now);
                    come += 1;
                    oldest.get_or_insert(now);
                }
                assert!(oldest.is_none_or(|oldest| now.since(oldest) <= settings.time), "seed {seed}");
                if aggregator.due(now) == NotificationTime::Now {
                    aggregator.reset();
                    notified += 1;
                    oldest = None;
                }
            }
            assert!(notified <= come, "{notified} notifications of {come} completions, seed {seed}");
        }
    }
}
