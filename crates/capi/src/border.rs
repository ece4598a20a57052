//! What every call goes through: panics are caught, faults become codes, and values are written to where C wants them.
//!
//! In: the work of a call, and C's pointers. Out: a [`Code`]. Invariant: nothing unwinds into C; through a pointer that is
//! null or not aligned nothing is read or written.

use crate::code::Code;
use crate::fault::Fault;
use crate::message;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Does the work of a call.
#[inline]
pub(crate) fn guarded(work: impl FnOnce() -> Result<(), Fault>) -> Code {
    // What a panic leaves behind is seen by other calls only through the pool, whose locks survive it.
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
    message::keep(&"a mistake in this library: please report what it printed on standard error");
    Code::Panic
}

/// Where C wants a value. It was found to be neither null nor misaligned.
#[derive(Debug)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// The place behind a pointer of C's.
    ///
    /// # Safety
    /// A pointer that is not null and aligned for `T` is valid for writes of a `T` as long as the value lives.
    #[inline]
    pub(crate) unsafe fn at(pointer: *mut T, name: &'static str) -> Result<Self, Fault> {
        check(pointer, name)?;
        Ok(Self(pointer))
    }

    /// Writes the value; what was there is not dropped.
    #[inline]
    pub(crate) fn write(self, value: T) {
        // SAFETY: not null and aligned, as `at` found, and valid for a write, as its caller promised.
        unsafe { self.0.write(value) };
    }
}

/// Whether a pointer could point to a `T`.
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
    fn nothing_is_written_to_nowhere() {
        let mut words = [0_u64; 2];
        let inside = words.as_mut_ptr().cast::<u8>().wrapping_add(1).cast::<u64>();
        // SAFETY: null is promised nothing.
        let null = unsafe { Out::at(std::ptr::null_mut::<u64>(), "out") };
        // SAFETY: nor is what is not aligned.
        let odd = unsafe { Out::at(inside, "out") };
        assert!(matches!(null, Err(Fault::Null("out"))));
        assert!(matches!(odd, Err(Fault::Misaligned("out"))));
    }
}
