//! Fuzzes what a hypervisor and its guest do to a vfio-user server.
#![no_main]

#[path = "../bodies/vfio_user.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| body::body(bytes));
