//! Queues that a real host makes one by one, against hosts that tell the truth and hosts that do not.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test stops where something is not as it said")]

mod abort;
mod guest;
mod rules;
mod runs;
mod shadow_doorbells;
