//! Tests of the controller's admin commands, by section of the specification.
#![cfg(not(loom))]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod events;
mod features;
mod host;
mod identify;
mod logs;
mod namespaces;
mod queues;
