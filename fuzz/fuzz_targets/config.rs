//! Fuzzes the text of a configuration file.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| headwater_fuzz_bodies::config::body(bytes));
