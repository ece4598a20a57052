//! Fuzzes the recovery of a medium of version 2 whose checksums match.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| headwater_fuzz_bodies::media_version2::body(bytes));
