//! Claimed pages: the CPU's, or lent to a device.
//!
//! In: a claim. Out: bytes, as long as the pages are the CPU's; an address and a length while they are lent. Invariant:
//! of each byte there is at most one [`Span`] or [`LentSpan`] in the process, and it is mapped as long as that lives.

use super::PageRun;
use super::backing::PAGE_BYTES;
use crate::pinning::Memory;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;

/// Pages that the CPU owns. Derefs to their bytes.
///
/// It goes back by [`Reservation::release`](super::Reservation::release). One that is dropped instead stays claimed for
/// ever: no harm comes of it but that its memory is gone for everybody.
#[must_use = "a span that is dropped stays claimed for ever"]
pub struct Span {
    start: NonNull<u8>,
    run: PageRun,
}

// SAFETY: the pages belong to this value alone and to no thread in particular; access follows `&` and `&mut`.
unsafe impl Send for Span {}
// SAFETY: through `&Span` the bytes can only be read.
unsafe impl Sync for Span {}

impl Span {
    /// A span over `run`, which starts at `start`.
    ///
    /// # Safety
    /// The run's bytes are mapped readable and writable, they are initialised, and they stay so until this value has been
    /// taken back; no other span or reference covers any of them meanwhile.
    #[inline]
    pub(super) unsafe fn over(start: NonNull<u8>, run: PageRun) -> Self {
        Self { start, run }
    }

    /// Which pages of its reservation.
    #[must_use]
    #[inline]
    pub fn run(&self) -> PageRun {
        self.run
    }

    /// The first of its pages.
    #[must_use]
    #[inline]
    pub fn first(&self) -> u32 {
        self.run.first
    }

    /// How many pages.
    #[must_use]
    #[inline]
    pub fn pages(&self) -> u32 {
        self.run.pages
    }

    /// Where it starts in this process.
    #[must_use]
    #[inline]
    pub fn address(&self) -> usize {
        self.start.as_ptr().addr()
    }

    /// Its length in bytes.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> usize {
        self.run.bytes()
    }

    /// Gives the bytes into a device's hands: until they are [`back`](LentSpan::back) nobody here can look at them.
    #[inline]
    pub fn lend(self) -> LentSpan {
        LentSpan { span: self }
    }

    #[inline]
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Deref for Span {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: bounds and lifetime: `over` was promised that the run's bytes are mapped and initialised as long as this
        // value lives. Alignment: of bytes. Aliasing: no other span covers them, and a shared borrow of `self` excludes
        // writers.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.run.bytes()) }
    }
}

impl DerefMut for Span {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and a unique borrow of `self` excludes everybody else.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.run.bytes()) }
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Span(page {}, {} bytes)", self.run.first, self.bytes())
    }
}

const _: () = assert!(size_of::<Span>() == 16 && PAGE_BYTES == 4_096);

/// Pages in a device's hands. There is no way to their bytes until they are back.
///
/// Who takes it back while the device still works on it gets bytes that change under a reference, as with any memory that
/// hardware writes: whoever starts the device's work keeps this value until the device has answered.
#[must_use = "pages that are never taken back stay claimed for ever"]
pub struct LentSpan {
    span: Span,
}

impl LentSpan {
    /// Which pages of its reservation.
    #[must_use]
    #[inline]
    pub fn run(&self) -> PageRun {
        self.span.run
    }

    /// Where it starts in this process.
    #[must_use]
    #[inline]
    pub fn address(&self) -> usize {
        self.span.address()
    }

    /// Its length in bytes.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> usize {
        self.span.bytes()
    }

    /// The pages as something that can be pinned.
    #[must_use]
    pub fn memory(&self) -> Memory {
        Memory::new(self.address(), self.bytes())
    }

    /// Where the bytes start, for a kernel that is given them.
    #[inline]
    pub(crate) fn start(&self) -> *mut u8 {
        self.span.start.as_ptr()
    }

    /// The device is done: the bytes are the CPU's again.
    #[inline]
    pub fn back(self) -> Span {
        self.span
    }
}

impl fmt::Debug for LentSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LentSpan(page {}, {} bytes)", self.run().first, self.bytes())
    }
}
