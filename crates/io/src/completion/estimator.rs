//! Latency estimates of commands by direction and size.
//!
//! Input: commands with their observed latencies. Output: a low estimate of the latency of such a command, and the
//! mean. Invariant: an observation moves an estimate by a bounded fraction, so that no single outlier decides.
//!
//! The low estimate follows a low quantile: it falls quickly towards smaller values and rises slowly towards larger
//! ones. A completion found at the first poll after a sleep was overslept by an unknown time; it shows only that the
//! estimate is too long, and shortens it. So sleeping by an estimate cannot lengthen it.

use headwater_host::clock::Nanos;

/// The number of size classes, each twice the previous: 512 bytes and less, to 1 MiB and more.
const SIZES: usize = 12;
const DIRECTIONS: usize = 3;
/// The exponent of the upper bound of the smallest size class.
const SMALLEST_BITS: u32 = 9;

/// The direction in which a command moves data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferDirection {
    /// To the host.
    Read,
    /// To the device.
    Write,
    /// No data.
    Other,
}

/// The properties of a command on which its latency depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandProfile {
    /// Its direction.
    pub direction: TransferDirection,
    /// The bytes it moves.
    pub bytes: usize,
}

impl CommandProfile {
    /// Returns the class whose estimate it shares.
    #[must_use]
    #[inline]
    pub fn class(self) -> SizeClass {
        let bits = usize::BITS - self.bytes.saturating_sub(1).leading_zeros();
        let size = bits.saturating_sub(SMALLEST_BITS) as usize;
        let direction = match self.direction {
            TransferDirection::Read => 0,
            TransferDirection::Write => 1,
            TransferDirection::Other => 2,
        };
        let class = direction * SIZES + size.min(SIZES - 1);
        SizeClass(u8::try_from(class).unwrap_or(0))
    }
}

/// A direction and a size rounded up to a power of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SizeClass(u8);

/// The circumstances in which a completion was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObservationKind {
    /// A poll shortly before found nothing: the latency is exact.
    Exact,
    /// The first poll after a sleep found it: the latency is an upper bound.
    UpperBound,
}

#[derive(Clone, Copy, Debug, Default)]
struct LatencyEstimate {
    low: u64,
    mean: u64,
    observed: bool,
}

/// The estimates of a queue.
#[derive(Clone, Debug)]
pub struct LatencyEstimator {
    estimates: [LatencyEstimate; SIZES * DIRECTIONS],
}

impl Default for LatencyEstimator {
    fn default() -> Self {
        Self { estimates: [LatencyEstimate::default(); SIZES * DIRECTIONS] }
    }
}

impl LatencyEstimator {
    /// Notes the latency of a command.
    pub fn observe(&mut self, class: SizeClass, latency: Nanos, seen: ObservationKind) {
        let Some(estimate) = self.estimates.get_mut(usize::from(class.0)) else {
            return;
        };
        if !estimate.observed {
            *estimate = LatencyEstimate { low: latency.0, mean: latency.0, observed: true };
            return;
        }
        let toward = |from: u64, to: u64, part: u64| match to.checked_sub(from) {
            // At most doubled, to bound outliers.
            Some(above) => from + above.min(from) / part,
            None => from - (from - to) / part,
        };
        estimate.mean = toward(estimate.mean, latency.0, 16);
        estimate.low = match seen {
            _ if latency.0 < estimate.low => toward(estimate.low, latency.0, 4),
            ObservationKind::Exact => toward(estimate.low, latency.0, 32),
            ObservationKind::UpperBound => estimate.low - estimate.low / 32,
        };
    }

    /// Returns the low estimate: about nine of ten such commands take longer.
    #[must_use]
    #[inline]
    pub fn low(&self, class: SizeClass) -> Option<Nanos> {
        self.observed(class).map(|estimate| Nanos(estimate.low))
    }

    /// Returns the mean latency of such a command.
    #[must_use]
    #[inline]
    pub fn mean(&self, class: SizeClass) -> Option<Nanos> {
        self.observed(class).map(|estimate| Nanos(estimate.mean))
    }

    #[inline]
    fn observed(&self, class: SizeClass) -> Option<&LatencyEstimate> {
        self.estimates.get(usize::from(class.0)).filter(|estimate| estimate.observed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: usize) -> SizeClass {
        CommandProfile { direction: TransferDirection::Read, bytes }.class()
    }

    #[test]
    fn sizes_share_a_class_up_to_the_next_power_of_two() {
        assert_eq!(read(0), read(512));
        assert_ne!(read(512), read(513));
        assert_eq!(read(4_097), read(8_192));
        assert_eq!(read(1 << 20), read(usize::MAX));
        assert_ne!(read(4_096), CommandProfile { direction: TransferDirection::Write, bytes: 4_096 }.class());
        assert_eq!(LatencyEstimator::default().low(read(4_096)), None);
    }

    #[test]
    fn low_estimate_is_below_most_observed_latencies() {
        for seed in 0..20 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut estimator = LatencyEstimator::default();
            let mut below = 0;
            for round in 0..20_000 {
                let latency = Nanos(rng.u64(80_000..120_000));
                if round >= 10_000 {
                    below += u32::from(estimator.low(read(4_096)).unwrap() > latency);
                }
                estimator.observe(read(4_096), latency, ObservationKind::Exact);
            }
            assert!(below < 3_000, "{below} of 10,000 were faster than the estimate, seed {seed}");
            assert!(estimator.low(read(4_096)).unwrap().0 > 76_000);
            let mean = estimator.mean(read(4_096)).unwrap().0;
            assert!((90_000..110_000).contains(&mean), "{mean}");
        }
    }

    #[test]
    fn outlier_barely_moves_an_estimate_and_a_new_level_is_found() {
        let mut estimator = LatencyEstimator::default();
        for _ in 0..100 {
            estimator.observe(read(4_096), Nanos(10_000), ObservationKind::Exact);
        }
        estimator.observe(read(4_096), Nanos(1_000_000_000), ObservationKind::Exact);
        assert!(estimator.low(read(4_096)).unwrap().0 < 10_500);
        for _ in 0..400 {
            estimator.observe(read(4_096), Nanos(100_000), ObservationKind::Exact);
        }
        assert!(estimator.low(read(4_096)).unwrap().0 > 95_000);
        for _ in 0..40 {
            estimator.observe(read(4_096), Nanos(10_000), ObservationKind::Exact);
        }
        assert!(estimator.low(read(4_096)).unwrap().0 < 11_000);
    }

    /// Guards against a growing estimate: a completion found by the first poll after a sleep is never seen earlier than
    /// the end of the sleep: taken as exact, it could only lengthen the estimate.
    #[test]
    fn overslept_completions_shorten_the_estimate() {
        let mut estimator = LatencyEstimator::default();
        estimator.observe(read(8_192), Nanos(100_000), ObservationKind::Exact);
        for _ in 0..200 {
            let slept = estimator.low(read(8_192)).unwrap();
            let (seen, at) = if slept.0 >= 50_000 {
                (ObservationKind::UpperBound, slept)
            } else {
                (ObservationKind::Exact, Nanos(50_000))
            };
            estimator.observe(read(8_192), at, seen);
        }
        let low = estimator.low(read(8_192)).unwrap().0;
        assert!((45_000..=52_000).contains(&low), "{low}");
    }
}
