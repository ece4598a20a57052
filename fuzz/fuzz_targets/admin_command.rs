//! Fuzzes a controller with register accesses and admin commands.
#![no_main]

#[path = "../bodies/admin_command.rs"]
mod body;
#[path = "../../crates/nvme/tests/admin/fake_subsystem.rs"]
mod fake_subsystem;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::body(bytes));
