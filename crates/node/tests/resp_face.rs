//! The face over loopback sockets, with a model for a device.

#[path = "resp_face/behaviour.rs"]
mod behaviour;
#[path = "resp_face/differential.rs"]
mod differential;
#[path = "resp_face/model.rs"]
mod model;
#[path = "resp_face/wire.rs"]
mod wire;
