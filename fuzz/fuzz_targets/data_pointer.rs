//! Fuzzes PRPs and SGLs with the memory that they point to.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| headwater_fuzz_bodies::data_pointer::body(bytes));
