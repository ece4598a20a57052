//! The block cache from outside: against a naive model, through failures, and its B11 regressions.
//!
//! In: seeds. Out: a verdict for each. Invariant: what the device below does is drawn from the seed alone.
#![expect(clippy::unwrap_used, reason = "tests")]

mod cached_handles;
mod durability;
mod examples;
mod fake;
mod model;
mod over_handle;
mod overlaps;
mod regressions;
mod resizing;
mod scans;
mod threads;
