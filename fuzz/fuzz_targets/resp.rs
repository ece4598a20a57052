//! Fuzzes what a RESP client sends, cut into reads in two ways.
#![no_main]

#[path = "../bodies/resp.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::body(bytes));
