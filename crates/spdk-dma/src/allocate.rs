//! `spdk_malloc`, `spdk_dma_malloc` and their kin.
//!
//! In: a length, an alignment, a node. Out: an address, or null. Invariant: nothing waits: null is what there is when the
//! cap is reached.
//!
//! # What this does not do
//! It tells no physical addresses: a call that wants one gets null. Memory is not shared with other processes.

use crate::process_pool::{guarded, pool};
use headwater_dma::pool::{NodeId, Request};
use std::ffi::c_void;
use std::ptr;

/// Any node of memory.
pub const SPDK_ENV_SOCKET_ID_ANY: i32 = -1;
/// The memory is for devices. Here all of it is.
pub const SPDK_MALLOC_DMA: u32 = 0x01;
/// The memory is shared with other processes, which no memory of this pool is.
pub const SPDK_MALLOC_SHARE: u32 = 0x02;

/// Whether the bytes are written over with zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fill {
    Nothing,
    Zeroes,
}

/// What is asked for, if it makes sense.
#[inline]
fn request(size: usize, align: usize, physical: *const u64, node: i32) -> Option<Request> {
    if !physical.is_null() {
        return None;
    }
    let node = match node {
        SPDK_ENV_SOCKET_ID_ANY => None,
        node => Some(NodeId(u32::try_from(node).ok()?)),
    };
    Some(Request { node, ..Request::bytes(size).aligned(align.max(1)) })
}

#[inline]
fn allocate(size: usize, align: usize, physical: *const u64, node: i32, fill: Fill) -> *mut c_void {
    guarded(ptr::null_mut(), || {
        let Some(request) = request(size, align, physical, node) else { return ptr::null_mut() };
        let request = if fill == Fill::Zeroes { request.zeroed() } else { request };
        let address = pool().and_then(|pool| pool.allocate_raw(&request).ok());
        address.map_or(ptr::null_mut(), |address| address.as_ptr().cast())
    })
}

/// Whether the flags can be met: at least one, and not sharing.
fn flags_fit(flags: u32) -> bool {
    flags == SPDK_MALLOC_DMA
}

/// Memory for a device, on a page. `flags` is SPDK_MALLOC_DMA, `unused` null.
#[unsafe(no_mangle)]
pub extern "C" fn spdk_malloc(
    size: usize,
    align: usize,
    unused: *mut u64,
    numa_id: i32,
    flags: u32,
) -> *mut c_void {
    if flags_fit(flags) { allocate(size, align, unused, numa_id, Fill::Nothing) } else { ptr::null_mut() }
}

/// The same, all zero.
#[unsafe(no_mangle)]
pub extern "C" fn spdk_zmalloc(
    size: usize,
    align: usize,
    unused: *mut u64,
    numa_id: i32,
    flags: u32,
) -> *mut c_void {
    if flags_fit(flags) { allocate(size, align, unused, numa_id, Fill::Zeroes) } else { ptr::null_mut() }
}

/// Memory for a device, on a page.
#[unsafe(no_mangle)]
pub extern "C" fn spdk_dma_malloc(size: usize, align: usize, unused: *mut u64) -> *mut c_void {
    allocate(size, align, unused, SPDK_ENV_SOCKET_ID_ANY, Fill::Nothing)
}

/// The same, all zero.
#[unsafe(no_mangle)]
pub extern "C" fn spdk_dma_zmalloc(size: usize, align: usize, unused: *mut u64) -> *mut c_void {
    allocate(size, align, unused, SPDK_ENV_SOCKET_ID_ANY, Fill::Zeroes)
}

/// Memory of one node.
#[unsafe(no_mangle)]
pub extern "C" fn spdk_dma_malloc_socket(
    size: usize,
    align: usize,
    unused: *mut u64,
    numa_id: i32,
) -> *mut c_void {
    allocate(size, align, unused, numa_id, Fill::Nothing)
}

/// The same, all zero.
#[unsafe(no_mangle)]
pub extern "C" fn spdk_dma_zmalloc_socket(
    size: usize,
    align: usize,
    unused: *mut u64,
    numa_id: i32,
) -> *mut c_void {
    allocate(size, align, unused, numa_id, Fill::Zeroes)
}
