//! Memory in several pieces, laid out for readv and writev.
//!
//! Input: a length and an array. Output: the pieces, in order. Invariant: all pieces are allocated together or none is,
//! and [`hw_pool_free_segments`] frees all of them or none.

use crate::call_error::CallError;
use crate::code::ResultCode;
use crate::ffi::{self, OutPointer, run_call};
use crate::memory::build_request;
use crate::pool_handles::{self, PoolHandle};
use headwater_dma::buffer::{PoolAllocation, PoolBuffer};
use headwater_dma::pool::{Pool, PoolError, RequestShape};
use std::ffi::c_void;

/// A piece of memory, laid out as POSIX's struct iovec.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MemorySegment {
    /// Start address: a multiple of 4,096.
    pub address: *mut c_void,
    /// Length in bytes: a multiple of 4,096 for all pieces but the last.
    pub bytes: usize,
}

/// Allocates memory in up to `segments_max` pieces, in one if possible. Writes the pieces to `segments`, an array of
/// `segments_max`, and their number to `count`. Never waits: HW_CODE_WOULD_BLOCK. On failure nothing is written.
///
/// Each piece starts on a page, and all but the last are whole pages, as NVMe's PRP lists require. `align` is that of
/// the first piece, in bytes. hw_pool_free_segments frees the pieces together, hw_pool_free each.
///
/// # Safety
/// Pointers that are neither null nor misaligned are valid for writes: `segments` of `segments_max` elements, `count`
/// of one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_pool_alloc_segments(
    pool: *mut PoolHandle,
    bytes: usize,
    align: usize,
    flags: u32,
    segments: *mut MemorySegment,
    segments_max: u32,
    count: *mut u32,
) -> ResultCode {
    run_call(|| {
        ffi::check_pointer(segments, "segments")?;
        // SAFETY: the caller's promise.
        let out = unsafe { OutPointer::at(count, "count") }?;
        let open_pool = pool_handles::find(pool)?.of_this_process()?;
        if segments_max == 0 {
            return Err(PoolError::NoSegments.into());
        }
        let request = build_request(bytes, align, flags, RequestShape::ScatterGather { segments_max })?;
        let buffers = match open_pool.pool.allocate(&request)? {
            PoolAllocation::Contiguous(buffer) => vec![buffer],
            PoolAllocation::Scattered(scattered) => scattered.into_buffers(),
        };
        let mut written = 0;
        for buffer in buffers.into_iter().take(segments_max as usize) {
            let bytes = buffer.len();
            let segment = MemorySegment { address: buffer.leak().as_ptr().cast(), bytes };
            let element = segments.wrapping_add(written as usize);
            // SAFETY: not null and aligned, as checked, and below the number of elements that the caller promises.
            unsafe { element.write(segment) };
            written += 1;
        }
        out.write(written);
        Ok(())
    })
}

/// Frees `count` pieces, by their addresses; their lengths are ignored. If one piece cannot be freed, none is, and the
/// code is that of the first such piece, as for hw_pool_free.
///
/// # Safety
/// A `segments` that is neither null nor misaligned is valid for reads of `count` elements.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_pool_free_segments(
    pool: *mut PoolHandle,
    segments: *const MemorySegment,
    count: u32,
) -> ResultCode {
    run_call(|| {
        ffi::check_pointer(segments, "segments")?;
        let open_pool = pool_handles::find(pool)?.of_this_process()?;
        // SAFETY: not null and aligned, as checked, and of as many elements as the caller promises, which no thread
        // writes during the call.
        let segments = unsafe { std::slice::from_raw_parts(segments, count as usize) };
        drop(adopt_all(&open_pool.pool, segments)?);
        Ok(())
    })
}

/// Adopts the buffers of all segments, or of none.
fn adopt_all(pool: &Pool, segments: &[MemorySegment]) -> Result<Vec<PoolBuffer>, CallError> {
    let mut buffers = Vec::with_capacity(segments.len());
    for segment in segments {
        match pool.adopt(segment.address.cast_const().cast()) {
            Ok(buffer) => buffers.push(buffer),
            Err(error) => {
                // The caller still owns the buffers adopted so far, by their addresses.
                buffers.into_iter().for_each(|buffer| _ = buffer.leak());
                return Err(if segment.address.is_null() {
                    CallError::Null("address")
                } else {
                    error.into()
                });
            }
        }
    }
    Ok(buffers)
}
