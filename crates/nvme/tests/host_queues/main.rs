//! Tests of queues that a host creates one by one, with well-behaved and misbehaving hosts.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod abort;
mod guest;
mod rules;
mod runs;
mod shadow_doorbells;
