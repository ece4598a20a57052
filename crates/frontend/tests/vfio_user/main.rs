//! The vfio-user face, driven as a hypervisor drives it.
//!
//! In: messages, true and not. Out: what a client is promised.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod abort;
mod driver;
mod function;
mod guest;
mod hypervisor;
mod scattered;
mod wire;
