//! The wall time in microseconds, from a wall clock in milliseconds and a monotonic clock in nanoseconds.
//!
//! Input: both clocks, once a turn. Output: the wall time. Each pair bounds the distance of the clocks to a millisecond; the
//! bounds of many pairs together leave few microseconds. Invariant: a time is inside the millisecond of the wall clock.

use headwater_host::clock::{Nanos, UnixMillis};
use headwater_host::width::narrow;

const NANOS_PER_MILLI: i128 = 1_000_000;

/// The bounds of the distance from the monotonic to the wall clock, in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct WallEstimate {
    low: i128,
    high: i128,
}

impl WallEstimate {
    /// Adds what both clocks say now.
    pub(crate) fn update(&mut self, now: Nanos, wall: UnixMillis) {
        let low = i128::from(wall.0) * NANOS_PER_MILLI - i128::from(now.0);
        let high = low + NANOS_PER_MILLI;
        if low < self.high && high > self.low {
            self.low = self.low.max(low);
            self.high = self.high.min(high);
        } else {
            // The wall clock was set.
            (self.low, self.high) = (low, high);
        }
    }

    /// Returns the wall time in microseconds since the epoch.
    pub(crate) fn micros(&self, now: Nanos, wall: UnixMillis) -> u64 {
        let first = wall.0 * 1_000;
        let micros = (i128::from(now.0) + self.low) / 1_000;
        narrow(micros.clamp(first.into(), i128::from(first) + 999))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimate_comes_close_and_follows_a_clock_that_is_set() {
        let mut random = fastrand::Rng::with_seed(5);
        let mut estimate = WallEstimate::default();
        let mut now = 12_345_678;
        for mut distance in
            [1_700_000_000_000_123_456_u64, 1_600_000_000_000_654_321, 1_600_000_000_009_000_000]
        {
            distance += random.u64(..1_000);
            for round in 0..2_000 {
                now += random.u64(..3_000_000);
                let wall = UnixMillis((now + distance) / 1_000_000);
                estimate.update(Nanos(now), wall);
                let (micros, exact) = (estimate.micros(Nanos(now), wall), (now + distance) / 1_000);
                assert_eq!(micros / 1_000, wall.0);
                assert!(
                    micros <= exact && (round < 1_000 || exact - micros < 20),
                    "{round}: {micros} for {exact}"
                );
            }
        }
    }
}
