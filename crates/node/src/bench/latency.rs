//! The latencies of a benchmark: histogram, summary and table.
//!
//! Input: spans of time. Output: a [`LatencySummary`] in microseconds, and a table of summaries. Invariant: every span is
//! counted; a span above ten minutes counts as ten minutes.

use hdrhistogram::Histogram;
use headwater_host::clock::Nanos;
use serde::Serialize;
use std::fmt;

/// Maximum latency in a histogram: ten minutes.
const MAX_NS: u64 = 600_000_000_000;

/// A histogram of the latencies of one kind of command.
#[derive(Clone, Debug)]
pub struct LatencyHistogram(Histogram<u64>);

impl Default for LatencyHistogram {
    fn default() -> Self {
        #[expect(clippy::expect_used, reason = "the bounds are constants that the library accepts")]
        Self(Histogram::new_with_bounds(1, MAX_NS, 3).expect("constant bounds"))
    }
}

impl LatencyHistogram {
    /// Counts one latency.
    pub fn record(&mut self, span: Nanos) {
        self.0.saturating_record(span.0.clamp(1, MAX_NS));
    }

    /// Adds the counts of another histogram.
    pub fn add(&mut self, other: &Self) {
        // Both have the same bounds.
        let _ = self.0.add(&other.0);
    }

    /// Returns the number of latencies.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }
}

/// A summary of the latencies of one kind of command, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LatencySummary {
    /// Number of commands.
    pub count: u64,
    /// 50th percentile.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
    /// Maximum.
    pub max_us: f64,
    /// Mean.
    pub mean_us: f64,
}

impl LatencySummary {
    /// Returns the summary of a histogram, or `None` if it is empty.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "latencies need no more than 53 bits")]
    pub fn from_histogram(latencies: &LatencyHistogram) -> Option<Self> {
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

/// Writes a line of headings, and one line for each kind with latencies.
pub(crate) fn write_table(
    f: &mut fmt::Formatter<'_>,
    decimals: usize,
    kinds: [(&str, Option<LatencySummary>); 2],
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
    fn spans_beyond_the_range_of_the_histogram_are_counted() {
        let mut latencies = LatencyHistogram::default();
        assert!(LatencySummary::from_histogram(&latencies).is_none());
        let mut other = LatencyHistogram::default();
        latencies.record(Nanos::ZERO);
        latencies.record(Nanos::from_millis(3));
        other.record(Nanos(u64::MAX));
        latencies.add(&other);
        let summary = LatencySummary::from_histogram(&latencies).unwrap();
        assert_eq!((summary.count, latencies.count()), (3, 3));
        assert!((2_990.0..3_010.0).contains(&summary.p50_us), "{summary:?}");
        assert!((5.99e8..6.01e8).contains(&summary.max_us), "{summary:?}");
    }
}
