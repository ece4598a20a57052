//! Fuzzes 64 bytes of a submission queue entry.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| headwater_fuzz_bodies::command_decode::body(bytes));
