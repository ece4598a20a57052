//! Fuzzes what the other end of an NVMe/TCP connection sends; see the body.
#![no_main]

#[path = "../bodies/tcp_initiator.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::body(bytes));
