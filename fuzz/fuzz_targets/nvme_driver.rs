//! Fuzzes the NVMe driver with a hostile controller; see the body.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| headwater_fuzz_bodies::nvme_driver::body(bytes));
