//! Claimed pages, owned by the CPU or lent to a device.
//!
//! Input: a claim. Output: bytes, as long as the CPU owns the pages; an address and a length while they are lent.
//! Invariant: of each byte there is at most one [`PageSpan`] or [`LentSpan`] in the process, and it is mapped as long as
//! that lives.

use super::backing::PAGE_BYTES;
use super::page_run::PageRun;
use crate::pinning::MemoryRange;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;

/// Pages that the CPU owns. Derefs to their bytes.
///
/// It is returned by [`Reservation::release`](super::Reservation::release). Dropping it instead leaves it claimed for
/// ever: the memory is leaked, and nothing else breaks.
#[must_use = "a span that is dropped stays claimed for ever"]
pub struct PageSpan {
    start: NonNull<u8>,
    run: PageRun,
}

// SAFETY: the pages belong to this value alone and to no thread in particular; access follows `&` and `&mut`.
unsafe impl Send for PageSpan {}
// SAFETY: through `&PageSpan` the bytes can only be read.
unsafe impl Sync for PageSpan {}

impl PageSpan {
    /// Creates a span over `run`, which starts at `start`.
    ///
    /// # Safety
    /// The run's bytes are mapped readable and writable, they are initialised, and they stay so until this value has
    /// been taken back; no other span or reference covers any of them during that time.
    #[inline]
    pub(super) unsafe fn new(start: NonNull<u8>, run: PageRun) -> Self {
        Self { start, run }
    }

    /// Returns its pages in the reservation.
    #[must_use]
    #[inline]
    pub fn run(&self) -> PageRun {
        self.run
    }

    /// Returns its first page.
    #[must_use]
    #[inline]
    pub fn first(&self) -> u32 {
        self.run.first
    }

    /// Returns the number of pages.
    #[must_use]
    #[inline]
    pub fn pages(&self) -> u32 {
        self.run.pages
    }

    /// Returns the first address in this process.
    #[must_use]
    #[inline]
    pub fn address(&self) -> usize {
        self.start.as_ptr().addr()
    }

    /// Returns the length in bytes.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> usize {
        self.run.bytes()
    }

    /// Lends the bytes to a device: until [`reclaim`](LentSpan::reclaim) no code of this process can access them.
    #[inline]
    pub fn lend(self) -> LentSpan {
        LentSpan { span: self }
    }

    #[inline]
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Deref for PageSpan {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: bounds and lifetime: the caller of `new` promised that the run's bytes are mapped and initialised as
        // long as this value lives. Alignment: of bytes. Aliasing: no other span covers them, and a shared borrow of
        // `self` excludes writers.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.run.bytes()) }
    }
}

impl DerefMut for PageSpan {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and a unique borrow of `self` excludes every other access.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.run.bytes()) }
    }
}

impl fmt::Debug for PageSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageSpan(page {}, {} bytes)", self.run.first, self.bytes())
    }
}

const _: () = assert!(size_of::<PageSpan>() == 16 && PAGE_BYTES == 4_096);

/// Pages lent to a device. Their bytes are inaccessible until they are back.
///
/// Taking it back while the device still works on it gives bytes that change under a reference, as with any memory that
/// hardware writes: the code that starts the device's work keeps this value until the device has completed it.
#[must_use = "pages that are never taken back stay claimed for ever"]
pub struct LentSpan {
    span: PageSpan,
}

impl LentSpan {
    /// Returns its pages in the reservation.
    #[must_use]
    #[inline]
    pub fn run(&self) -> PageRun {
        self.span.run
    }

    /// Returns the first address in this process.
    #[must_use]
    #[inline]
    pub fn address(&self) -> usize {
        self.span.address()
    }

    /// Returns the length in bytes.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> usize {
        self.span.bytes()
    }

    /// Returns the pages as memory that can be pinned.
    #[must_use]
    pub fn memory(&self) -> MemoryRange {
        MemoryRange::new(self.address(), self.bytes())
    }

    /// Returns the first address, for a system call.
    #[inline]
    pub(crate) fn start(&self) -> *mut u8 {
        self.span.start.as_ptr()
    }

    /// Returns the bytes to the CPU after the device has completed.
    #[inline]
    pub fn reclaim(self) -> PageSpan {
        self.span
    }
}

impl fmt::Debug for LentSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LentSpan(page {}, {} bytes)", self.run().first, self.bytes())
    }
}
