//! Fuzzes a controller with register accesses and admin commands.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| headwater_fuzz_bodies::admin_command::body(bytes));
