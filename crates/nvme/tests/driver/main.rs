//! The driver against our own controller over memory, in virtual time: what it promises when the controller works, when it
//! is slow, mute, broken, or gone.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test ends with the first thing that is not as it should be")]

#[path = "../admin/fake_subsystem.rs"]
mod fake_subsystem;
mod faults;
mod lent;
mod machine;
mod promises;
mod runs;
mod shop;
