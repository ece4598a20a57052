//! Completion policies: the state machines by which a handle finds completions.
//!
//! Input: observations (latencies, lengths of sleeps, completions) and the time as an argument. Output: decisions to
//! poll, to sleep or to notify. Invariant: nothing here sleeps or reads a clock; the caller does.
//!
//! | policy | poller | between two polls |
//! | --- | --- | --- |
//! | [`Inline`](CompletionPolicy::Inline) | the caller | nothing |
//! | [`Paced`](CompletionPolicy::Paced) | the caller, in `wait` | sleeps as its [`PollPace`] says |
//! | [`Thread`](CompletionPolicy::Thread) | a completion thread | sleeps as its [`PollPace`] says |
//! | [`Interrupt`](CompletionPolicy::Interrupt) | the caller, when signalled | sleeps on the descriptor |

mod aggregation;
mod estimator;
mod period;

pub use aggregation::{CompletionAggregation, CompletionAggregator, NotificationTime};
pub use estimator::{CommandProfile, LatencyEstimator, ObservationKind, SizeClass, TransferDirection};
pub use period::{PollPace, PollPeriod, SleepObservation};

/// The policy by which a handle finds completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompletionPolicy {
    /// `poll` polls the queue; `wait` polls repeatedly, then sleeps on the queue. Reads no clock.
    #[default]
    Inline,
    /// `wait` sleeps for a part of a command's expected latency, then polls: less processor time for nearly the same
    /// latency.
    Paced(PollPace),
    /// A thread polls and notifies; `poll` takes what the thread found.
    Thread(PollPace, CompletionAggregation),
    /// `wait` sleeps until the device signals a completion, and then until enough have arrived.
    Interrupt(CompletionAggregation),
}
