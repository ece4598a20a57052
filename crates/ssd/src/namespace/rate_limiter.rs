//! Rate limiting of a namespace: two token buckets, one of commands and one of bytes.
//!
//! Input: limits, the cost of a command, and the time. Output: permission to start, or the time to ask again. A command
//! that costs more than a bucket holds starts from a full one and leaves it in debt, so that no command waits forever.
//! Invariant: of the commands started in any span of time, all but the last cost no more than a full bucket and what
//! flowed in during the span. The arithmetic is exact: frequent calls neither gain nor lose tokens.

use super::NamespaceLimits;
use headwater_host::clock::Nanos;

/// Bytes that a command counts as if only bytes are limited.
pub(crate) const COMMAND_BYTES: u64 = 4_096;

/// The units of one token: a rate of one token a second adds one unit each nanosecond.
const UNITS_PER_TOKEN: i128 = 1_000_000_000;
/// A level that no bucket reaches.
const UNLIMITED_LEVEL: i128 = i128::MAX / 2;

/// The remaining tokens of both limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RateLimiter {
    commands: i128,
    bytes: i128,
    updated_at: Nanos,
}

impl Default for RateLimiter {
    fn default() -> Self {
        Self { commands: UNLIMITED_LEVEL, bytes: UNLIMITED_LEVEL, updated_at: Nanos::ZERO }
    }
}

/// Returns the most commands and bytes that may start at once.
fn burst_sizes(limits: &NamespaceLimits) -> (u64, u64) {
    let burst = u64::from(limits.burst.max(1));
    let mean = match u64::from(limits.iops) {
        0 => COMMAND_BYTES,
        iops => (limits.bytes_per_second / iops).max(1),
    };
    (burst, burst.saturating_mul(mean))
}

/// Returns the nanoseconds until a level reaches what is needed.
fn nanos_until(level: i128, needed: u64, rate: u64) -> u64 {
    let missing = i128::from(needed) * UNITS_PER_TOKEN - level;
    if rate == 0 || missing <= 0 {
        return 0;
    }
    let rate = i128::from(rate);
    u64::try_from((missing + rate - 1) / rate).unwrap_or(u64::MAX)
}

impl RateLimiter {
    /// Starts a command that moves this many bytes.
    ///
    /// # Errors
    /// The time before which the command may not start.
    pub(crate) fn start_command(
        &mut self,
        limits: &NamespaceLimits,
        bytes: u64,
        now: Nanos,
    ) -> Result<(), Nanos> {
        let elapsed = i128::from(now.since(self.updated_at).0);
        self.updated_at = self.updated_at.max(now);
        let (iops, rate) = (u64::from(limits.iops), limits.bytes_per_second);
        let (commands_max, bytes_max) = burst_sizes(limits);
        let filled = |level: i128, rate: u64, max: u64| match rate {
            0 => UNLIMITED_LEVEL,
            rate => (level + i128::from(rate) * elapsed).min(i128::from(max) * UNITS_PER_TOKEN),
        };
        self.commands = filled(self.commands, iops, commands_max);
        self.bytes = filled(self.bytes, rate, bytes_max);
        let pause =
            nanos_until(self.commands, 1, iops).max(nanos_until(self.bytes, bytes.min(bytes_max), rate));
        if pause > 0 {
            return Err(now.after(Nanos(pause)));
        }
        self.commands -= UNITS_PER_TOKEN;
        self.bytes -= i128::from(bytes) * UNITS_PER_TOKEN;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Computes the tokens, in billionths, at a time, from the whole history of admissions.
    fn level(history: &[(u64, u64)], rate: u64, max: u64, at: u64) -> i128 {
        let max = i128::from(max) * UNITS_PER_TOKEN;
        let (mut level, mut last) = (max, 0);
        for (when, cost) in history {
            level = max.min(level + i128::from(when - last) * i128::from(rate))
                - i128::from(*cost) * UNITS_PER_TOKEN;
            last = *when;
        }
        max.min(level + i128::from(at - last) * i128::from(rate))
    }

    /// Returns the first nanosecond at which a naive bucket starts a command, by bisection.
    fn naive_start(history: &[(u64, u64)], (rate, max): (u64, u64), cost: u64, from: u64) -> u64 {
        if rate == 0 {
            return from;
        }
        let fits = |at| level(history, rate, max, at) >= i128::from(cost.min(max)) * UNITS_PER_TOKEN;
        let (mut low, mut high) = (from, from + 1_000_000_000_000_000);
        if fits(low) {
            return low;
        }
        while high - low > 1 {
            let middle = low.midpoint(high);
            if fits(middle) { high = middle } else { low = middle }
        }
        high
    }

    proptest! {
        #[test]
        fn commands_start_at_the_same_nanosecond_as_with_a_naive_bucket(
            iops in prop_oneof![Just(0u32), 1u32..50_000],
            bytes_per_second in prop_oneof![Just(0u64), 1u64..200_000_000],
            burst in 0u32..20,
            commands in prop::collection::vec((0u64..3_000_000, 0u64..70_000), 1..60),
        ) {
            let limits = NamespaceLimits { iops, bytes_per_second, burst };
            let (commands_max, bytes_max) = burst_sizes(&limits);
            let mut bucket = RateLimiter::default();
            let (mut by_count, mut by_bytes) = (Vec::new(), Vec::new());
            let (mut arrival, mut last) = (0, 0);
            for (pause, bytes) in commands {
                arrival += pause;
                // FIFO: no command starts before the one that arrived before it.
                let from = arrival.max(last);
                let naive = naive_start(&by_count, (u64::from(iops), commands_max), 1, from);
                let naive = naive.max(naive_start(&by_bytes, (bytes_per_second, bytes_max), bytes, naive));
                let mut now = Nanos(from);
                let mut asked = 0;
                while let Err(later) = bucket.start_command(&limits, bytes, now) {
                    prop_assert!(later > now && later.0 <= naive, "returned {later}, naive {naive}");
                    // A call before that time changes nothing.
                    let early = Nanos(now.0.midpoint(later.0));
                    prop_assert!(early >= later || bucket.start_command(&limits, bytes, early).is_err());
                    now = later;
                    asked += 1;
                    prop_assert!(asked < 4);
                }
                prop_assert_eq!(now.0, naive);
                by_count.push((naive, 1));
                by_bytes.push((naive, bytes));
                last = naive;
            }
        }
    }

    #[test]
    fn a_new_limit_counts_from_a_full_bucket() {
        let limits = NamespaceLimits { iops: 10, bytes_per_second: 0, burst: 2 };
        let mut bucket = RateLimiter::default();
        let none = NamespaceLimits::default();
        assert!((0..100).all(|_| bucket.start_command(&none, 1 << 30, Nanos(5)).is_ok()));
        assert_eq!(bucket.start_command(&limits, 1, Nanos(5)), Ok(()));
        assert_eq!(bucket.start_command(&limits, 1, Nanos(5)), Ok(()));
        assert_eq!(bucket.start_command(&limits, 1, Nanos(5)), Err(Nanos(100_000_005)));
    }
}
