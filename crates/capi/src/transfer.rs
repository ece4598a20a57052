//! Synchronous calls: each returns when its request completes.
//!
//! Input: handles, memory of the caller, offsets in bytes. Output: codes. Invariant: memory that a device can access is
//! used in place; any other is copied through such memory, so that a device never accesses it.

use crate::call_error::CallError;
use crate::code::ResultCode;
use crate::device_memory::{allocate_buffer, allocate_pieces};
use crate::ffi::{OutPointer, check_pointer, run_call};
use crate::handle::{HANDLES, IoHandle, OpenHandle};
use crate::segments::MemorySegment;
use headwater::Buffer;
use headwater::WriteDurability;
use headwater::dma::pool::PoolError;
use headwater::io::handle::IoRequest;
use std::ffi::c_void;
use std::slice;

/// Origin of hw_lseek: byte 0, as POSIX's SEEK_SET.
pub const HW_SEEK_SET: u32 = 0;
/// Origin of hw_lseek: the position, as SEEK_CUR.
pub const HW_SEEK_CUR: u32 = 1;
/// Origin of hw_lseek: the end, as SEEK_END.
pub const HW_SEEK_END: u32 = 2;

impl OpenHandle {
    /// Allocates memory of the device's pool.
    pub(crate) fn allocate_device_memory(&self, bytes: usize) -> Result<Buffer, CallError> {
        Ok(allocate_buffer(self.device, bytes)?)
    }

    pub(crate) fn run(&mut self, request: IoRequest) -> Result<(), CallError> {
        let request = IoRequest { class: self.class, ..request };
        self.io_path.run(request)
    }

    /// Reads into memory of the caller, in place or through a copy.
    ///
    /// # Safety
    /// `into` is valid for writes of `bytes` bytes.
    unsafe fn read(&mut self, into: *mut u8, bytes: usize, offset: u64) -> Result<(), CallError> {
        if let Some(buffer) = self.buffers.find(into.addr(), bytes) {
            return self.run(IoRequest::read(offset, buffer));
        }
        let pieces = self.allocate_transfer(bytes)?;
        self.run(read_into(offset, pieces.clone()))?;
        // SAFETY: the caller's promise; the pieces were allocated from the pool by this call, so they do not overlap.
        let mut rest = unsafe { slice::from_raw_parts_mut(into, bytes) };
        for piece in &pieces {
            let (here, later) = rest.split_at_mut(piece.bytes());
            piece.read(0, here)?;
            rest = later;
        }
        Ok(())
    }

    /// Writes from memory of the caller, in place or through a copy.
    ///
    /// # Safety
    /// `from` is valid for reads of `bytes` bytes.
    unsafe fn write(&mut self, from: *const u8, bytes: usize, offset: u64) -> Result<(), CallError> {
        if let Some(buffer) = self.buffers.find(from.addr(), bytes) {
            return self.run(IoRequest::write(offset, buffer, self.durable));
        }
        let pieces = self.allocate_transfer(bytes)?;
        // SAFETY: the caller's promise; the pieces were allocated from the pool by this call, so they do not overlap.
        let mut rest = unsafe { slice::from_raw_parts(from, bytes) };
        for piece in &pieces {
            let (here, later) = rest.split_at(piece.bytes());
            piece.write(0, here)?;
            rest = later;
        }
        self.run(write_from(offset, pieces, self.durable))
    }

    /// Allocates the memory that a transfer is copied through, exactly as long, in several pieces if the pool has no
    /// longer one.
    fn allocate_transfer(&self, bytes: usize) -> Result<Vec<Buffer>, CallError> {
        let pieces = allocate_pieces(self.device, bytes.max(1))?;
        if bytes > 0 {
            return Ok(pieces);
        }
        pieces.iter().map(|piece| Ok(piece.slice(0, 0)?)).collect()
    }

    /// Returns the buffers of pieces that C passes.
    fn find_pieces(&self, segments: &[MemorySegment]) -> Result<Vec<Buffer>, CallError> {
        let find = |segment: &MemorySegment| self.buffers.find(segment.address.addr(), segment.bytes);
        segments.iter().map(|segment| find(segment).ok_or(CallError::BufferForeign)).collect()
    }
}

/// Builds a read into pieces; a queue whose commands name one buffer takes a single piece only in this form.
fn read_into(offset: u64, mut pieces: Vec<Buffer>) -> IoRequest {
    match (pieces.len(), pieces.pop()) {
        (1, Some(only)) => IoRequest::read(offset, only),
        (_, last) => IoRequest::read_scattered(offset, pieces.into_iter().chain(last).collect()),
    }
}

/// Builds a write from pieces, as [`read_into`] builds a read.
fn write_from(offset: u64, mut pieces: Vec<Buffer>, durable: WriteDurability) -> IoRequest {
    match (pieces.len(), pieces.pop()) {
        (1, Some(only)) => IoRequest::write(offset, only, durable),
        (_, last) => IoRequest::write_gathered(offset, pieces.into_iter().chain(last).collect(), durable),
    }
}

/// Reads `bytes` bytes from byte `offset` on. Memory of hw_get_buffer is read into in place, any other through a copy.
///
/// # Safety
/// A `buffer` that is not null is valid for writes of `bytes` bytes, and no other thread uses them during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_pread(
    handle: *mut IoHandle,
    buffer: *mut c_void,
    bytes: usize,
    offset: u64,
) -> ResultCode {
    run_call(|| {
        check_pointer(buffer.cast::<u8>(), "buffer")?;
        // SAFETY: the caller's promise.
        HANDLES.with(handle, |open| unsafe { open.read(buffer.cast(), bytes, offset) })
    })
}

/// Writes `bytes` bytes from byte `offset` on. Memory of hw_get_buffer is written from in place, any other through a
/// copy. With HW_PARAM_CACHE_BYTES a cache holds the data and writes them back later: they are durable only after
/// hw_flush.
///
/// # Safety
/// A `buffer` that is not null is valid for reads of `bytes` bytes, and no thread writes to them during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_pwrite(
    handle: *mut IoHandle,
    buffer: *const c_void,
    bytes: usize,
    offset: u64,
) -> ResultCode {
    run_call(|| {
        check_pointer(buffer.cast::<u8>(), "buffer")?;
        // SAFETY: the caller's promise.
        HANDLES.with(handle, |open| unsafe { open.write(buffer.cast(), bytes, offset) })
    })
}

/// Reads from byte `offset` on into `count` pieces of memory in order. Each piece lies in memory of the device
/// (hw_get_segments, hw_get_buffer), starts and ends at whole blocks, and is read into in place: as one command, where the
/// queue's commands can name so many pieces.
///
/// # Safety
/// A `segments` that is neither null nor misaligned is valid for reads of `count` elements; no other thread uses their
/// memory during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_preadv(
    handle: *mut IoHandle,
    segments: *const MemorySegment,
    count: u32,
    offset: u64,
) -> ResultCode {
    let request = |_: &OpenHandle, pieces| read_into(offset, pieces);
    // SAFETY: the caller's promise.
    unsafe { transfer_pieces(handle, segments, count, request) }
}

/// Writes `count` pieces of memory in order from byte `offset` on, as hw_preadv reads them.
///
/// # Safety
/// A `segments` that is neither null nor misaligned is valid for reads of `count` elements; no thread writes to their
/// memory during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_pwritev(
    handle: *mut IoHandle,
    segments: *const MemorySegment,
    count: u32,
    offset: u64,
) -> ResultCode {
    let request = |open: &OpenHandle, pieces| write_from(offset, pieces, open.durable);
    // SAFETY: the caller's promise.
    unsafe { transfer_pieces(handle, segments, count, request) }
}

/// Runs the request that `request` builds from the pieces that C passes.
///
/// # Safety
/// As for [`checked_segments`], for the time of the call.
unsafe fn transfer_pieces(
    handle: *mut IoHandle,
    segments: *const MemorySegment,
    count: u32,
    request: impl FnOnce(&OpenHandle, Vec<Buffer>) -> IoRequest,
) -> ResultCode {
    run_call(|| {
        // SAFETY: the caller promises the same.
        let segments = unsafe { checked_segments(segments, count) }?;
        HANDLES.with(handle, |open| {
            let pieces = open.find_pieces(segments)?;
            open.run(request(open, pieces))
        })
    })
}

/// Returns the pieces that C passes.
///
/// # Safety
/// A `segments` that is neither null nor misaligned is valid for reads of `count` elements, which no thread writes as
/// long as the result lives.
unsafe fn checked_segments<'a>(
    segments: *const MemorySegment,
    count: u32,
) -> Result<&'a [MemorySegment], CallError> {
    check_pointer(segments, "segments")?;
    if count == 0 {
        return Err(PoolError::NoSegments.into());
    }
    // SAFETY: not null and aligned, as checked, and of as many elements as the caller promises.
    Ok(unsafe { slice::from_raw_parts(segments, count as usize) })
}

/// Reads as hw_pread at the position, and advances the position by `bytes`.
///
/// # Safety
/// As for hw_pread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_read(handle: *mut IoHandle, buffer: *mut c_void, bytes: usize) -> ResultCode {
    run_call(|| {
        check_pointer(buffer.cast::<u8>(), "buffer")?;
        HANDLES.with(handle, |open| {
            // SAFETY: the caller's promise.
            unsafe { open.read(buffer.cast(), bytes, open.position) }?;
            open.position += bytes as u64;
            Ok(())
        })
    })
}

/// Writes as hw_pwrite at the position, and advances the position by `bytes`. With a cache the data are durable only
/// after hw_flush.
///
/// # Safety
/// As for hw_pwrite.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_write(handle: *mut IoHandle, buffer: *const c_void, bytes: usize) -> ResultCode {
    run_call(|| {
        check_pointer(buffer.cast::<u8>(), "buffer")?;
        HANDLES.with(handle, |open| {
            // SAFETY: the caller's promise.
            unsafe { open.write(buffer.cast(), bytes, open.position) }?;
            open.position += bytes as u64;
            Ok(())
        })
    })
}

/// Moves the position of hw_read and hw_write to `bytes` bytes from `whence`, one of HW_SEEK_, and writes it to
/// `position` unless that is null. Only reads and writes require a position at a whole block.
///
/// # Safety
/// A `position` that is neither null nor misaligned is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_lseek(
    handle: *mut IoHandle,
    bytes: i64,
    whence: u32,
    position: *mut u64,
) -> ResultCode {
    run_call(|| {
        let out = match position.is_null() {
            true => None,
            // SAFETY: the caller's promise.
            false => Some(unsafe { OutPointer::at(position, "position") }?),
        };
        HANDLES.with(handle, |open| {
            let from = match whence {
                HW_SEEK_SET => 0,
                HW_SEEK_CUR => open.position,
                HW_SEEK_END => open.end,
                _ => {
                    return Err(CallError::InvalidValue {
                        field: "whence",
                        value: whence.into(),
                        choice: "HW_SEEK_SET, _CUR or _END",
                    });
                }
            };
            let end = open.end;
            let to = from.checked_add_signed(bytes).filter(|&to| to <= end);
            open.position = to.ok_or(CallError::Seek { from, bytes, end })?;
            if let Some(out) = out {
                out.write(open.position);
            }
            Ok(())
        })
    })
}

/// Makes durable every write that completed before. With a cache it first writes back the data that only the cache has.
#[unsafe(no_mangle)]
pub extern "C" fn hw_flush(handle: *mut IoHandle) -> ResultCode {
    run_call(|| HANDLES.with(handle, |open| open.run(IoRequest::flush())))
}

/// Discards `bytes` bytes from byte `offset` on, whose contents are no longer needed. Whole blocks, inside the range
/// that the handle may access. `bytes` stands before `offset`, as in every call that takes both.
#[unsafe(no_mangle)]
pub extern "C" fn hw_discard(handle: *mut IoHandle, bytes: u64, offset: u64) -> ResultCode {
    run_call(|| {
        HANDLES.with(handle, |open| {
            let list = open.allocate_device_memory(LIST_BYTES)?;
            open.run(IoRequest::discard(offset, bytes, list))
        })
    })
}

/// Writes zeroes to `bytes` bytes from byte `offset` on. Whole blocks. `bytes` stands before `offset`, as in every call
/// that takes both. With a cache the zeroes are durable only after hw_flush.
#[unsafe(no_mangle)]
pub extern "C" fn hw_write_zeroes(handle: *mut IoHandle, bytes: u64, offset: u64) -> ResultCode {
    run_call(|| HANDLES.with(handle, |open| open.run(IoRequest::write_zeroes(offset, bytes, open.durable))))
}

/// Bytes of memory for the range list of a discard.
pub(crate) const LIST_BYTES: usize = 4_096;
