//! The clock of queues and handles: the machine's, or a virtual one that a test advances.
//!
//! Input: none. Output: the time, and sleeps. Invariant: in virtual time no thread waits; a sleep advances the time by
//! its length. Only this module and the threads of queues and caches read a clock in this crate.

use crate::completion::SleepObservation;
use headwater_host::clock::{Clock, Nanos};
use headwater_host::sync::{AtomicU64, Ordering};
use std::sync::Arc;

/// The duration of a poll in virtual time.
const VIRTUAL_POLL: Nanos = Nanos(100);

/// A source of time. A clone is the same source.
#[derive(Clone, Debug)]
pub enum IoClock {
    /// The machine's clock.
    Machine(Clock),
    /// A virtual time in nanoseconds.
    Virtual(Arc<AtomicU64>),
}

impl IoClock {
    /// Returns the machine's clock, starting now.
    #[must_use]
    pub fn machine() -> Self {
        Self::Machine(Clock::start())
    }

    /// Returns a virtual clock at zero.
    #[must_use]
    pub fn virtual_at_zero() -> Self {
        Self::Virtual(Arc::new(AtomicU64::new(0)))
    }

    /// Returns the current time.
    #[must_use]
    #[inline]
    pub fn now(&self) -> Nanos {
        match self {
            Self::Machine(clock) => clock.now(),
            Self::Virtual(time) => Nanos(time.load(Ordering::Relaxed)),
        }
    }

    /// Accounts for a poll that found nothing: a processor pause, or a step of virtual time.
    #[inline]
    pub fn pause_after_poll(&self) {
        match self {
            Self::Machine(_) => std::hint::spin_loop(),
            Self::Virtual(_) => self.sleep(VIRTUAL_POLL),
        }
    }

    /// Returns how long to poll before sleeping: `span`, or zero in virtual time, where polling takes no time.
    #[must_use]
    pub fn spin_limit(&self, span: Nanos) -> Nanos {
        match self {
            Self::Machine(_) => span,
            Self::Virtual(_) => Nanos::ZERO,
        }
    }

    /// Sleeps as [`sleep`](Self::sleep) does, and returns the length and the processor time of the sleep. In virtual time
    /// a sleep takes no processor time that could be measured.
    pub(crate) fn sleep_observed(&self, asked: Nanos) -> SleepObservation {
        let began = self.now();
        let used = self.thread_cpu();
        self.sleep(asked);
        let cpu = self.thread_cpu().zip(used).map(|(after, before)| after.since(before));
        SleepObservation { asked, took: self.now().since(began), cpu }
    }

    fn thread_cpu(&self) -> Option<Nanos> {
        match self {
            Self::Machine(_) => Some(Clock::thread_cpu()),
            Self::Virtual(_) => None,
        }
    }

    /// Sleeps on the calling thread, or advances the virtual time.
    pub fn sleep(&self, span: Nanos) {
        match self {
            Self::Machine(_) => Clock::sleep_precisely(span),
            Self::Virtual(time) => {
                time.fetch_add(span.0, Ordering::Relaxed);
            }
        }
    }
}
