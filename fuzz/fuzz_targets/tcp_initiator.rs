//! Fuzzes the host's end of an NVMe/TCP connection with the stream of a controller; see the body.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| headwater_fuzz_bodies::tcp_initiator::body(bytes));
