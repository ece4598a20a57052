//! Ranges of client memory that are accessed in place, such as rings.
//!
//! Input: a range of a client's addresses. Output: a region that holds it contiguously. Invariant: the bytes are the
//! client's, in address order.

use super::{ClientMemory, DataTransferError, Iova, RegionAccess};
use headwater_host::shared_memory::{SharedMemory, SharedPages};
use headwater_host::width::to_usize;

/// Bytes of a page, the unit of mapping.
const PAGE_BYTES: u64 = 4_096;

impl ClientMemory {
    /// Returns a contiguous mapping of a range and the offset of the range in it: for rings, which are accessed in
    /// place, and written. Pages of several regions are mapped a second time, unless they follow each other in one mapping
    /// already. Before a caller revokes a region it ends
    /// this use: [`RegionRevocation::is_drained`](super::RegionRevocation::is_drained) does not detect it.
    ///
    /// # Errors
    /// [`DataTransferError`] when the range is not fully registered, may only be read, or its pages cannot be mapped a
    /// second time.
    pub fn map_contiguous(
        &self,
        start: Iova,
        bytes: u64,
    ) -> Result<(SharedMemory, usize), DataTransferError> {
        match self.contiguous(start, bytes) {
            Err(DataTransferError::Unmapped { .. }) => {}
            other => return other,
        }
        let overflow = DataTransferError::Overflow { start, bytes };
        let end = start.0.checked_add(bytes).ok_or(overflow)?;
        let end = end.checked_next_multiple_of(PAGE_BYTES).ok_or(overflow)?;
        let front = start.0 - start.0 % PAGE_BYTES;
        let mut pieces = Vec::new();
        let mut at = front;
        while at < end {
            let unmapped = DataTransferError::Unmapped { start, bytes, unmapped: Iova(at) };
            let (base, region) = self.regions.range(..=Iova(at)).next_back().ok_or(unmapped)?;
            let offset = at - base.0;
            let piece =
                region.bytes.checked_sub(offset).filter(|&left| left > 0).ok_or(unmapped)?.min(end - at);
            let (Ok(offset), Ok(piece_bytes)) = (usize::try_from(offset), usize::try_from(piece)) else {
                return Err(unmapped);
            };
            if region.access == RegionAccess::ReadOnly {
                return Err(DataTransferError::ReadOnly { start, bytes });
            }
            let offset = region.offset + offset;
            pieces.push(SharedPages { region: region.memory.clone(), offset, bytes: piece_bytes });
            at += piece;
        }
        if let Some(first) = pieces.first()
            && pieces.windows(2).all(|pair| follow_each_other(&pair[0], &pair[1]))
        {
            return Ok((first.region.clone(), first.offset + to_usize(start.0 - front)));
        }
        let scattered = |_| DataTransferError::Scattered { start, bytes };
        let joined = SharedMemory::join(&pieces).map_err(scattered)?;
        Ok((joined, to_usize(start.0 - front)))
    }

    /// Returns the one region that holds the whole range, and the offset of the range in it.
    fn contiguous(&self, start: Iova, bytes: u64) -> Result<(SharedMemory, usize), DataTransferError> {
        let end = start.0.checked_add(bytes).ok_or(DataTransferError::Overflow { start, bytes })?;
        let unmapped = |unmapped| DataTransferError::Unmapped { start, bytes, unmapped: Iova(unmapped) };
        let (base, region) = self.regions.range(..=start).next_back().ok_or(unmapped(start.0))?;
        // No overflow: checked when the region was registered.
        let region_end = base.0 + region.bytes;
        if start.0 >= region_end || end > region_end {
            return Err(unmapped(start.0.max(region_end)));
        }
        if region.access == RegionAccess::ReadOnly {
            return Err(DataTransferError::ReadOnly { start, bytes });
        }
        let offset = usize::try_from(start.0 - base.0).map_err(|_| unmapped(start.0))?;
        Ok((region.memory.clone(), region.offset + offset))
    }
}

/// Returns true if the second piece begins in the same mapping where the first ends.
fn follow_each_other(first: &SharedPages, second: &SharedPages) -> bool {
    first.region.is_same(&second.region) && first.offset + first.bytes == second.offset
}

#[cfg(test)]
mod tests {
    use super::super::tests::{region, register_all};
    use super::*;

    #[test]
    fn a_contiguous_range_lies_in_one_region() {
        let memory = register_all(&[(1_000, 100), (1_100, 100)]);
        let (region, offset) = memory.contiguous(Iova(1_090), 10).unwrap();
        assert_eq!((region.bytes(), offset), (100, 90));
        let unmapped = |start, bytes| match memory.contiguous(Iova(start), bytes).unwrap_err() {
            DataTransferError::Unmapped { unmapped, .. } => unmapped.0,
            other => panic!("{other}"),
        };
        assert_eq!(unmapped(1_090, 11), 1_100, "the next region is not part of it");
        assert_eq!(unmapped(999, 1), 999);
        assert_eq!(unmapped(1_200, 1), 1_200);
        assert!(memory.contiguous(Iova(u64::MAX), 2).is_err());
    }

    #[test]
    fn parts_that_follow_each_other_are_not_mapped_again_and_read_only_parts_are_refused() {
        let page = usize::try_from(PAGE_BYTES).unwrap();
        let all = region(8 * page);
        let part =
            |first, pages| SharedPages { region: all.clone(), offset: first * page, bytes: pages * page };
        let mut memory = ClientMemory::new();
        for (number, (first, access)) in
            [(3, RegionAccess::ReadWrite), (4, RegionAccess::ReadWrite), (5, RegionAccess::ReadOnly)]
                .into_iter()
                .enumerate()
        {
            let start = Iova(u64::try_from(number).unwrap() * PAGE_BYTES);
            memory.register_part(start, part(first, 1), access).unwrap();
        }
        let (found, offset) = memory.map_contiguous(Iova(8), PAGE_BYTES).unwrap();
        assert!(found.is_same(&all));
        assert_eq!(offset, 3 * page + 8);
        memory.resolve(Iova(PAGE_BYTES), 5).unwrap().copy_out(0, b"hello");
        let mut text = [0; 5];
        all.copy_in(4 * page, &mut text).unwrap();
        assert_eq!(&text, b"hello", "an address is relative to its part");
        for (start, bytes) in [(2 * PAGE_BYTES, 8), (PAGE_BYTES, 2 * PAGE_BYTES)] {
            let refused = memory.map_contiguous(Iova(start), bytes).err();
            assert_eq!(refused, Some(DataTransferError::ReadOnly { start: Iova(start), bytes }));
        }
        assert!(memory.resolve(Iova(0), 2 * PAGE_BYTES).unwrap().is_writable());
        let read_only = memory.resolve(Iova(PAGE_BYTES), 2 * PAGE_BYTES).unwrap();
        assert!(!read_only.is_writable());
        assert_eq!(read_only.copy_in(0, &mut text), 5);
    }

    #[test]
    fn pages_of_several_regions_map_contiguously_and_partial_pages_are_refused() {
        let base = 7 * PAGE_BYTES;
        let page = usize::try_from(PAGE_BYTES).unwrap();
        let mut memory = register_all(&[(base, 2 * page), (base + 2 * PAGE_BYTES, page)]);
        let text: Vec<u8> = (0..=250).cycle().take(3 * page).collect();
        memory.resolve(Iova(base), 3 * PAGE_BYTES).unwrap().copy_out(0, &text);
        let (joined, offset) = memory.map_contiguous(Iova(base + PAGE_BYTES + 8), PAGE_BYTES).unwrap();
        assert_eq!((joined.bytes(), offset), (2 * page, 8));
        let mut found = vec![0; page];
        joined.copy_in(offset, &mut found).unwrap();
        assert!(found == text[page + 8..2 * page + 8]);
        let (alone, _) = memory.map_contiguous(Iova(base + 8), 16).unwrap();
        assert_eq!(alone.bytes(), 2 * page, "a range inside one region is not mapped again");
        let (start, bytes) = (Iova(base), 4 * PAGE_BYTES);
        let unmapped = Iova(base + 3 * PAGE_BYTES);
        let refused = memory.map_contiguous(start, bytes).err();
        assert_eq!(refused, Some(DataTransferError::Unmapped { start, bytes, unmapped }));
        memory.register(unmapped, region(100)).unwrap();
        memory.register(Iova(unmapped.0 + 100), region(page - 100)).unwrap();
        let refused = memory.map_contiguous(start, bytes).err();
        assert_eq!(
            refused,
            Some(DataTransferError::Scattered { start, bytes }),
            "parts of a page cannot be mapped"
        );
        assert!(memory.map_contiguous(Iova(u64::MAX - 10), 100).is_err());
    }
}
