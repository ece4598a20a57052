//! The NVMe/TCP face on real sockets: hosts that behave, hosts that do not, and many of them.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod abort;
mod behaviour;
mod host;
mod lifecycle;
mod unruly;
mod wire;
