//! Attach, the client side: a device in a daemon, with rings and buffers in shared memory.
//!
//! Input: the path of the daemon's socket. Output: a [`DeviceBackend`](crate::backend::DeviceBackend). The socket is the control plane; once
//! a queue exists, a command is a store to shared memory and its completion a load, with a system call only to sleep or
//! to wake a sleeper. Invariant: every submitted command completes, also across a restart of the daemon.

pub mod admin;
pub mod connection;
mod direct;
pub mod protocol;
mod queue;
mod session;

pub use session::{AttachBackend, AttachOptions};
