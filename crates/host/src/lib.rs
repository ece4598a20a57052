//! Safe wrappers for what the kernel and the hardware provide.
//!
//! Input: system calls, instructions, mapped memory. Output: types that cannot be misused from safe code. Besides the
//! FFI boundary to C, and the baseline allocators of the lab, this is the only crate that may write `unsafe`; every
//! other crate says `#![forbid(unsafe_code)]`.
//!
//! # What this does not do
//! It decides nothing: no policy, no protocol, no retry. Those belong to the crates above.
#![expect(unsafe_code, reason = "this is the crate that may use unsafe; each block argues its own safety")]

pub mod biased_lock;
pub mod calibration;
pub mod client_eventfd;
pub mod clock;
pub mod copy;
pub mod device_ring;
#[cfg(not(loom))]
pub mod dsa;
pub mod fault_guard;
pub mod file;
pub mod fork;
#[cfg(not(loom))]
pub mod gpu;
pub mod growing_slice;
pub mod lent_bytes;
pub mod mapped_region;
pub mod numa;
pub mod persistent_memory;
pub mod pinning;
pub mod receive;
pub mod registers;
pub mod reservation;
pub mod ring_memory;
pub mod shared_memory;
pub mod sync;
pub mod tls;
pub mod topology;
pub mod uring;
pub mod wake;
pub mod wake_line;
pub mod width;
#[cfg(not(loom))]
pub mod work_memory;
