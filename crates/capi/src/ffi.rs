//! The FFI boundary of every call: catches panics, turns faults into codes, and writes values through pointers of C.
//!
//! Input: the body of a call, and pointers of C. Output: a [`ResultCode`]. Invariant: no panic unwinds into C; nothing is
//! read or written through a pointer that is null or misaligned.

use crate::call_error::CallError;
use crate::code::ResultCode;
use crate::message;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the body of a call and returns its code.
#[inline]
pub(crate) fn run_call(work: impl FnOnce() -> Result<(), CallError>) -> ResultCode {
    // Other calls see the state that a panic leaves only through the pool, whose locks survive it.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => ResultCode::Ok,
        Ok(Err(fault)) => report_fault(&fault),
        Err(_) => report_panic(),
    }
}

#[cold]
fn report_fault(fault: &CallError) -> ResultCode {
    message::set_last_error(fault);
    fault.code()
}

#[cold]
fn report_panic() -> ResultCode {
    message::set_last_error(
        &"internal error of this library: please report what it printed on standard error",
    );
    ResultCode::Panic
}

/// An out-parameter of C, checked to be neither null nor misaligned.
#[derive(Debug)]
pub(crate) struct OutPointer<T>(*mut T);

impl<T> OutPointer<T> {
    /// Checks a pointer of C.
    ///
    /// # Safety
    /// A pointer that is neither null nor misaligned for `T` is valid for writes of a `T` as long as the result lives.
    #[inline]
    pub(crate) unsafe fn at(pointer: *mut T, name: &'static str) -> Result<Self, CallError> {
        check_pointer(pointer, name)?;
        Ok(Self(pointer))
    }

    /// Writes the value without dropping the old one.
    #[inline]
    pub(crate) fn write(self, value: T) {
        // SAFETY: not null and aligned, as `at` checked, and valid for a write, as its caller promised.
        unsafe { self.0.write(value) };
    }
}

/// Checks that a pointer is neither null nor misaligned for a `T`.
#[inline]
pub(crate) fn check_pointer<T>(pointer: *const T, name: &'static str) -> Result<(), CallError> {
    if pointer.is_null() {
        return Err(CallError::Null(name));
    }
    if pointer.is_aligned() { Ok(()) } else { Err(CallError::Misaligned(name)) }
}

/// Reads a struct of C whose first field is its length, a `usize`.
///
/// # Safety
/// A pointer that is neither null nor misaligned points to a `usize`; if its value is the length of a `T`, the pointer points
/// to one.
pub(crate) unsafe fn read_sized<T: Copy>(pointer: *const T, name: &'static str) -> Result<T, CallError> {
    check_pointer(pointer, name)?;
    // SAFETY: the caller promises a `usize` at this address, which is not null and aligned.
    let got = unsafe { pointer.cast::<usize>().read() };
    check_length::<T>(got)?;
    // SAFETY: aligned, and of the length that the caller promises.
    Ok(unsafe { pointer.read() })
}

/// Writes a struct of which C passed the length.
///
/// # Safety
/// A pointer that is neither null nor misaligned is valid for writes of `bytes` bytes.
pub(crate) unsafe fn write_sized<T>(
    pointer: *mut T,
    bytes: usize,
    name: &'static str,
    value: T,
) -> Result<(), CallError> {
    check_length::<T>(bytes)?;
    // SAFETY: the caller's promise, for the length just compared.
    let out = unsafe { OutPointer::at(pointer, name) }?;
    out.write(value);
    Ok(())
}

/// Checks the length of a struct that C passed.
fn check_length<T>(got: usize) -> Result<(), CallError> {
    let want = size_of::<T>();
    if got == want { Ok(()) } else { Err(CallError::StructLength { got, want }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_code() {
        assert_eq!(run_call(|| panic!("a test panics here on purpose")), ResultCode::Panic);
        assert_eq!(run_call(|| Ok(())), ResultCode::Ok);
        assert_eq!(run_call(|| Err(CallError::PoolNotOpen)), ResultCode::Handle);
    }

    #[test]
    fn null_and_misaligned_out_pointers_are_refused() {
        let mut words = [0_u64; 2];
        let inside = words.as_mut_ptr().cast::<u8>().wrapping_add(1).cast::<u64>();
        // SAFETY: the promise does not cover a null pointer.
        let null = unsafe { OutPointer::at(std::ptr::null_mut::<u64>(), "out") };
        // SAFETY: the promise does not cover a misaligned pointer.
        let misaligned = unsafe { OutPointer::at(inside, "out") };
        assert!(matches!(null, Err(CallError::Null("out"))));
        assert!(matches!(misaligned, Err(CallError::Misaligned("out"))));
    }
}
