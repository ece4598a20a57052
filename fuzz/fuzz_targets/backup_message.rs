//! Fuzzes both ends of the socket for backups.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| headwater_fuzz_bodies::backup_message::body(bytes));
