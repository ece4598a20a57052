//! Fuzzes the stream of a RESP client, cut into reads in two ways.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| headwater_fuzz_bodies::resp::body(bytes));
