//! The body of each fuzz target: a function of bytes that panics where a promise about untrusted input is broken.
//!
//! Input: bytes, from libfuzzer (`fuzz/`) or from the saved corpora (`tests/corpora`). Output: nothing; a violated promise
//! is a panic.
#![forbid(unsafe_code)]

pub mod admin_command;
pub mod admission;
pub mod attach_message;
pub mod command_decode;
pub mod config;
pub mod data_pointer;
pub mod media_recovery;
pub mod nvme_driver;
pub mod psk_interchange;
pub mod resp;
pub mod tcp_initiator;
pub mod tcp_target;
pub mod vfio_user;
