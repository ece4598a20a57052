//! How a handle learns that its commands are answered, as state machines.
//!
//! In: what was observed (latencies, how long a sleep took, completions) and the time as an argument. Out: whether to look,
//! how long to sleep, when to tell somebody. Invariant: nothing here sleeps or reads a clock; whoever drives it does.
//!
//! | policy | who looks | between two looks |
//! | --- | --- | --- |
//! | [`Inline`](CompletionPolicy::Inline) | the caller | nothing |
//! | [`Paced`](CompletionPolicy::Paced) | the caller, in `wait` | sleeps as its [`Pace`] says |
//! | [`Thread`](CompletionPolicy::Thread) | a thread of its own | sleeps as its [`Pace`] says |
//! | [`Interrupt`](CompletionPolicy::Interrupt) | the caller, once the descriptor says so | sleeps on the descriptor |

mod aggregation;
mod estimator;
mod period;

pub use aggregation::{Aggregation, Aggregator, Due};
pub use estimator::{Direction, Estimator, Seen, SizeClass, Work};
pub use period::{Pace, Period};

/// How a handle learns of completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompletionPolicy {
    /// `poll` looks into the queue; `wait` looks again and again, then sleeps on the queue. Reads no clock.
    #[default]
    Inline,
    /// `wait` sleeps a part of what the command is expected to take, then looks: less of a processor for nearly the same
    /// latency.
    Paced(Pace),
    /// A thread looks, and tells. `poll` finds what it found.
    Thread(Pace, Aggregation),
    /// `wait` sleeps until the device says that something has come, and then until enough has.
    Interrupt(Aggregation),
}
