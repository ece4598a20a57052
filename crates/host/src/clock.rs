//! Time, as a value that is handed to whoever needs it.
//!
//! In: the kernel's clocks. Out: [`Nanos`] (monotonic) and [`UnixMillis`] (wall time, for expiry only). The rest of the
//! stack never reads a clock: it is given one of these two, so that the simulator can own both.

use rustix::time::Timespec;
use std::cell::Cell;
use std::fmt;
use std::num::NonZeroU64;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A point on the monotonic clock, or a span of it, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The start of time.
    pub const ZERO: Self = Self(0);

    /// A span of whole microseconds.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros * 1_000)
    }

    /// A span of whole milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis * 1_000_000)
    }

    /// This point moved later by `span`, stopping at the end of time.
    #[must_use]
    pub const fn after(self, span: Self) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// The span from `earlier` to this point, zero when `earlier` is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// The same span for the standard library.
    #[must_use]
    pub const fn to_duration(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// The same span for calls into the kernel.
    #[must_use]
    pub fn to_timespec(self) -> Timespec {
        let span = self.to_duration();
        Timespec {
            // As many nanoseconds as there can be are fewer seconds than that.
            tv_sec: i64::try_from(span.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: span.subsec_nanos().into(),
        }
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_duration())
    }
}

/// Wall time in milliseconds since the Unix epoch. Only expiry looks at it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixMillis(pub u64);

/// The kernel's clocks, read together.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock whose monotonic zero is now.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the monotonic clock")]
    pub fn start() -> Self {
        Self { origin: Instant::now() }
    }

    /// Monotonic time since the clock was started.
    #[must_use]
    #[inline]
    pub fn now(&self) -> Nanos {
        let elapsed = self.origin.elapsed();
        Nanos(
            elapsed.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(elapsed.subsec_nanos())),
        )
    }

    /// Wall time. A machine whose clock stands before 1970 reads as zero.
    #[must_use]
    pub fn wall(&self) -> UnixMillis {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        UnixMillis(since.as_secs().saturating_mul(1_000).saturating_add(u64::from(since.subsec_millis())))
    }

    /// CPU time this thread has used so far.
    #[must_use]
    pub fn thread_cpu() -> Nanos {
        let spec = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        timespec_nanos(spec)
    }

    /// CPU time this process has used so far, all threads together.
    #[must_use]
    pub fn process_cpu() -> Nanos {
        let spec = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        timespec_nanos(spec)
    }

    /// Waits on the calling thread. For edges that have nothing else to do; the device core sleeps in its own loop.
    #[expect(clippy::disallowed_methods, reason = "the one place that sleeps by time alone")]
    pub fn sleep(span: Nanos) {
        std::thread::sleep(span.to_duration());
    }

    /// As [`sleep`](Self::sleep), but woken as soon as the kernel can: it may else put a wake-up off by its timer slack, 50
    /// microseconds, to join it with others. From its first such sleep on, all sleeps of the calling thread are so.
    pub fn sleep_finely(span: Nanos) {
        FINE.with(|fine| {
            if !fine.replace(true) {
                // A kernel that refuses wakes later; whoever asked measures what sleeps take.
                let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
            }
        });
        Self::sleep(span);
    }
}

thread_local! {
    /// Whether this thread has given up its timer slack.
    static FINE: Cell<bool> = const { Cell::new(false) };
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
