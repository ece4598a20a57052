//! The daemon's rooms, as a library so that tests and benchmarks can drive them without a process.
#![forbid(unsafe_code)]

pub mod resp;
