//! Fuzzes entries that attached processes submit to an SSD that a node shares; see the body.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| headwater_fuzz_bodies::admission::body(bytes));
