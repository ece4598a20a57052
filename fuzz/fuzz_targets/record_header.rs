//! Fuzzes the decoding of headers of records.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| headwater_fuzz_bodies::record_header::body(bytes));
