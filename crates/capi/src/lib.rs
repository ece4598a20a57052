//! The C interface of the stack: `include/headwater.h` in Rust.
//!
//! Input: calls from C programs, with arbitrary pointers. Output: a [`ResultCode`] from every function that can fail, and a
//! message from [`message::hw_last_error`]. Invariants: no panic crosses the FFI boundary; an address that a caller
//! passes to be freed or looked up is compared and never dereferenced; a handle is a number that is looked up, so a
//! closed or invented one is an error.
//!
//! cbindgen generates the header from these files, so their names and sentences are what a C programmer reads.
#![expect(unsafe_code, reason = "the FFI boundary to C: exported names, and out-parameters that C passes in")]

pub mod aio;
pub mod buffer_request;
pub mod cache;
pub mod code;
pub mod config;
pub mod device;
pub mod device_memory;
pub mod device_segment;
pub mod handle;
pub mod import;
pub mod job_memory;
pub mod memory;
pub mod message;
pub mod move_job;
pub mod move_step;
pub mod mover;
pub mod mover_settings;
pub mod open_job;
pub mod param;
pub mod pool;
pub mod pool_settings;
pub mod queue;
pub mod quota;
pub mod segments;
pub mod shared_mover;
pub mod statistics;
pub mod transfer;
pub mod version;

pub use code::ResultCode;

mod call_error;
mod client_buffers;
mod ffi;
mod handle_table;
mod io_path;
mod move_error;
mod mover_channels;
mod pool_handles;
mod wake_set;
