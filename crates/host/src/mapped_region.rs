//! Mappings of this process: large, aligned, backed by huge pages where the kernel provides them.
//!
//! Input: a length in bytes. Output: a [`MappedRegion`], zeroed, owned by the CPU, unmapped when dropped; or a
//! [`SectorBuffer`], the small kind that direct I/O takes. Invariant: a region's bytes are mapped readable and writable
//! for exactly as long as the value lives, and no other code has their address.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;

pub(crate) use crate::mapped_region::sector::SectorBacking;
pub use crate::mapped_region::sector::{SECTOR_BYTES, SectorBuffer, SpanSink};

mod sector;

/// The size of a huge page; regions at least this long start on such a boundary.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// An error of mapping a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// The kernel refused the mapping.
    #[error("cannot map {bytes} bytes of memory (error {errno}): request less or free some")]
    Map {
        /// The requested length.
        bytes: usize,
        /// The kernel's error number.
        errno: i32,
    },
    /// The length does not fit the address space.
    #[error("{bytes} bytes of memory do not fit the address space: request less")]
    TooLong {
        /// The requested length.
        bytes: usize,
    },
}

/// A run of mapped memory that this value owns.
pub struct MappedRegion {
    start: NonNull<u8>,
    bytes: usize,
    mapped_bytes: usize,
}

// SAFETY: the mapping belongs to this value alone and to no thread in particular; access follows `&` and `&mut`.
unsafe impl Send for MappedRegion {}
// SAFETY: through `&MappedRegion` the bytes can only be read.
unsafe impl Sync for MappedRegion {}

impl MappedRegion {
    /// Maps `bytes` of zeroed memory. Pages are allocated when they are first touched.
    ///
    /// # Errors
    /// The kernel refuses the mapping, or the length does not fit.
    pub fn zeroed(bytes: usize) -> Result<Self, RegionError> {
        let huge = bytes >= HUGE_PAGE_BYTES;
        let page_bytes = if huge { HUGE_PAGE_BYTES } else { rustix::param::page_size() };
        let mapped_bytes =
            bytes.max(1).checked_next_multiple_of(page_bytes).ok_or(RegionError::TooLong { bytes })?;
        // One huge page more than needed, so that an aligned start lies within; the rest is unmapped at once.
        let slack = if huge { HUGE_PAGE_BYTES } else { 0 };
        let asked = mapped_bytes.checked_add(slack).ok_or(RegionError::TooLong { bytes })?;
        // SAFETY: a private anonymous mapping at an address of the kernel's choice touches no memory that exists.
        let found = unsafe {
            mmap_anonymous(
                ptr::null_mut(),
                asked,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let map_error = |errno: rustix::io::Errno| RegionError::Map { bytes, errno: errno.raw_os_error() };
        let found = found.map_err(map_error)?;
        let lead = if huge { found.align_offset(HUGE_PAGE_BYTES).min(slack) } else { 0 };
        let start = found.wrapping_byte_add(lead);
        unmap_part(found, lead);
        unmap_part(start.wrapping_byte_add(mapped_bytes), slack - lead);
        if huge {
            // SAFETY: the range is the mapping made above; the advice changes how it is backed, not what it holds.
            // Its failure (a kernel without huge pages) costs speed only.
            let _ = unsafe { madvise(start, mapped_bytes, Advice::LinuxHugepage) };
        }
        let start = NonNull::new(start.cast::<u8>()).ok_or(RegionError::Map { bytes, errno: 0 })?;
        Ok(Self { start, bytes, mapped_bytes })
    }
}

/// Unmaps a part of a mapping to which no address is in use.
fn unmap_part(start: *mut c_void, bytes: usize) {
    if bytes > 0 {
        // SAFETY: called only with page-aligned parts of a mapping of this module that its owner no longer uses. A
        // failure leaves the pages mapped, which leaks address space but breaks nothing.
        let _ = unsafe { munmap(start, bytes) };
    }
}

impl Drop for MappedRegion {
    fn drop(&mut self) {
        unmap_part(self.start.as_ptr().cast(), self.mapped_bytes);
    }
}

impl Deref for MappedRegion {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `start` is the first of at least `bytes` mapped, initialised bytes (the kernel zeroes them), which
        // live as long as `self`; a shared borrow of `self` excludes writers.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

impl DerefMut for MappedRegion {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and a unique borrow of `self` excludes every other access.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }
}

impl fmt::Debug for MappedRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedRegion({} bytes)", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn region_is_zeroed_and_has_requested_length() {
        for bytes in [0, 1, 4_095, 4_096, HUGE_PAGE_BYTES - 1, HUGE_PAGE_BYTES, HUGE_PAGE_BYTES + 4_097] {
            let mut region = MappedRegion::zeroed(bytes).unwrap();
            assert_eq!(region.len(), bytes);
            assert!(region.iter().all(|&byte| byte == 0));
            region.fill(7);
            assert!(region.iter().all(|&byte| byte == 7));
        }
    }

    #[test]
    fn large_region_starts_on_huge_page_boundary() {
        for _ in 0..8 {
            let region = MappedRegion::zeroed(3 * HUGE_PAGE_BYTES + 5).unwrap();
            assert_eq!(region.as_ptr().align_offset(HUGE_PAGE_BYTES), 0);
        }
    }

    #[test]
    fn dropped_regions_are_unmapped() {
        // Together far more than the address space: only unmapping makes this pass.
        for _ in 0..1_000 {
            let mut region = MappedRegion::zeroed(1 << 40).unwrap();
            region[1 << 39] = 1;
        }
    }

    #[test]
    fn unmappable_length_is_an_error() {
        assert_eq!(MappedRegion::zeroed(usize::MAX).unwrap_err(), RegionError::TooLong { bytes: usize::MAX });
        assert!(matches!(MappedRegion::zeroed(1 << 62), Err(RegionError::Map { .. })));
    }

    #[test]
    fn regions_move_between_threads() {
        let mut region = MappedRegion::zeroed(4_096).unwrap();
        region[9] = 9;
        let region = std::thread::spawn(move || {
            region[10] = region[9] + 1;
            region
        })
        .join()
        .unwrap();
        assert_eq!(region[10], 10);
    }
}
