//! The face over loopback sockets, with a model for a device.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]
#![expect(clippy::print_stderr, reason = "a seeded test says its seed")]

#[path = "resp/behaviour.rs"]
mod behaviour;
#[path = "resp/bench.rs"]
mod bench;
#[path = "resp/clients.rs"]
mod clients;
#[path = "resp/differential.rs"]
mod differential;
#[path = "resp/model.rs"]
mod model;
#[path = "resp/unruly.rs"]
mod unruly;
#[path = "resp/wire.rs"]
mod wire;
