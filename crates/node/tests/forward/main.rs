//! A controller that clients share: our own driver over our own controller, and clients whose entries it carries out after
//! they were checked.
#![expect(clippy::unwrap_used, reason = "a broken promise ends the test")]

mod asleep;
mod attached;
mod desk;
mod direct;
#[path = "../../../nvme/tests/admin/fake_subsystem.rs"]
mod fake_subsystem;
mod host;
mod isolation;
#[path = "../../../nvme/tests/driver/machine.rs"]
mod machine;
mod resets;
