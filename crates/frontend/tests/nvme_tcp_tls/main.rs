//! NVMe/TCP inside TLS on real sockets: the behaviour of every device, hosts that may not come in, and many commands at once.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod admission;
#[path = "../nvme_tcp/host.rs"]
#[expect(dead_code, reason = "hosts without TLS are tested elsewhere")]
mod host;
mod secured;
#[path = "../../../headwater/tests/behaviour/suite.rs"]
mod suite;
mod traffic;
