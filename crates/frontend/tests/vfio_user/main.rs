//! Tests of the vfio-user front end, driven like by a hypervisor.
//!
//! Input: messages, valid and invalid. Output: replies, completions and interrupts.
#![expect(clippy::unwrap_used, reason = "a test fails by a panic")]

mod abort;
mod driver;
mod function;
mod guest;
mod hypervisor;
mod scattered;
mod unsealed;
mod wire;
