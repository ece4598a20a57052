//! Tests of the RESP front end over loopback sockets, with a model of the device.
#![expect(clippy::unwrap_used, reason = "a failed unwrap in a test reports its location")]
#![expect(clippy::print_stderr, reason = "a seeded test prints its seed")]

#[path = "resp/behaviour.rs"]
mod behaviour;
#[path = "resp/bench.rs"]
mod harness;
#[path = "resp/clients.rs"]
mod clients;
#[path = "resp/differential.rs"]
mod differential;
#[path = "resp/model.rs"]
mod model;
#[path = "resp/unruly.rs"]
mod misbehaving_clients;
#[path = "resp/wire.rs"]
mod wire;
