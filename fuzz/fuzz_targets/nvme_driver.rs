//! Fuzzes what a controller does to our NVMe driver; see the body.
#![no_main]

#[path = "../bodies/nvme_driver.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::body(bytes));
