//! Fuzzes datagrams of the attach socket.
#![no_main]

#[path = "../bodies/attach_message.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::body(bytes));
