//! Tests of mediated sharing: clients share a simulated controller, which executes their validated entries.
#![expect(clippy::unwrap_used, reason = "a test fails by a panic")]

mod asleep;
mod attached;
mod direct;
mod harness;
mod host;
mod isolation;
mod resets;
