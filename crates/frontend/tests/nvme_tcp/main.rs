//! Tests of the NVMe/TCP front end on real sockets, with correct and with malicious hosts.
#![expect(clippy::unwrap_used, reason = "a test fails by a panic")]

mod abort;
mod behaviour;
mod host;
mod lifecycle;
mod malicious_hosts;
mod received_values;
mod wire;
