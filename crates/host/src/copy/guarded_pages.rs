//! Pages between two guard pages, for tests of kernels at the ends of mapped memory.
//!
//! Input: a number of pages. Output: their bytes. Invariant: an access before the first byte or behind the last one faults,
//! which ends the test.

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use std::ffi::c_void;
use std::ops::Range;

const PAGE_BYTES: usize = 4_096;

/// An end of guarded pages, at which a range lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GuardedEnd {
    /// The range begins behind the first guard page.
    Front,
    /// The range ends at the second guard page.
    Back,
}

impl GuardedEnd {
    pub(super) const ALL: [Self; 2] = [Self::Front, Self::Back];

    /// Returns the range of `bytes` bytes at this end of `whole` bytes.
    pub(super) const fn range(self, bytes: usize, whole: usize) -> Range<usize> {
        match self {
            Self::Front => 0..bytes,
            Self::Back => whole - bytes..whole,
        }
    }
}

/// Pages with a page in front and behind that no access survives.
#[derive(Debug)]
pub(super) struct GuardedPages {
    start: *mut u8,
    pages: usize,
}

impl GuardedPages {
    /// Maps so many pages of zeroes, and a guard page on either side.
    pub(super) fn new(pages: usize) -> Self {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let bytes = (pages + 2) * PAGE_BYTES;
        // SAFETY: the kernel chooses the address of the pages, which this value unmaps.
        let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, access, MapFlags::PRIVATE) };
        let first = mapped.unwrap().cast::<u8>();
        let start = first.wrapping_add(PAGE_BYTES);
        for guard in [first, start.wrapping_add(pages * PAGE_BYTES)] {
            // SAFETY: a page of the mapping above, which nothing refers to.
            unsafe { mprotect(guard.cast::<c_void>(), PAGE_BYTES, MprotectFlags::empty()) }.unwrap();
        }
        Self { start, pages }
    }

    /// Returns all bytes between the guards.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: pages of the mapping, initialised by the kernel, borrowed like `self`.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.pages * PAGE_BYTES) }
    }

    /// Returns the bytes at one end.
    pub(super) fn bytes_at(&mut self, end: GuardedEnd, bytes: usize) -> &mut [u8] {
        let range = end.range(bytes, self.pages * PAGE_BYTES);
        &mut self.bytes()[range]
    }
}

impl Drop for GuardedPages {
    fn drop(&mut self) {
        let first = self.start.wrapping_sub(PAGE_BYTES).cast::<c_void>();
        // SAFETY: the range that the kernel returned, which nothing refers to any more.
        unsafe { munmap(first, (self.pages + 2) * PAGE_BYTES) }.unwrap();
    }
}
