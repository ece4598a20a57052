//! Fuzzes 64 bytes of a submission queue entry.
#![no_main]

#[path = "../bodies/command_decode.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::body(bytes));
