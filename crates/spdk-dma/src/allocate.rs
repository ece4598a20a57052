//! `spdk_malloc`, `spdk_dma_malloc` and the other allocating functions.
//!
//! Input: a length, an alignment, a node. Output: an address, or null. Invariant: no call waits: it returns null when
//! the cap is reached.
//!
//! # What this does not do
//! It reports no physical addresses: a call that requests one gets null. Memory is not shared with other processes.

use crate::process_pool::{catch_panic, pool};
use headwater_dma::pool::{NodeId, PoolRequest};
use std::ffi::c_void;
use std::ptr;

/// The node number for any memory node.
pub const SPDK_ENV_SOCKET_ID_ANY: i32 = -1;
/// The flag for memory that devices access. All memory here is.
pub const SPDK_MALLOC_DMA: u32 = 0x01;
/// The flag for memory shared with other processes, which this pool does not provide.
pub const SPDK_MALLOC_SHARE: u32 = 0x02;

/// The initial contents of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InitialFill {
    Unspecified,
    Zeroes,
}

/// Builds the pool's request; `None` for arguments that cannot be met.
#[inline]
fn pool_request(size: usize, align: usize, physical: *const u64, node: i32) -> Option<PoolRequest> {
    if !physical.is_null() {
        return None;
    }
    let node = match node {
        SPDK_ENV_SOCKET_ID_ANY => None,
        node => Some(NodeId(u32::try_from(node).ok()?)),
    };
    Some(PoolRequest { node, ..PoolRequest::bytes(size).aligned(align.max(1)) })
}

#[inline]
fn allocate(size: usize, align: usize, physical: *const u64, node: i32, fill: InitialFill) -> *mut c_void {
    catch_panic(ptr::null_mut(), || {
        let Some(request) = pool_request(size, align, physical, node) else { return ptr::null_mut() };
        let request = if fill == InitialFill::Zeroes { request.zeroed() } else { request };
        let address = pool().and_then(|pool| pool.allocate_raw(&request).ok());
        address.map_or(ptr::null_mut(), |address| address.as_ptr().cast())
    })
}

/// Returns true if the flags can be met: DMA only, no sharing.
fn are_flags_supported(flags: u32) -> bool {
    flags == SPDK_MALLOC_DMA
}

/// Allocates page-aligned memory for a device. `flags` is SPDK_MALLOC_DMA, `unused` null.
#[unsafe(no_mangle)]
pub extern "C" fn spdk_malloc(
    size: usize,
    align: usize,
    unused: *mut u64,
    numa_id: i32,
    flags: u32,
) -> *mut c_void {
    if are_flags_supported(flags) {
        allocate(size, align, unused, numa_id, InitialFill::Unspecified)
    } else {
        ptr::null_mut()
    }
}

/// Allocates as [`spdk_malloc`] does, zeroed.
#[unsafe(no_mangle)]
pub extern "C" fn spdk_zmalloc(
    size: usize,
    align: usize,
    unused: *mut u64,
    numa_id: i32,
    flags: u32,
) -> *mut c_void {
    if are_flags_supported(flags) {
        allocate(size, align, unused, numa_id, InitialFill::Zeroes)
    } else {
        ptr::null_mut()
    }
}

/// Allocates page-aligned memory for a device.
#[unsafe(no_mangle)]
pub extern "C" fn spdk_dma_malloc(size: usize, align: usize, unused: *mut u64) -> *mut c_void {
    allocate(size, align, unused, SPDK_ENV_SOCKET_ID_ANY, InitialFill::Unspecified)
}

/// Allocates as [`spdk_dma_malloc`] does, zeroed.
#[unsafe(no_mangle)]
pub extern "C" fn spdk_dma_zmalloc(size: usize, align: usize, unused: *mut u64) -> *mut c_void {
    allocate(size, align, unused, SPDK_ENV_SOCKET_ID_ANY, InitialFill::Zeroes)
}

/// Allocates memory of one node.
#[unsafe(no_mangle)]
pub extern "C" fn spdk_dma_malloc_socket(
    size: usize,
    align: usize,
    unused: *mut u64,
    numa_id: i32,
) -> *mut c_void {
    allocate(size, align, unused, numa_id, InitialFill::Unspecified)
}

/// Allocates as [`spdk_dma_malloc_socket`] does, zeroed.
#[unsafe(no_mangle)]
pub extern "C" fn spdk_dma_zmalloc_socket(
    size: usize,
    align: usize,
    unused: *mut u64,
    numa_id: i32,
) -> *mut c_void {
    allocate(size, align, unused, numa_id, InitialFill::Zeroes)
}
