//! Fuzzes the decoding of spares of pages.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| headwater_fuzz_bodies::page_spare::body(bytes));
