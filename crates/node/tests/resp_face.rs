//! The face over loopback sockets, with a model for a device.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]
#![expect(clippy::print_stderr, reason = "a seeded test says its seed")]

#[path = "resp_face/behaviour.rs"]
mod behaviour;
#[path = "resp_face/bench.rs"]
mod bench;
#[path = "resp_face/clients.rs"]
mod clients;
#[path = "resp_face/differential.rs"]
mod differential;
#[path = "resp_face/model.rs"]
mod model;
#[path = "resp_face/unruly.rs"]
mod unruly;
#[path = "resp_face/wire.rs"]
mod wire;
