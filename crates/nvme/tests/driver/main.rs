//! Tests of the driver against this crate's controller over memory, in virtual time: with a controller that works, is
//! slow, unresponsive, faulty, or removed.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test ends at the first unexpected value")]

mod faulty_controller;
mod host_harness;
mod lent;
mod seeded_runs;
mod working_controller;
