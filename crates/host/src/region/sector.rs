//! Small buffers that direct I/O takes: whole 512-byte sectors, aligned like them.
//!
//! In: a count of sectors. Out: zeroed bytes whose address does not change when the value moves, which is what lets a
//! kernel work on them while a ring owns them. Invariant: address and length are multiples of [`SECTOR_BYTES`].

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::slice;

/// Bytes of a sector: the smallest unit of direct I/O.
pub const SECTOR_BYTES: usize = 512;

#[derive(Clone, Copy)]
#[repr(C, align(512))]
struct Sector([u8; SECTOR_BYTES]);

const _: () = assert!(size_of::<Sector>() == SECTOR_BYTES);

/// Heap memory in whole, aligned sectors. Derefs to its bytes while the CPU owns it.
pub struct SectorBuffer {
    // A pointer and not a `Box`: a box that moves claims its bytes anew, which a kernel at work on them would break.
    start: NonNull<Sector>,
    sectors: usize,
}

// SAFETY: the sectors belong to this value alone and to no thread in particular; access follows `&` and `&mut`.
unsafe impl Send for SectorBuffer {}
// SAFETY: through `&SectorBuffer` the bytes can only be read.
unsafe impl Sync for SectorBuffer {}

impl SectorBuffer {
    /// `sectors` zeroed sectors.
    #[must_use]
    pub fn zeroed(sectors: usize) -> Self {
        let owned = vec![Sector([0; SECTOR_BYTES]); sectors].into_boxed_slice();
        Self { start: NonNull::from(Box::leak(owned)).cast(), sectors }
    }

    /// Where the bytes start, for a kernel that is given them.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr().cast()
    }
}

impl Drop for SectorBuffer {
    fn drop(&mut self) {
        let owned = ptr::slice_from_raw_parts_mut(self.start.as_ptr(), self.sectors);
        // SAFETY: start and count are those of the boxed slice that `zeroed` leaked, which nobody else frees.
        drop(unsafe { Box::from_raw(owned) });
    }
}

impl Deref for SectorBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: sectors are plain initialised bytes without padding, one behind another, alive as long as `self`;
        // a shared borrow of `self` excludes writers.
        unsafe { slice::from_raw_parts(self.start.as_ptr().cast(), self.sectors * SECTOR_BYTES) }
    }
}

impl DerefMut for SectorBuffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the borrow is unique, and any bytes make a sector.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.sectors * SECTOR_BYTES) }
    }
}

impl fmt::Debug for SectorBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SectorBuffer({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_are_aligned_zeroed_and_writable() {
        for sectors in [0, 1, 9, 64] {
            let mut buffer = SectorBuffer::zeroed(sectors);
            assert_eq!(buffer.len(), sectors * SECTOR_BYTES);
            assert_eq!(buffer.as_ptr().align_offset(SECTOR_BYTES), 0);
            assert!(buffer.iter().all(|&byte| byte == 0));
            buffer.fill(3);
            assert!(buffer.iter().all(|&byte| byte == 3));
        }
    }

    #[test]
    fn the_address_stays_when_the_value_moves() {
        let buffer = SectorBuffer::zeroed(2);
        let before = buffer.as_ptr();
        let moved = Box::new(buffer);
        assert_eq!(moved.as_ptr(), before);
    }
}
