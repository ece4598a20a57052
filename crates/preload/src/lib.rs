//! The preload library of the transparent mode: it stands between a program and the functions of the C library that move
//! bytes.
//!
//! Input: calls of `memcpy`, `memmove`, `memset`, `memcmp` and their relatives, of `pread` and `pwrite`, and of the functions that
//! close descriptors, by a program that
//! knows nothing of this library (`headwater run --mover -- PROGRAM`). Output: the same effects, long ones by kernels of this
//! library, into pages that were made present before. Invariants: no function allocates, takes a lock, or uses thread-local
//! storage, so that each may be called from a signal handler, from an allocator, after a fork, and before this library is
//! initialised; what is not plainly safe is done by the C library or by the kernel.
//!
//! # What this does not do
//! It starts no job of the mover: a job allocates. So no DMA engine works for a program in this mode. It covers x86-64 with
//! the GNU C library; elsewhere it exports nothing.
#![expect(unsafe_code, reason = "the FFI boundary to C: exported names, and addresses that a program passes")]

#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
mod mover {
    pub mod close_functions;
    mod dax_transfer;
    pub mod file_functions;
    pub mod memory_functions;

    mod counters;
    mod fault_fixup;
    mod kernels;
    mod large_moves;
    mod last_level_cache;
    mod mapped_files;
    mod next_functions;
    mod prefault;
    mod settings;
    // Nothing starts the library in its unit tests, which export nothing either.
    #[cfg_attr(test, expect(dead_code, reason = "only the library starts itself"))]
    mod start;
}

#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
pub use mover::{close_functions, file_functions, memory_functions};
