//! The functions of files, under their names of the C library.
//!
//! Input: what a program passes. Output: what the C library would do: a long positioned read or write of a file on persistent
//! memory through a mapping, everything else by the C library.

use super::dax_transfer::{ProgramRange, TransferDirection, transfer};
use super::next_functions::{NEXT_PREAD, NEXT_PWRITE, next_read, next_write};
use std::ffi::{c_int, c_void};

/// Reads from a file at an offset.
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pread(descriptor: c_int, buffer: *mut c_void, bytes: usize, offset: i64) -> isize {
    let range = ProgramRange { descriptor, buffer: buffer.cast(), bytes, offset };
    // SAFETY: the caller promises the same.
    let mapped = unsafe { transfer(range, TransferDirection::Read) };
    if let Some(done) = mapped {
        return done.cast_signed();
    }
    match next_read(&NEXT_PREAD) {
        // SAFETY: the caller promises the same.
        Some(next) => unsafe { next(descriptor, buffer, bytes, offset) },
        None => {
            // SAFETY: as above; the call sets `errno`, and returns what the function returns.
            let done = unsafe { libc::syscall(libc::SYS_pread64, descriptor, buffer, bytes, offset) };
            isize::try_from(done).unwrap_or(-1)
        }
    }
}

/// Reads from a file at an offset: [`pread`] under its second name.
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pread64(descriptor: c_int, buffer: *mut c_void, bytes: usize, offset: i64) -> isize {
    // SAFETY: the caller promises the same.
    unsafe { pread(descriptor, buffer, bytes, offset) }
}

/// Writes to a file at an offset.
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pwrite(
    descriptor: c_int,
    buffer: *const c_void,
    bytes: usize,
    offset: i64,
) -> isize {
    let range = ProgramRange { descriptor, buffer: buffer.cast::<u8>().cast_mut(), bytes, offset };
    // SAFETY: the caller promises the same; a write only reads the buffer.
    let mapped = unsafe { transfer(range, TransferDirection::Write) };
    if let Some(done) = mapped {
        return done.cast_signed();
    }
    match next_write(&NEXT_PWRITE) {
        // SAFETY: the caller promises the same.
        Some(next) => unsafe { next(descriptor, buffer, bytes, offset) },
        None => {
            // SAFETY: as above; the call sets `errno`, and returns what the function returns.
            let done = unsafe { libc::syscall(libc::SYS_pwrite64, descriptor, buffer, bytes, offset) };
            isize::try_from(done).unwrap_or(-1)
        }
    }
}

/// Writes to a file at an offset: [`pwrite`] under its second name.
///
/// # Safety
/// As for the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pwrite64(
    descriptor: c_int,
    buffer: *const c_void,
    bytes: usize,
    offset: i64,
) -> isize {
    // SAFETY: the caller promises the same.
    unsafe { pwrite(descriptor, buffer, bytes, offset) }
}
