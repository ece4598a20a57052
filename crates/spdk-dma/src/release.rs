//! `spdk_free`, `spdk_realloc` and the other releasing functions.
//!
//! Input: any addresses. Output: memory returned to the pool. Invariant: an address outside the pool, inside of a
//! buffer or freed before changes nothing and is reported on standard error.

use crate::process_pool::{catch_panic, pool, report_misuse};
use headwater_dma::buffer::PoolBuffer;
use headwater_dma::pool::{Pool, PoolRequest};
use std::ffi::c_void;
use std::ptr;

#[inline]
fn free(function: &str, address: *mut c_void) {
    catch_panic((), || {
        if address.is_null() {
            return;
        }
        if let Some(pool) = pool()
            && let Err(error) = pool.free_raw(address.cast_const().cast())
        {
            report_misuse(function, address.addr(), &error);
        }
    });
}

/// Frees memory that a function of this library allocated. Null is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn spdk_free(buf: *mut c_void) {
    free("spdk_free", buf);
}

/// Frees memory that a function of this library allocated. Null is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn spdk_dma_free(buf: *mut c_void) {
    free("spdk_dma_free", buf);
}

fn reallocate(function: &str, address: *mut c_void, size: usize, align: usize) -> *mut c_void {
    let moved = catch_panic(None, || {
        let pool = pool()?;
        let request = PoolRequest::bytes(size).aligned(align.max(1));
        if address.is_null() {
            return pool.allocate_raw(&request).ok();
        }
        match pool.adopt(address.cast_const().cast()) {
            Ok(old) => {
                let (moved, kept) = resize_or_move(pool, old, &request);
                // A caller that gets null still owns the old memory.
                if let Some(old) = kept {
                    let _ = old.leak();
                }
                moved.map(PoolBuffer::leak)
            }
            Err(error) => {
                report_misuse(function, address.addr(), &error);
                None
            }
        }
    });
    moved.map_or(ptr::null_mut(), |address| address.as_ptr().cast())
}

/// Returns the buffer in its new length, in place if it has the capacity; or `None`, and the old buffer.
fn resize_or_move(
    pool: &Pool,
    mut old: PoolBuffer,
    request: &PoolRequest,
) -> (Option<PoolBuffer>, Option<PoolBuffer>) {
    let fits =
        old.as_ptr().addr().is_multiple_of(request.align) && (1..=old.capacity()).contains(&request.bytes);
    if fits && request.align.is_power_of_two() {
        old.resize(request.bytes);
        return (Some(old), None);
    }
    let Ok(Ok(mut new)) = pool.allocate(request).map(headwater_dma::buffer::PoolAllocation::into_contiguous)
    else {
        return (None, Some(old));
    };
    let both = old.len().min(new.len());
    new[..both].copy_from_slice(&old[..both]);
    (Some(new), None)
}

/// Reallocates memory to another length and copies its bytes; returns null, and leaves the old memory, if there is
/// none. A null `buf` allocates.
#[unsafe(no_mangle)]
pub extern "C" fn spdk_realloc(buf: *mut c_void, size: usize, align: usize) -> *mut c_void {
    reallocate("spdk_realloc", buf, size, align)
}

/// Reallocates as [`spdk_realloc`] does. `unused` is null.
#[unsafe(no_mangle)]
pub extern "C" fn spdk_dma_realloc(
    buf: *mut c_void,
    size: usize,
    align: usize,
    unused: *mut u64,
) -> *mut c_void {
    if unused.is_null() { reallocate("spdk_dma_realloc", buf, size, align) } else { ptr::null_mut() }
}
