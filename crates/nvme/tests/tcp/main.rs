//! Both ends of NVMe over TCP in memory: against each other, and each against a peer that lies.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod desk;
mod fragments;
mod hostile_host;
mod hostile_target;
mod link_faults;
mod raw;
