//! Tests of NVMe/TCP with TLS on real sockets: the behaviour suite, refused hosts, and many commands in flight.
#![expect(clippy::unwrap_used, reason = "a test fails by a panic")]

mod admission;
#[path = "../nvme_tcp/host.rs"]
#[expect(dead_code, reason = "hosts without TLS are tested elsewhere")]
mod host;
mod secured;
mod traffic;
