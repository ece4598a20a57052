//! Fuzzes the four copies of the superblock of a flash file.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| headwater_fuzz_bodies::superblock::body(bytes));
