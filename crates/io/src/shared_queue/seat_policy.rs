//! The completion policy of one seat of a shared queue.
//!
//! Input: the policy of a handle. Output: when the queue's thread notifies the seat. Stateless.

use headwater_host::clock::Nanos;

/// The completion policy of a seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeatPolicy {
    /// The seat polls by itself, also while the queue's thread polls for other seats.
    Polls,
    /// The queue's thread polls for the seat, and notifies it of `count` answers, or when the first has waited for `time`.
    Thread {
        /// The answers of one notification.
        count: u32,
        /// The longest wait of an answer; zero for no limit.
        time: Nanos,
    },
}

impl SeatPolicy {
    /// Returns the number of answers from which the queue's thread notifies the seat.
    pub(super) fn threshold(self) -> u32 {
        match self {
            Self::Polls => 1,
            Self::Thread { count, .. } => count.max(1),
        }
    }

    /// Returns the longest wait of an answer, if there is one.
    pub(super) fn limit(self) -> Option<Nanos> {
        match self {
            Self::Thread { count, time } if count > 1 && time > Nanos::ZERO => Some(time),
            _ => None,
        }
    }
}
