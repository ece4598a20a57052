//! The controller's end of I/O queues: fetch in turn, answer each command exactly once.
//!
//! In: ring memory that hosts write. Out: [`Fetched`] commands, and completions in the hosts' queues. No clock, no socket:
//! who owns an [`Arbiter`] decides when to look and whom to wake.
//!
//! # What this does not do
//! It understands no command (the interpreter does) and knows no registers and no admin queue.

pub mod arbiter;
pub mod live_ids;
pub mod queue;
pub mod token;

pub use arbiter::{Arbiter, ArbiterError};
pub use queue::{Drain, Fetch, Fetched, IoQueue, QueueId, QueueKind, QueueState};
pub use token::CommandToken;
