//! SPDK's names for DMA memory, for programs that were written to them: `include/headwater/spdk_dma.h` in Rust.
//!
//! In: calls of `spdk_dma_malloc` and its kin. Out: memory of one pool for the whole process, set up by environment
//! variables. Invariants: an address that is not to be freed changes nothing; nothing unwinds into C.
//!
//! It is a library of its own, so that its names meet SPDK's in no program that does not want them to.
#![expect(unsafe_code, reason = "the border to C: exported names, and addresses that C may free")]

pub mod allocate;
pub mod release;

mod environment;
mod process_pool;
