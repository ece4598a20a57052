//! SPDK's names for DMA memory, for programs written to them: the functions of `include/headwater/spdk_dma.h`.
//!
//! Input: calls of `spdk_dma_malloc` and the other functions. Output: memory of one pool for the whole process,
//! configured by environment variables. Invariants: freeing an invalid address changes nothing; nothing unwinds into C.
//!
//! It is a separate library, so that its names conflict with SPDK's only in programs that link it.
#![expect(unsafe_code, reason = "the FFI boundary to C: exported names, and addresses that C may free")]

pub mod allocate;
pub mod release;

mod environment;
mod process_pool;
