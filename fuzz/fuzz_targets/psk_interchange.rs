//! Fuzzes keys in interchange form.
#![no_main]

#[path = "../bodies/psk_interchange.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::body(bytes));
