//! The C face of the stack: `include/headwater.h` in Rust.
//!
//! In: calls from programs in C, with whatever pointers they have. Out: a [`Code`] from everything that can fail, and a
//! sentence about it from [`message::hw_last_error`]. Invariants: no panic crosses the border; an address that a caller
//! hands in to be freed or looked up is compared and never followed; a handle is a number that is looked up, so a closed
//! or made-up one is an error.
//!
//! The header is written from these files by cbindgen, so their names and sentences are what a C programmer reads.
#![expect(unsafe_code, reason = "the border to C: exported names, and out-parameters that C hands in")]

pub mod aio;
pub mod code;
pub mod config;
pub mod device;
pub mod device_segment;
pub mod handle;
pub mod memory;
pub mod message;
pub mod param;
pub mod pool;
pub mod queue;
pub mod quota;
pub mod segments;
pub mod statistics;
pub mod transfer;

pub use code::Code;

mod border;
mod buffers;
mod fault;
mod handles;
mod table;
mod way;
