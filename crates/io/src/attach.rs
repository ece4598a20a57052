//! Attach, the client's half: a device in a daemon, with rings and buffers in memory that both have mapped.
//!
//! In: the path of the daemon's socket. Out: a [`Backend`](crate::Backend). The socket is the control plane; once a queue
//! stands, a command is a store to shared memory and its completion a load, and the kernel is called only to sleep or to wake
//! a sleeper. Invariant: what was submitted is answered, also when the daemon was away meanwhile.

pub mod admin;
pub mod connection;
mod direct;
pub mod protocol;
mod queue;
mod session;

pub use session::{AttachBackend, AttachOptions};
