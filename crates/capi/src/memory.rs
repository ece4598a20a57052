//! Contiguous memory: allocated, freed, and looked up by its address.
//!
//! Input: lengths and addresses. Output: addresses and codes. Invariant: an allocated address is freed once; any other
//! address that a caller passes in is an error and changes nothing.

use crate::call_error::CallError;
use crate::code::ResultCode;
use crate::ffi::{OutPointer, run_call};
use crate::pool_handles::{self, PoolHandle};
use headwater_dma::buffer::PoolAllocation;
use headwater_dma::pool::{NodeId, PageState as State, PoolError, PoolRequest, RequestShape, ZeroPolicy};
use headwater_host::clock::Nanos;
use headwater_host::reservation::{AdoptError, PAGE_BYTES};
use std::ffi::c_void;
use std::ptr;

/// The bytes are zero. Without this flag they hold what this process last wrote there.
pub const HW_ALLOC_ZEROED: u32 = 1;

/// The owner of a page.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageState {
    /// No owner.
    Free = 0,
    /// The pool's own caches, or a program that uses the pool from Rust.
    Owned = 1,
    /// A C program, until it frees the page.
    Raw = 2,
}

/// The result of looking up an address in a pool.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BufferLookup {
    /// Start of the buffer that contains the address; null if the page is free.
    pub start: *mut c_void,
    /// Capacity of the buffer in bytes: whole pages, of which the request named the first part.
    pub room_bytes: usize,
    /// Bytes from the start of the buffer to the address; if the page is free, from the start of the page.
    pub offset: usize,
    /// Bytes of the chunk; 0 if no memory backs the address now.
    pub chunk_bytes: usize,
    /// The owner of the page.
    pub page: PageState,
    /// The memory node, by the kernel's number.
    pub node: u32,
}

/// Builds the request of a call; the pool validates it.
#[inline]
pub(crate) fn build_request(
    bytes: usize,
    align: usize,
    flags: u32,
    shape: RequestShape,
) -> Result<PoolRequest, CallError> {
    let zeroed = match flags {
        0 => ZeroPolicy::No,
        HW_ALLOC_ZEROED => ZeroPolicy::Yes,
        _ => return Err(CallError::Flags(flags)),
    };
    Ok(PoolRequest { bytes, align: align.max(1), zeroed, node: None, shape })
}

/// Allocates contiguous memory and writes its address to `out`. Never waits: HW_CODE_WOULD_BLOCK if there is none now.
///
/// `align` is a power of two, in bytes, or 0; every buffer starts on a page of 4,096 bytes. `flags` is 0 or
/// HW_ALLOC_ZEROED. hw_pool_free frees the buffer, on any thread. On failure `out` is not written.
///
/// # Safety
/// An `out` that is neither null nor misaligned is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_pool_alloc(
    pool: *mut PoolHandle,
    bytes: usize,
    align: usize,
    flags: u32,
    out: *mut *mut c_void,
) -> ResultCode {
    run_call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { OutPointer::at(out, "out") }?;
        let open_pool = pool_handles::find(pool)?;
        let request = build_request(bytes, align, flags, RequestShape::Contiguous)?;
        out.write(open_pool.pool.allocate_raw(&request)?.as_ptr().cast());
        Ok(())
    })
}

/// Allocates as hw_pool_alloc on memory node `node`, by the kernel's number, and on no other. HW_CODE_NO_SUCH_NODE if
/// the pool has no memory there; hw_pool_node_statistics lists its nodes. HW_CODE_NO_MEMORY if the node has none to
/// spare.
///
/// # Safety
/// As for hw_pool_alloc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_pool_alloc_on(
    pool: *mut PoolHandle,
    node: u32,
    bytes: usize,
    align: usize,
    flags: u32,
    out: *mut *mut c_void,
) -> ResultCode {
    run_call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { OutPointer::at(out, "out") }?;
        let open_pool = pool_handles::find(pool)?;
        let request = build_request(bytes, align, flags, RequestShape::Contiguous)?.on(NodeId(node));
        out.write(open_pool.pool.allocate_raw(&request)?.as_ptr().cast());
        Ok(())
    })
}

/// Allocates as hw_pool_alloc, but waits for memory for at most `timeout_ns` nanoseconds; then HW_CODE_TIMEOUT.
///
/// # Safety
/// As for hw_pool_alloc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_pool_alloc_within(
    pool: *mut PoolHandle,
    bytes: usize,
    align: usize,
    flags: u32,
    timeout_ns: u64,
    out: *mut *mut c_void,
) -> ResultCode {
    run_call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { OutPointer::at(out, "out") }?;
        let open_pool = pool_handles::find(pool)?.of_this_process()?;
        let request = build_request(bytes, align, flags, RequestShape::Contiguous)?;
        out.write(match open_pool.pool.allocate_within(&request, Nanos(timeout_ns))? {
            PoolAllocation::Contiguous(buffer) => buffer.leak().as_ptr().cast(),
            PoolAllocation::Scattered(_) => unreachable!("scatter/gather was not allowed"),
        });
        Ok(())
    })
}

/// Frees a buffer by its start address. Any other address is an error and changes nothing: HW_CODE_FOREIGN,
/// HW_CODE_INTERIOR or HW_CODE_DOUBLE_FREE.
///
/// If memory was freed and allocated again, freeing it by the old address frees the new buffer, as with every
/// allocator.
#[unsafe(no_mangle)]
pub extern "C" fn hw_pool_free(pool: *mut PoolHandle, address: *mut c_void) -> ResultCode {
    run_call(|| {
        let open_pool = pool_handles::find(pool)?;
        open_pool.pool.free_raw(address.cast_const().cast()).map_err(|error| free_error(address, error))
    })
}

#[cold]
fn free_error(address: *mut c_void, error: PoolError) -> CallError {
    if address.is_null() { CallError::Null("address") } else { CallError::Pool(error) }
}

/// Writes to `out` what the pool records for an address. HW_CODE_FOREIGN if the address is not the pool's. The address
/// is never dereferenced, so any value is allowed.
///
/// # Safety
/// An `out` that is neither null nor misaligned is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_pool_lookup(
    pool: *mut PoolHandle,
    address: *const c_void,
    out: *mut BufferLookup,
) -> ResultCode {
    run_call(|| {
        // SAFETY: the caller's promise.
        let out = unsafe { OutPointer::at(out, "out") }?;
        let open_pool = pool_handles::find(pool)?.of_this_process()?;
        let found = open_pool.pool.lookup(address.cast()).ok_or(PoolError::Adopt(AdoptError::Outside))?;
        let (start, room_bytes) = match found.buffer {
            Some(buffer) => (address.wrapping_byte_sub(found.offset), buffer.bytes()),
            None => (ptr::null(), 0),
        };
        out.write(BufferLookup {
            start: start.cast_mut(),
            room_bytes,
            offset: if start.is_null() { address.addr() % PAGE_BYTES } else { found.offset },
            chunk_bytes: found.chunk.map_or(0, |chunk| chunk.bytes()),
            page: match found.state {
                State::Free => PageState::Free,
                State::Owned => PageState::Owned,
                State::Raw => PageState::Raw,
            },
            node: found.node.0,
        });
        Ok(())
    })
}
