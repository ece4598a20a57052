//! Where queues and handles have the time from: the machine's clock, or a number that a test moves.
//!
//! In: nothing. Out: the time, and sleeps. Invariant: in virtual time nobody waits; a sleep moves the time on by what was
//! asked for. This and the polling thread are the only places of the room that touch a clock.

use headwater_host::clock::{Clock, Nanos};
use headwater_host::sync::{AtomicU64, Ordering};
use std::sync::Arc;

/// What a look into a queue takes in virtual time.
const VIRTUAL_LOOK: Nanos = Nanos(100);

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

    /// A look that found nothing is over: in virtual time it took a while too.
    #[inline]
    pub fn looked(&self) {
        match self {
            Self::Machine(_) => std::hint::spin_loop(),
            Self::Virtual(_) => self.sleep(VIRTUAL_LOOK),
        }
    }

    /// How long looking again and again is better than a sleep: in virtual time, where looking takes none, not at all.
    #[must_use]
    pub fn spin(&self, span: Nanos) -> Nanos {
        match self {
            Self::Machine(_) => span,
            Self::Virtual(_) => Nanos::ZERO,
        }
    }

    /// Waits on the calling thread, or moves the number.
    pub fn sleep(&self, span: Nanos) {
        match self {
            Self::Machine(_) => Clock::sleep_finely(span),
            Self::Virtual(time) => {
                time.fetch_add(span.0, Ordering::Relaxed);
            }
        }
    }
}
