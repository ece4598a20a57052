//! Fuzzes PRPs and SGLs with the memory that they lead into.
#![no_main]

#[path = "../bodies/data_pointer.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::body(bytes));
