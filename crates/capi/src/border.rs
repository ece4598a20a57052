//! The FFI boundary of every call: catches panics, turns faults into codes, and writes values through pointers of C.
//!
//! Input: the body of a call, and pointers of C. Output: a [`Code`]. Invariant: no panic unwinds into C; nothing is
//! read or written through a pointer that is null or misaligned.

use crate::code::Code;
use crate::fault::Fault;
use crate::message;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the body of a call and returns its code.
#[inline]
pub(crate) fn guarded(work: impl FnOnce() -> Result<(), Fault>) -> Code {
    // Other calls see the state that a panic leaves only through the pool, whose locks survive it.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => Code::Ok,
        Ok(Err(fault)) => failed(&fault),
        Err(_) => panicked(),
    }
}

#[cold]
fn failed(fault: &Fault) -> Code {
    message::keep(fault);
    fault.code()
}

#[cold]
fn panicked() -> Code {
    message::keep(&"internal error of this library: please report what it printed on standard error");
    Code::Panic
}

/// An out-parameter of C, checked to be neither null nor misaligned.
#[derive(Debug)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Checks a pointer of C.
    ///
    /// # Safety
    /// A pointer that is neither null nor misaligned for `T` is valid for writes of a `T` as long as the result lives.
    #[inline]
    pub(crate) unsafe fn at(pointer: *mut T, name: &'static str) -> Result<Self, Fault> {
        check(pointer, name)?;
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
pub(crate) fn check<T>(pointer: *const T, name: &'static str) -> Result<(), Fault> {
    if pointer.is_null() {
        return Err(Fault::Null(name));
    }
    if pointer.is_aligned() { Ok(()) } else { Err(Fault::Misaligned(name)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_code() {
        assert_eq!(guarded(|| panic!("a test panics here on purpose")), Code::Panic);
        assert_eq!(guarded(|| Ok(())), Code::Ok);
        assert_eq!(guarded(|| Err(Fault::Handle)), Code::Handle);
    }

    #[test]
    fn null_and_misaligned_out_pointers_are_refused() {
        let mut words = [0_u64; 2];
        let inside = words.as_mut_ptr().cast::<u8>().wrapping_add(1).cast::<u64>();
        // SAFETY: the promise does not cover a null pointer.
        let null = unsafe { Out::at(std::ptr::null_mut::<u64>(), "out") };
        // SAFETY: the promise does not cover a misaligned pointer.
        let misaligned = unsafe { Out::at(inside, "out") };
        assert!(matches!(null, Err(Fault::Null("out"))));
        assert!(matches!(misaligned, Err(Fault::Misaligned("out"))));
    }
}
