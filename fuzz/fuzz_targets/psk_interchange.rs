//! Fuzzes keys in interchange form.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| headwater_fuzz_bodies::psk_interchange::body(bytes));
