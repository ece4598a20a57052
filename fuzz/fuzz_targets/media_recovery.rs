//! Fuzzes a medium as a power cut, a fault or an enemy left it.
#![no_main]

#[path = "../bodies/media_recovery.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::body(bytes));
