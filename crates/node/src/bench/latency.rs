//! Latencies as a benchmark counts them, and as it tells them.
//!
//! In: spans. Out: a [`Latency`] in microseconds, a table of some. Invariant: every span is counted; one beyond ten minutes
//! counts as that.

use hdrhistogram::Histogram;
use headwater_host::clock::Nanos;
use serde::Serialize;
use std::fmt;

/// Longest latency a histogram tells apart: ten minutes.
const MAX_NS: u64 = 600_000_000_000;

/// Latencies of one kind of command.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        #[expect(clippy::expect_used, reason = "the bounds are constants that the library accepts")]
        Self(Histogram::new_with_bounds(1, MAX_NS, 3).expect("constant bounds"))
    }
}

impl Latencies {
    /// Counts one.
    pub fn record(&mut self, span: Nanos) {
        self.0.saturating_record(span.0.clamp(1, MAX_NS));
    }

    /// Adds those of another.
    pub fn add(&mut self, other: &Self) {
        // Both have the same bounds.
        let _ = self.0.add(&other.0);
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }
}

/// Latencies of one kind of command, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    /// Commands.
    pub count: u64,
    /// Half were faster.
    pub p50_us: f64,
    /// 99 in 100 were faster.
    pub p99_us: f64,
    /// 999 in 1,000 were faster.
    pub p999_us: f64,
    /// The slowest.
    pub max_us: f64,
    /// The mean.
    pub mean_us: f64,
}

impl Latency {
    /// What there is to tell of some, if there are any.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "latencies need no more than 53 bits")]
    pub fn of(latencies: &Latencies) -> Option<Self> {
        let histogram = &latencies.0;
        if histogram.is_empty() {
            return None;
        }
        let micros = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1e3;
        Some(Self {
            count: histogram.len(),
            p50_us: micros(0.5),
            p99_us: micros(0.99),
            p999_us: micros(0.999),
            max_us: histogram.max() as f64 / 1e3,
            mean_us: histogram.mean() / 1e3,
        })
    }
}

/// Writes a line of headings, and one for each kind of which there are any.
pub(crate) fn write_table(
    f: &mut fmt::Formatter<'_>,
    decimals: usize,
    kinds: [(&str, Option<Latency>); 2],
) -> fmt::Result {
    writeln!(
        f,
        "{:>5} {:>12} {:>10} {:>10} {:>10} {:>10} {:>10}",
        "us", "count", "mean", "p50", "p99", "p99.9", "max"
    )?;
    for (name, latency) in kinds {
        if let Some(l) = latency {
            write!(f, "{name:>5} {:>12}", l.count)?;
            for micros in [l.mean_us, l.p50_us, l.p99_us, l.p999_us, l.max_us] {
                write!(f, " {micros:>10.decimals$}")?;
            }
            writeln!(f)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_span_is_counted_however_long_or_short() {
        let mut latencies = Latencies::default();
        assert!(Latency::of(&latencies).is_none());
        let mut other = Latencies::default();
        latencies.record(Nanos::ZERO);
        latencies.record(Nanos::from_millis(3));
        other.record(Nanos(u64::MAX));
        latencies.add(&other);
        let told = Latency::of(&latencies).unwrap();
        assert_eq!((told.count, latencies.count()), (3, 3));
        assert!((2_990.0..3_010.0).contains(&told.p50_us), "{told:?}");
        assert!((5.99e8..6.01e8).contains(&told.max_us), "{told:?}");
    }
}
