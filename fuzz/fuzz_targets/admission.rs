//! Fuzzes what attached processes hand to an SSD that a node shares; see the body.
#![no_main]

#[path = "../bodies/admission.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::body(bytes));
