//! What the controller's admin commands promise, by the sections that ask for it.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod events;
mod fake_subsystem;
mod features;
mod host;
mod hostile;
mod identify;
mod logs;
mod namespaces;
mod queues;
