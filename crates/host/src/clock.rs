//! Time as a value that is passed to its users.
//!
//! Input: the kernel's clocks. Output: [`Nanos`] (monotonic) and [`UnixMillis`] (wall time, for expiry only). The rest
//! of the stack never reads a clock: it receives one of these two, so that the simulator can control both.

use rustix::time::Timespec;
use std::cell::Cell;
use std::fmt;
use std::num::NonZeroU64;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A point on the monotonic clock, or a span of it, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The zero of the monotonic clock.
    pub const ZERO: Self = Self(0);

    /// Returns a span of whole microseconds.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros * 1_000)
    }

    /// Returns a span of whole milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis * 1_000_000)
    }

    /// Returns this point moved later by `span`, saturating at the maximum.
    #[must_use]
    pub const fn after(self, span: Self) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// Returns the span from `earlier` to this point, zero when `earlier` is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// Converts the span for the standard library.
    #[must_use]
    pub const fn to_duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// Converts the span for calls into the kernel.
    #[must_use]
    pub fn to_timespec(self) -> Timespec {
        let span = self.to_duration();
        Timespec {
            // The seconds in `u64::MAX` nanoseconds fit.
            tv_sec: span.as_secs().cast_signed(),
            tv_nsec: span.subsec_nanos().into(),
        }
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_duration())
    }
}

/// Wall time in milliseconds since the Unix epoch. Only expiry uses it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixMillis(pub u64);

/// The kernel's clocks.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// Starts a clock whose monotonic zero is now.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the monotonic clock")]
    pub fn start() -> Self {
        Self { origin: Instant::now() }
    }

    /// Returns the monotonic time since the clock was started.
    #[must_use]
    #[inline]
    pub fn now(&self) -> Nanos {
        let elapsed = self.origin.elapsed();
        Nanos(
            elapsed.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(elapsed.subsec_nanos())),
        )
    }

    /// Returns the wall time; zero if the machine's clock is before 1970.
    #[must_use]
    pub fn wall(&self) -> UnixMillis {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        UnixMillis(since.as_secs().saturating_mul(1_000).saturating_add(u64::from(since.subsec_millis())))
    }

    /// Returns the CPU time this thread has used so far.
    #[must_use]
    pub fn thread_cpu() -> Nanos {
        let spec = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        timespec_nanos(spec)
    }

    /// Returns the CPU time this process has used so far, all threads together.
    #[must_use]
    pub fn process_cpu() -> Nanos {
        let spec = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        timespec_nanos(spec)
    }

    /// Suspends the calling thread. For edges of the stack that have nothing else to do; the device core sleeps in its
    /// own loop.
    #[expect(clippy::disallowed_methods, reason = "the one place that sleeps by time alone")]
    pub fn sleep(span: Nanos) {
        std::thread::sleep(span.to_duration());
    }

    /// Suspends the thread as [`sleep`](Self::sleep) does, but wakes as soon as the kernel can: without this the kernel
    /// may delay a wake-up by its timer slack, 50 microseconds, to batch it. After its first call, all sleeps of the
    /// calling thread are so.
    pub fn sleep_precisely(span: Nanos) {
        MINIMAL_SLACK.with(|fine| {
            if !fine.replace(true) {
                // A kernel that refuses wakes later; callers measure how long sleeps take.
                let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
            }
        });
        Self::sleep(span);
    }
}

thread_local! {
    /// True if this thread has set its timer slack to the minimum.
    static MINIMAL_SLACK: Cell<bool> = const { Cell::new(false) };
}

fn timespec_nanos(spec: Timespec) -> Nanos {
    let seconds = u64::try_from(spec.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(spec.tv_nsec).unwrap_or(0);
    Nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monotonic_time_never_goes_back() {
        let clock = Clock::start();
        let mut last = clock.now();
        for _ in 0..1_000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
    }

    #[test]
    fn spans_saturate_instead_of_wrapping() {
        assert_eq!(Nanos(5).since(Nanos(9)), Nanos::ZERO);
        assert_eq!(Nanos(u64::MAX).after(Nanos(1)), Nanos(u64::MAX));
    }
}
