//! One wake-up for several completions.
//!
//! In: completions, with the time. Out: whether to tell now. Invariant: nobody is told before `count` completions have come
//! or the first of them has waited for `time`, and never later than that.

use headwater_host::clock::Nanos;

/// When to tell, as in NVMe's Interrupt Coalescing (Base 2.0 section 5.27.1.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aggregation {
    /// Completions that are enough; 0 and 1 tell of each at once.
    pub count: u32,
    /// Longest that a completion waits for others.
    pub time: Nanos,
}

impl Aggregation {
    /// Of each at once.
    pub const NONE: Self = Self { count: 1, time: Nanos::ZERO };
}

impl Default for Aggregation {
    fn default() -> Self {
        Self::NONE
    }
}

/// When somebody must be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Now.
    Now,
    /// Then, if no more come before.
    At(Nanos),
    /// There is nothing to tell.
    Never,
}

/// What has come since somebody was told.
#[derive(Clone, Copy, Debug)]
pub struct Aggregator {
    aggregation: Aggregation,
    come: u32,
    first: Nanos,
}

impl Aggregator {
    /// Nothing has come.
    #[must_use]
    pub fn new(aggregation: Aggregation) -> Self {
        Self { aggregation, come: 0, first: Nanos::ZERO }
    }

    /// The settings.
    #[must_use]
    pub fn aggregation(&self) -> Aggregation {
        self.aggregation
    }

    /// Whether each completion is told of at once, so that nobody needs the time.
    #[must_use]
    #[inline]
    pub fn is_none(&self) -> bool {
        self.aggregation.count <= 1 || self.aggregation.time == Nanos::ZERO
    }

    /// So many completions have come.
    pub fn came(&mut self, completions: u32, now: Nanos) {
        if self.come == 0 {
            self.first = now;
        }
        self.come = self.come.saturating_add(completions);
    }

    /// When to tell. Nothing in flight means that no more can come: then the caller tells at once.
    #[must_use]
    pub fn due(&self, now: Nanos) -> Due {
        let at = self.first.after(self.aggregation.time);
        match self.come {
            0 => Due::Never,
            come if come >= self.aggregation.count || now >= at => Due::Now,
            _ => Due::At(at),
        }
    }

    /// Somebody was told.
    pub fn told(&mut self) {
        self.come = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enough_or_long_enough_is_told_and_nothing_before() {
        let mut aggregator = Aggregator::new(Aggregation { count: 3, time: Nanos(100) });
        assert_eq!(aggregator.due(Nanos(5)), Due::Never);
        aggregator.came(1, Nanos(10));
        assert_eq!(aggregator.due(Nanos(20)), Due::At(Nanos(110)));
        aggregator.came(1, Nanos(50));
        assert_eq!(aggregator.due(Nanos(109)), Due::At(Nanos(110)), "the time counts from the first");
        assert_eq!(aggregator.due(Nanos(110)), Due::Now);
        aggregator.came(1, Nanos(60));
        assert_eq!(aggregator.due(Nanos(60)), Due::Now);
        aggregator.told();
        assert_eq!(aggregator.due(Nanos(60)), Due::Never);
        let mut at_once = Aggregator::new(Aggregation::NONE);
        at_once.came(1, Nanos(1));
        assert_eq!(at_once.due(Nanos(1)), Due::Now);
    }

    #[test]
    fn wake_ups_are_as_few_as_the_count_allows_and_nothing_waits_beyond_the_time() {
        for seed in 0..50 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let settings = Aggregation { count: rng.u32(1..20), time: Nanos(rng.u64(1..500)) };
            let mut aggregator = Aggregator::new(settings);
            let (mut now, mut oldest, mut told, mut come) = (Nanos::ZERO, None, 0, 0);
            for _ in 0..5_000 {
                let next = now.after(Nanos(rng.u64(..100)));
                // Whoever drives it wakes at the time it named.
                if let Due::At(at) = aggregator.due(now)
                    && at <= next
                {
                    now = at;
                    assert_eq!(aggregator.due(now), Due::Now);
                } else {
                    now = next;
                    aggregator.came(1, now);
                    come += 1;
                    oldest.get_or_insert(now);
                }
                assert!(oldest.is_none_or(|oldest| now.since(oldest) <= settings.time), "seed {seed}");
                if aggregator.due(now) == Due::Now {
                    aggregator.told();
                    told += 1;
                    oldest = None;
                }
            }
            assert!(told <= come, "{told} times told of {come}, seed {seed}");
        }
    }
}
