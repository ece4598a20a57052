//! Tests of the block cache through its public interface: a naive model, failures, and B11 regressions.
//!
//! Input: seeds. Output: a pass or a failure for each. Invariant: the backing device's behaviour depends on the seed
//! alone.
#![expect(clippy::unwrap_used, reason = "tests")]

mod background;
mod cached_handles;
mod durability;
mod examples;
mod fake;
mod futures;
mod joined;
mod model;
mod moves;
mod over_handle;
mod overlaps;
mod regressions;
mod resizing;
mod scans;
mod threads;
