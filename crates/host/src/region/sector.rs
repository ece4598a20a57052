//! Small buffers that direct I/O takes: whole 512-byte sectors, aligned like them.
//!
//! In: a count of sectors. Out: zeroed bytes whose address does not change when the value moves, which is what lets a
//! kernel work on them while their owner waits. Invariant: address and length are multiples of [`SECTOR_BYTES`].

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::slice;

/// Bytes of a sector: the smallest unit of direct I/O.
pub const SECTOR_BYTES: usize = 512;

#[derive(Clone, Copy)]
#[repr(C, align(512))]
struct Sector([u8; SECTOR_BYTES]);

const _: () = assert!(size_of::<Sector>() == SECTOR_BYTES);

/// Heap memory in whole, aligned sectors. Derefs to its bytes while the CPU owns it.
pub struct SectorBuffer(Box<[Sector]>);

impl SectorBuffer {
    /// `sectors` zeroed sectors.
    #[must_use]
    pub fn zeroed(sectors: usize) -> Self {
        Self(vec![Sector([0; SECTOR_BYTES]); sectors].into_boxed_slice())
    }
}

impl Deref for SectorBuffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: sectors are plain bytes without padding, lie one behind another, and are borrowed with `self`.
        unsafe { slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() * SECTOR_BYTES) }
    }
}

impl DerefMut for SectorBuffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the borrow is unique, and any bytes make a sector.
        unsafe { slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.0.len() * SECTOR_BYTES) }
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
}
