//! The functions of the same names in the libraries behind this one: another preloaded library, or the C library.
//!
//! Input: names. Output: addresses, or none before [`find_all`]. Invariant: an address is stored once and is valid for ever,
//! because the libraries that a program starts with are not unloaded.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The address of a function, or null.
pub(super) type NextFunction = AtomicPtr<c_void>;

/// The C library's `memmove`.
pub(super) static NEXT_MEMMOVE: NextFunction = AtomicPtr::new(ptr::null_mut());
/// The C library's `memset`.
pub(super) static NEXT_MEMSET: NextFunction = AtomicPtr::new(ptr::null_mut());
/// The C library's `memcmp`.
pub(super) static NEXT_MEMCMP: NextFunction = AtomicPtr::new(ptr::null_mut());
/// The C library's `pread`.
pub(super) static NEXT_PREAD: NextFunction = AtomicPtr::new(ptr::null_mut());
/// The C library's `pwrite`.
pub(super) static NEXT_PWRITE: NextFunction = AtomicPtr::new(ptr::null_mut());
/// The C library's `close`.
pub(super) static NEXT_CLOSE: NextFunction = AtomicPtr::new(ptr::null_mut());
/// The C library's `fclose`.
pub(super) static NEXT_FCLOSE: NextFunction = AtomicPtr::new(ptr::null_mut());
/// The C library's `dup2`.
pub(super) static NEXT_DUP2: NextFunction = AtomicPtr::new(ptr::null_mut());
/// The C library's `dup3`.
pub(super) static NEXT_DUP3: NextFunction = AtomicPtr::new(ptr::null_mut());
/// The C library's `close_range`, which older ones lack.
pub(super) static NEXT_CLOSE_RANGE: NextFunction = AtomicPtr::new(ptr::null_mut());

type MoveFunction = unsafe extern "C" fn(*mut u8, *const u8, usize) -> *mut u8;
type FillFunction = unsafe extern "C" fn(*mut u8, c_int, usize) -> *mut u8;
type ReadFunction = unsafe extern "C" fn(c_int, *mut c_void, usize, i64) -> isize;
type WriteFunction = unsafe extern "C" fn(c_int, *const c_void, usize, i64) -> isize;
type CloseFunction = unsafe extern "C" fn(c_int) -> c_int;
type CloseStreamFunction = unsafe extern "C" fn(*mut libc::FILE) -> c_int;
type Dup2Function = unsafe extern "C" fn(c_int, c_int) -> c_int;
type Dup3Function = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
type CloseRangeFunction = unsafe extern "C" fn(c_uint, c_uint, c_int) -> c_int;

/// Finds the functions. It may run again, and finds the same.
pub(super) fn find_all() {
    let found: [(&CStr, &NextFunction); 10] = [
        (c"memmove", &NEXT_MEMMOVE),
        (c"memset", &NEXT_MEMSET),
        (c"memcmp", &NEXT_MEMCMP),
        (c"pread64", &NEXT_PREAD),
        (c"pwrite64", &NEXT_PWRITE),
        (c"close", &NEXT_CLOSE),
        (c"fclose", &NEXT_FCLOSE),
        (c"dup2", &NEXT_DUP2),
        (c"dup3", &NEXT_DUP3),
        (c"close_range", &NEXT_CLOSE_RANGE),
    ];
    for (name, next) in found {
        // SAFETY: the name ends with a zero; the call reads it only.
        let address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        next.store(address, Ordering::Release);
    }
}

/// Declares how an address is called.
macro_rules! called_as {
    ($(#[doc = $doc:literal] $name:ident: $kind:ty,)+) => {
        $(#[doc = $doc]
        pub(super) fn $name(next: &NextFunction) -> Option<$kind> {
            let address = next.load(Ordering::Acquire);
            if address.is_null() {
                return None;
            }
            // SAFETY: the address is that of the function with this signature, by the name that it was found by; it is valid
            // for ever.
            Some(unsafe { std::mem::transmute::<*mut c_void, $kind>(address) })
        })+
    };
}

called_as! {
    /// Returns the function that copies, if it is known.
    next_move: MoveFunction,
    /// Returns the function that fills, if it is known.
    next_fill: FillFunction,
    /// Returns the function that reads, if it is known.
    next_read: ReadFunction,
    /// Returns the function that writes, if it is known.
    next_write: WriteFunction,
    /// Returns the function that closes, if it is known.
    next_close: CloseFunction,
    /// Returns the function that closes a stream, if it is known.
    next_close_stream: CloseStreamFunction,
    /// Returns the function that copies a descriptor, if it is known.
    next_dup2: Dup2Function,
    /// Returns the function that copies a descriptor with flags, if it is known.
    next_dup3: Dup3Function,
    /// Returns the function that closes a range of descriptors, if it is known.
    next_close_range: CloseRangeFunction,
}
