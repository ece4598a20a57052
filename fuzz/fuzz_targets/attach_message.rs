//! Fuzzes datagrams of the attach socket.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| headwater_fuzz_bodies::attach_message::body(bytes));
