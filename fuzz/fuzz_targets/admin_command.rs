//! Fuzzes a controller with register accesses and admin commands.
#![no_main]

#[path = "../bodies/admin_command.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::body(bytes));
