//! Tests of NVMe over TCP in memory: host and controller against each other, and each against a peer that violates the
//! protocol.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

mod fragments;
mod hostile_host;
mod hostile_target;
mod link_faults;
mod parts;
mod raw;
mod test_target;
