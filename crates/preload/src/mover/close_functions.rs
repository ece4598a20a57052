//! The functions that close descriptors, under their names of the C library.
//!
//! Input: what a program passes. Output: what the C library would do. Invariant: the mapping of a file is removed before a
//! descriptor of it is closed, because a mapping keeps the open file, with its locks and leases, and the space of a deleted one.

use super::dax_transfer::{forget_descriptor, forget_descriptors};
use super::next_functions::{
    NEXT_CLOSE, NEXT_CLOSE_RANGE, NEXT_DUP2, NEXT_DUP3, NEXT_FCLOSE, find_all, next_close, next_close_range,
    next_close_stream, next_dup2, next_dup3,
};
use std::ffi::{c_int, c_uint};

/// The flag of `close_range` that closes nothing now (`CLOSE_RANGE_CLOEXEC`).
const AT_EXEC_ONLY: c_int = 4;

/// Closes a descriptor. Its file is not mapped any more, so that a deleted file returns its space.
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn close(descriptor: c_int) -> c_int {
    forget_descriptor(descriptor);
    match next_close(&NEXT_CLOSE) {
        // SAFETY: the caller promises the same.
        Some(next) => unsafe { next(descriptor) },
        None => {
            // SAFETY: as above.
            let closed = unsafe { libc::syscall(libc::SYS_close, descriptor) };
            c_int::try_from(closed).unwrap_or(-1)
        }
    }
}

/// Closes a stream, and its descriptor as [`close`] does.
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn fclose(stream: *mut libc::FILE) -> c_int {
    // SAFETY: the function takes nothing.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the error number of this thread, which lives as long as the thread.
    let error = unsafe { *place };
    // SAFETY: the caller passes an open stream. One without a descriptor answers -1.
    forget_descriptor(unsafe { libc::fileno(stream) });
    // SAFETY: as above.
    unsafe { *place = error };
    if next_close_stream(&NEXT_FCLOSE).is_none() {
        // Only the C library can close a stream: a call that is earlier than the start of this library looks for it here.
        find_all();
    }
    match next_close_stream(&NEXT_FCLOSE) {
        // SAFETY: the caller promises the same.
        Some(next) => unsafe { next(stream) },
        None => libc::EOF,
    }
}

/// Copies a descriptor to a number, and closes the one that had it, as [`close`] does.
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    if from != to {
        forget_descriptor(to);
    }
    match next_dup2(&NEXT_DUP2) {
        // SAFETY: the caller promises the same.
        Some(next) => unsafe { next(from, to) },
        None => {
            // SAFETY: as above; the call sets `errno`, and returns what the function returns.
            let copied = unsafe { libc::syscall(libc::SYS_dup2, from, to) };
            c_int::try_from(copied).unwrap_or(-1)
        }
    }
}

/// Copies a descriptor as [`dup2`] does, with flags.
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    if from != to {
        forget_descriptor(to);
    }
    match next_dup3(&NEXT_DUP3) {
        // SAFETY: the caller promises the same.
        Some(next) => unsafe { next(from, to, flags) },
        None => {
            // SAFETY: as above; the call sets `errno`, and returns what the function returns.
            let copied = unsafe { libc::syscall(libc::SYS_dup3, from, to, flags) };
            c_int::try_from(copied).unwrap_or(-1)
        }
    }
}

/// Closes a range of descriptors. No file is mapped any more then: those that stay open get a new mapping at their next
/// transfer.
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if flags & AT_EXEC_ONLY == 0 {
        forget_descriptors();
    }
    match next_close_range(&NEXT_CLOSE_RANGE) {
        // SAFETY: the caller promises the same.
        Some(next) => unsafe { next(first, last, flags) },
        None => {
            // SAFETY: as above; the call sets `errno`, and returns what the function returns.
            let closed = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
            c_int::try_from(closed).unwrap_or(-1)
        }
    }
}
