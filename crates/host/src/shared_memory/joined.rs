//! One contiguous mapping in this process of pages of several regions.
//!
//! Input: page-aligned ranges of shared regions. Output: a region. Invariant: each of its pages is the same memory as
//! its source page, also after the source region is unmapped.

use super::{MappingOrigin, PAGE_BYTES, RegionMapping, SharedMemory};
use crate::fault_guard::{FaultGuard, GuardedRange};
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap_fixed};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

/// An error of joining ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// A range is not page-aligned, is empty, or does not lie in its region.
    #[error("{bytes} bytes at offset {offset} are not whole pages inside a region of {region_bytes} bytes")]
    Range {
        /// The first byte of the range.
        offset: usize,
        /// The length of the range.
        bytes: usize,
        /// The length of the region.
        region_bytes: usize,
    },
    /// The region is lent by a reservation, or was joined itself.
    #[error("the region is itself lent or joined: join only regions that are one mapping of the kernel")]
    NotSingleMapping,
    /// There are no ranges, or more bytes than there are addresses.
    #[error(
        "{ranges} ranges cannot form a region: pass at least one, and fewer bytes than the address space"
    )]
    Length {
        /// The number of ranges.
        ranges: usize,
    },
    /// The kernel refused.
    #[error("the pages cannot be mapped again: {0}")]
    Map(rustix::io::Errno),
}

/// A page-aligned range of a region.
#[derive(Clone, Debug)]
pub struct SharedPages {
    /// The region.
    pub region: SharedMemory,
    /// The offset of the range in the region, page-aligned.
    pub offset: usize,
    /// The length, a whole number of pages.
    pub bytes: usize,
}

impl SharedPages {
    /// Returns the mapped address, if the pages can be mapped again.
    fn mapped_address(&self) -> Result<*mut u8, JoinError> {
        let &Self { ref region, offset, bytes } = self;
        let on_borders = [offset, bytes].iter().all(|at| (*at as u64).is_multiple_of(PAGE_BYTES));
        let wrong = JoinError::Range { offset, bytes, region_bytes: region.bytes() };
        let place = region.checked_address(offset, bytes).map_err(|_| wrong)?;
        match region.mapping.origin {
            _ if !on_borders || bytes == 0 => Err(wrong),
            MappingOrigin::KernelMapping | MappingOrigin::Guarded(_) => Ok(place),
            MappingOrigin::JoinedMappings(_)
            | MappingOrigin::Caller
            | MappingOrigin::LentPages(..)
            | MappingOrigin::KeptWith(..) => Err(JoinError::NotSingleMapping),
        }
    }
}

impl SharedMemory {
    /// Maps pages of several regions again, in order, as one region of the same memory.
    ///
    /// # Errors
    /// [`JoinError`] when the ranges are not whole pages of their regions, or the kernel has no mapping to give.
    ///
    /// # Panics
    /// Never: the length of the region is the sum of its ranges.
    pub fn join(pieces: &[SharedPages]) -> Result<Self, JoinError> {
        let places: Vec<_> = pieces.iter().map(SharedPages::mapped_address).collect::<Result<_, _>>()?;
        let bytes = pieces.iter().try_fold(0_usize, |sum, piece| sum.checked_add(piece.bytes));
        let bytes = bytes.filter(|&bytes| bytes > 0).ok_or(JoinError::Length { ranges: pieces.len() })?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: bounds: the kernel chooses a range of `bytes` bytes or fails. Alignment: it starts on a page.
        // Lifetime: the range is ours until `RegionMapping::drop` unmaps it. Aliasing: a null hint without FIXED
        // replaces no mapping.
        let mapped = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::empty(), flags) };
        let start = mapped.map_err(JoinError::Map)?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(JoinError::Map(rustix::io::Errno::NOMEM))?;
        // From here on the whole range is unmapped on drop, even if a piece fails.
        let mut mapping = RegionMapping { start, bytes, origin: MappingOrigin::JoinedMappings(None) };
        if let Some(lost) = pieces.iter().find_map(|piece| piece.region.mapping.lost()) {
            // All pieces belong to one client.
            let guard = FaultGuard::installed().ok_or(JoinError::Map(rustix::io::Errno::NOSYS))?;
            let range = GuardedRange::new(guard, start.addr().get(), bytes, lost).map_err(JoinError::Map)?;
            mapping.origin = MappingOrigin::JoinedMappings(Some(range));
        }
        let mut at = 0;
        for (piece, place) in pieces.iter().zip(places) {
            let target = start.as_ptr().wrapping_add(at).cast::<c_void>();
            // An old length of 0 leaves the mapping where it is and creates another of the same shared pages
            // (mremap(2)).
            let (source, flags) = (place.cast::<c_void>(), MremapFlags::MAYMOVE);
            // SAFETY: bounds: `mapped_address` found the piece inside a mapping that the kernel made in one piece, so
            // the pages from its start on are those of the same file; the target lies in the range that was reserved
            // above, of which the pieces together fill no more. Alignment: both begin on pages. Lifetime:
            // `piece.region` keeps the source for the call, `join` the target. Aliasing: no other code has the
            // target's address yet, and what it replaces was reserved for it; the source stays as it is; no reference
            // points into either.
            let mapped = unsafe { mremap_fixed(source, 0, piece.bytes, flags, target) };
            mapped.map_err(JoinError::Map)?;
            at += piece.bytes;
        }
        assert!(at == bytes, "{at} of {bytes} bytes have a source page");
        Ok(Self { mapping: Arc::new(mapping) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4_096;

    fn pages(region: &SharedMemory, first: usize, count: usize) -> SharedPages {
        SharedPages { region: region.clone(), offset: first * PAGE, bytes: count * PAGE }
    }

    #[test]
    fn joined_pages_alias_their_source_pages() {
        let (ours, _descriptor) = SharedMemory::memfd(8 * PAGE).unwrap();
        let other = SharedMemory::anonymous(2 * PAGE).unwrap();
        let joined =
            SharedMemory::join(&[pages(&ours, 6, 2), pages(&other, 1, 1), pages(&ours, 0, 1)]).unwrap();
        assert_eq!(joined.bytes(), 4 * PAGE);
        let text: Vec<u8> = (0..=250).cycle().take(4 * PAGE).collect();
        joined.copy_out(0, &text).unwrap();
        for (region, page, place) in [(&ours, 6, 0), (&ours, 7, 1), (&other, 1, 2), (&ours, 0, 3)] {
            let mut found = vec![0; PAGE];
            region.copy_in(page * PAGE, &mut found).unwrap();
            assert!(found == text[place * PAGE..(place + 1) * PAGE], "page {page}");
        }
        ours.copy_out(7 * PAGE, b"later").unwrap();
        drop((ours, other));
        let mut found = [0; 5];
        joined.copy_in(PAGE, &mut found).unwrap();
        assert_eq!(&found, b"later", "pages outlive their source regions");
    }

    #[test]
    fn unaligned_or_outside_ranges_are_refused() {
        let region = SharedMemory::anonymous(4 * PAGE).unwrap();
        assert_eq!(SharedMemory::join(&[]).err(), Some(JoinError::Length { ranges: 0 }));
        for (offset, bytes) in
            [(0, 0), (1, PAGE), (0, PAGE + 1), (4 * PAGE, PAGE), (usize::MAX - 4_095, PAGE)]
        {
            let piece = SharedPages { region: region.clone(), offset, bytes };
            let wrong = JoinError::Range { offset, bytes, region_bytes: 4 * PAGE };
            assert_eq!(SharedMemory::join(&[pages(&region, 0, 1), piece]).err(), Some(wrong));
        }
        let joined = SharedMemory::join(&[pages(&region, 2, 1), pages(&region, 0, 1)]).unwrap();
        assert_eq!(SharedMemory::join(&[pages(&joined, 0, 2)]).err(), Some(JoinError::NotSingleMapping));
    }
}
