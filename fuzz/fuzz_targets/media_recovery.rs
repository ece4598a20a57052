//! Fuzzes recovery from a medium after a power cut, a fault or an attack.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| headwater_fuzz_bodies::media_recovery::body(bytes));
