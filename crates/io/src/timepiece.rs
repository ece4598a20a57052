//! Where queues and handles have the time from: the machine's clock, or a number that a test moves.
//!
//! In: nothing. Out: the time, and sleeps. Invariant: in virtual time nobody waits; a sleep moves the time on by what was
//! asked for. This and the polling thread are the only places of the room that touch a clock.

use headwater_host::clock::{Clock, Nanos};
use headwater_host::sync::{AtomicU64, Ordering};
use std::sync::Arc;

/// A source of time. A clone is the same one.
#[derive(Clone, Debug)]
pub enum Timepiece {
    /// The machine's clock.
    Machine(Clock),
    /// A number, in nanoseconds.
    Virtual(Arc<AtomicU64>),
}

impl Timepiece {
    /// The machine's clock, from now on.
    #[must_use]
    pub fn machine() -> Self {
        Self::Machine(Clock::start())
    }

    /// A number that stands at zero.
    #[must_use]
    pub fn at_zero() -> Self {
        Self::Virtual(Arc::new(AtomicU64::new(0)))
    }

    /// The time.
    #[must_use]
    #[inline]
    pub fn now(&self) -> Nanos {
        match self {
            Self::Machine(clock) => clock.now(),
            Self::Virtual(time) => Nanos(time.load(Ordering::Relaxed)),
        }
    }

    /// Waits on the calling thread, or moves the number.
    pub fn sleep(&self, span: Nanos) {
        match self {
            Self::Machine(_) => Clock::sleep(span),
            Self::Virtual(time) => {
                time.fetch_add(span.0, Ordering::Relaxed);
            }
        }
    }
}
