//! Many requests at once: submitted with tags, shown to the device together, taken when they are answered.
//!
//! In: handles, memory of hw_get_buffer, tags. Out: events, one for each accepted request. Invariant: a tag comes back as it
//! was given and is never followed.

use crate::border::{Out, check, guarded};
use crate::code::Code;
use crate::fault::Fault;
use crate::handle::{HANDLES, IoHandle, OpenHandle};
use crate::transfer::LIST_BYTES;
use headwater::host::clock::Nanos;
use headwater::io::Answer;
use headwater::io::handle::Request;
use std::ffi::c_void;
use std::ptr;

/// Wait as long as it takes.
pub const HW_FOREVER: u64 = u64::MAX;

/// A request that was answered.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// The tag that it was submitted with.
    pub tag: *mut c_void,
    /// Bytes that were moved.
    pub bytes: u64,
    /// HW_CODE_OK, or HW_CODE_STATUS.
    pub code: Code,
    /// NVMe's Status Field without the phase: 0 for success.
    pub status: u16,
    /// Always 0.
    pub reserved: u16,
}

impl OpenHandle {
    fn submit(&mut self, request: Request, tag: *mut c_void) -> Result<(), Fault> {
        let request = Request { class: self.class, ..request };
        self.way.submit(request, tag.expose_provenance() as u64)
    }

    fn find(&self, buffer: *const c_void, bytes: usize) -> Result<headwater::Buffer, Fault> {
        check(buffer.cast::<u8>(), "buffer")?;
        self.buffers.find(buffer.addr(), bytes).ok_or(Fault::BufferForeign)
    }
}

fn event_of(answer: &Answer) -> Event {
    let completion = answer.completion;
    let done = completion.status.is_success();
    Event {
        // Only numbers that were pointers of this process come here.
        tag: usize::try_from(completion.token).map_or(ptr::null_mut(), ptr::with_exposed_provenance_mut),
        bytes: if done { answer.data.bytes() as u64 } else { 0 },
        code: if done { Code::Ok } else { Code::Status },
        status: completion.status.to_field(),
        reserved: 0,
    }
}

/// Reads `bytes` bytes from `offset` on into memory of hw_get_buffer. It is shown to the device by hw_aio_submit, or when
/// completions are looked for. HW_CODE_OK means that one event with `tag` will follow, any other code that none will;
/// HW_CODE_WOULD_BLOCK asks to take events first.
#[unsafe(no_mangle)]
pub extern "C" fn hw_aio_read(
    handle: *mut IoHandle,
    buffer: *mut c_void,
    bytes: usize,
    offset: u64,
    tag: *mut c_void,
) -> Code {
    guarded(|| {
        HANDLES.with(handle, |open| {
            let buffer = open.find(buffer, bytes)?;
            open.submit(Request::read(offset, buffer), tag)
        })
    })
}

/// Writes `bytes` bytes of memory of hw_get_buffer to `offset` on, as hw_aio_read reads.
#[unsafe(no_mangle)]
pub extern "C" fn hw_aio_write(
    handle: *mut IoHandle,
    buffer: *const c_void,
    bytes: usize,
    offset: u64,
    tag: *mut c_void,
) -> Code {
    guarded(|| {
        HANDLES.with(handle, |open| {
            let buffer = open.find(buffer, bytes)?;
            open.submit(Request::write(offset, buffer, open.durable), tag)
        })
    })
}

/// Makes durable what was answered before, as hw_aio_read reads.
#[unsafe(no_mangle)]
pub extern "C" fn hw_aio_flush(handle: *mut IoHandle, tag: *mut c_void) -> Code {
    guarded(|| HANDLES.with(handle, |open| open.submit(Request::flush(), tag)))
}

/// Says that `bytes` bytes from `offset` on are not needed any more, as hw_aio_read reads.
#[unsafe(no_mangle)]
pub extern "C" fn hw_aio_discard(handle: *mut IoHandle, bytes: u64, offset: u64, tag: *mut c_void) -> Code {
    guarded(|| {
        HANDLES.with(handle, |open| {
            let list = open.memory(LIST_BYTES)?;
            open.submit(Request::discard(offset, bytes, list), tag)
        })
    })
}

/// Makes `bytes` bytes from `offset` on zeroes, as hw_aio_read reads.
#[unsafe(no_mangle)]
pub extern "C" fn hw_aio_write_zeroes(
    handle: *mut IoHandle,
    bytes: u64,
    offset: u64,
    tag: *mut c_void,
) -> Code {
    guarded(|| {
        HANDLES.with(handle, |open| open.submit(Request::write_zeroes(offset, bytes, open.durable), tag))
    })
}

/// Shows the device everything that was submitted.
#[unsafe(no_mangle)]
pub extern "C" fn hw_aio_submit(handle: *mut IoHandle) -> Code {
    guarded(|| HANDLES.with(handle, |open| open.way.ring()))
}

/// Takes events: at least `least`, unless `longest_ns` nanoseconds pass or nothing is on the way, and at most `most`. Writes
/// them to `events` and their number to `found`.
///
/// # Safety
/// `events` is valid for writes of `most` events. A `found` that is neither null nor misaligned is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hw_aio_complete(
    handle: *mut IoHandle,
    least: usize,
    most: usize,
    longest_ns: u64,
    events: *mut Event,
    found: *mut usize,
) -> Code {
    guarded(|| {
        check(events, "events")?;
        // SAFETY: the caller's promise.
        let out = unsafe { Out::at(found, "found") }?;
        HANDLES.with(handle, |open| {
            let mut taken = 0;
            let mut failed = None;
            let started = open.clock.now();
            while taken < most {
                let longest = match longest_ns {
                    HW_FOREVER => None,
                    longest => Some(Nanos(longest.saturating_sub(open.clock.now().since(started).0))),
                };
                let looked = if taken < least { open.way.wait(longest) } else { open.way.poll() };
                match looked {
                    // SAFETY: `taken` is below `most`, for which the caller promised room.
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
            // What was taken is told first; the failure comes again with the next call.
            failed.filter(|_| taken == 0).map_or(Ok(()), |error| Err(error.into()))
        })
    })
}

/// Cancels the request with this tag. It still has its one event, which says whether it was given up.
#[unsafe(no_mangle)]
pub extern "C" fn hw_aio_cancel(handle: *mut IoHandle, tag: *mut c_void) -> Code {
    guarded(|| HANDLES.with(handle, |open| open.way.cancel(tag.expose_provenance() as u64)))
}
