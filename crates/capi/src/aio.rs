//! Asynchronous requests: submitted with tags, sent to the device together, taken as events when they complete.
//!
//! Input: handles, memory of hw_get_buffer, tags. Output: events, one for each accepted request. Invariant: a tag is
//! returned as it was given and is never dereferenced.

use crate::call_error::CallError;
use crate::code::ResultCode;
use crate::ffi::{OutPointer, check_pointer, run_call};
use crate::handle::{HANDLES, IoHandle, OpenHandle};
use crate::transfer::LIST_BYTES;
use headwater::host::clock::Nanos;
use headwater::io::CompletedCommand;
use headwater::io::handle::IoRequest;
use std::ffi::c_void;
use std::ptr;

/// The timeout of a wait without a limit.
pub const HW_FOREVER: u64 = u64::MAX;

/// The completion of a request.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AioEvent {
    /// The tag that the request was submitted with.
    pub tag: *mut c_void,
    /// Bytes transferred; 0 on failure.
    pub bytes: u64,
    /// HW_CODE_OK, or HW_CODE_STATUS.
    pub code: ResultCode,
    /// NVMe's Status Field without the Phase Tag: 0 for success.
    pub status: u16,
    /// Always 0.
    pub reserved: u16,
}

impl OpenHandle {
    fn submit(&mut self, request: IoRequest, tag: *mut c_void) -> Result<(), CallError> {
        let request = IoRequest { class: self.class, ..request };
        self.io_path.submit(request, tag.expose_provenance() as u64)
    }

    fn find(&self, buffer: *const c_void, bytes: usize) -> Result<headwater::Buffer, CallError> {
        check_pointer(buffer.cast::<u8>(), "buffer")?;
        self.buffers.find(buffer.addr(), bytes).ok_or(CallError::BufferForeign)
    }
}

fn event_of(answer: &CompletedCommand) -> AioEvent {
    let completion = answer.completion;
    let done = completion.status.is_success();
    AioEvent {
        // Every token is the exposed address of a tag of this process.
        tag: usize::try_from(completion.token).map_or(ptr::null_mut(), ptr::with_exposed_provenance_mut),
        bytes: if done { answer.data.bytes() as u64 } else { 0 },
        code: if done { ResultCode::Ok } else { ResultCode::Status },
        status: completion.status.to_field(),
        reserved: 0,
    }
}

/// Reads `bytes` bytes from byte `offset` on into memory of hw_get_buffer. The request goes to the device with
/// hw_aio_submit, or when completions are polled. HW_CODE_OK means that exactly one event with `tag` follows, any other
/// code that none does; after HW_CODE_WOULD_BLOCK take events first.
#[unsafe(no_mangle)]
pub extern "C" fn hw_aio_read(
    handle: *mut IoHandle,
    buffer: *mut c_void,
    bytes: usize,
    offset: u64,
    tag: *mut c_void,
) -> ResultCode {
    run_call(|| {
        HANDLES.with(handle, |open| {
            let buffer = open.find(buffer, bytes)?;
            open.submit(IoRequest::read(offset, buffer), tag)
        })
    })
}

/// Writes `bytes` bytes of memory of hw_get_buffer from byte `offset` on, asynchronously as hw_aio_read. With
/// HW_PARAM_CACHE_BYTES a cache holds the data and writes them back later: the event does not make them durable,
/// hw_aio_flush or hw_flush does.
#[unsafe(no_mangle)]
pub extern "C" fn hw_aio_write(
    handle: *mut IoHandle,
    buffer: *const c_void,
    bytes: usize,
    offset: u64,
    tag: *mut c_void,
) -> ResultCode {
    run_call(|| {
        HANDLES.with(handle, |open| {
            let buffer = open.find(buffer, bytes)?;
            open.submit(IoRequest::write(offset, buffer, open.durable), tag)
        })
    })
}

/// Makes durable every write that completed before, asynchronously as hw_aio_read. With a cache it first writes back the
/// data that only the cache has.
#[unsafe(no_mangle)]
pub extern "C" fn hw_aio_flush(handle: *mut IoHandle, tag: *mut c_void) -> ResultCode {
    run_call(|| HANDLES.with(handle, |open| open.submit(IoRequest::flush(), tag)))
}

/// Discards `bytes` bytes from byte `offset` on, whose contents are no longer needed, asynchronously as hw_aio_read.
#[unsafe(no_mangle)]
pub extern "C" fn hw_aio_discard(
    handle: *mut IoHandle,
    bytes: u64,
    offset: u64,
    tag: *mut c_void,
) -> ResultCode {
    run_call(|| {
        HANDLES.with(handle, |open| {
            let list = open.allocate_device_memory(LIST_BYTES)?;
            open.submit(IoRequest::discard(offset, bytes, list), tag)
        })
    })
}

/// Writes zeroes to `bytes` bytes from byte `offset` on, asynchronously as hw_aio_read. With a cache the zeroes are
/// durable only after hw_aio_flush or hw_flush.
#[unsafe(no_mangle)]
pub extern "C" fn hw_aio_write_zeroes(
    handle: *mut IoHandle,
    bytes: u64,
    offset: u64,
    tag: *mut c_void,
) -> ResultCode {
    run_call(|| {
        HANDLES.with(handle, |open| open.submit(IoRequest::write_zeroes(offset, bytes, open.durable), tag))
    })
}

/// Sends all submitted requests to the device.
#[unsafe(no_mangle)]
pub extern "C" fn hw_aio_submit(handle: *mut IoHandle) -> ResultCode {
    run_call(|| HANDLES.with(handle, |open| open.io_path.ring()))
}

/// Takes at least `min_events` events, unless `timeout_ns` nanoseconds pass or nothing is in flight, and at most
/// `max_events`. Writes them to `events` and their number to `count`.
///
/// # Safety
/// `events` is valid for writes of `max_events` events. A `count` that is neither null nor misaligned is valid for a
/// write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_aio_complete(
    handle: *mut IoHandle,
    min_events: usize,
    max_events: usize,
    timeout_ns: u64,
    events: *mut AioEvent,
    count: *mut usize,
) -> ResultCode {
    run_call(|| {
        check_pointer(events, "events")?;
        // SAFETY: the caller's promise.
        let out = unsafe { OutPointer::at(count, "count") }?;
        HANDLES.with(handle, |open| {
            let mut taken = 0;
            let mut failed = None;
            let started = open.clock.now();
            while taken < max_events {
                let timeout = match timeout_ns {
                    HW_FOREVER => None,
                    total => Some(Nanos(total.saturating_sub(open.clock.now().since(started).0))),
                };
                let polled =
                    if taken < min_events { open.io_path.wait(timeout) } else { open.io_path.poll() };
                match polled {
                    // SAFETY: `taken` is below `max_events`, for which the caller promised room.
                    Ok(Some(answer)) => unsafe { events.wrapping_add(taken).write(event_of(&answer)) },
                    Ok(None) => break,
                    Err(error) => {
                        failed = Some(error);
                        break;
                    }
                }
                taken += 1;
            }
            out.write(taken);
            // The events that were taken are reported first; the next call reports the failure.
            failed.filter(|_| taken == 0).map_or(Ok(()), |error| Err(error.into()))
        })
    })
}

/// Cancels the request with this tag. Its one event still follows and says whether the request was cancelled.
#[unsafe(no_mangle)]
pub extern "C" fn hw_aio_cancel(handle: *mut IoHandle, tag: *mut c_void) -> ResultCode {
    run_call(|| HANDLES.with(handle, |open| open.io_path.cancel(tag.expose_provenance() as u64)))
}
