//! Fuzzes a vfio-user server with a hostile hypervisor and guest.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| headwater_fuzz_bodies::vfio_user::body(bytes));
