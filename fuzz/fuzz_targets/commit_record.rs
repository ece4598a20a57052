//! Fuzzes the decoding of commit records.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| headwater_fuzz_bodies::commit_record::body(bytes));
