//! Copies from one region to another.
//!
//! Input: a range of a region, and the place of the copy in another one. Output: the bytes, copied in one pass. Invariant: no
//! reference into either region exists; what a client writes during the copy arrives or does not.

use super::{OutOfRegion, SharedMemory};
use crate::copy::copy_untrusted;
use std::ops::Range;

/// Bytes on the stack between ranges that overlap.
const BOUNCE_BYTES: usize = 4_096;

impl SharedMemory {
    /// Copies a range of the region to `target`, from `at` on, without a copy in between. Ranges that overlap, as two handles to
    /// the same pages can name them, are copied piece by piece from the front.
    ///
    /// # Errors
    /// [`OutOfRegion`] for a range that does not lie inside; nothing was copied.
    pub fn copy_to(&self, range: Range<usize>, target: &Self, at: usize) -> Result<(), OutOfRegion> {
        let bytes = range.len();
        let source = self.checked_address(range.start, bytes)?;
        let place = target.checked_address(at, bytes)?;
        let (first, second) = (source.addr(), place.addr());
        if first < second + bytes && second < first + bytes {
            return self.copy_pieces(range, target, at);
        }
        // SAFETY: bounds: `checked_address` found that many bytes from `source` on in this mapping, and from `place` on in that
        // of `target`. Alignment: the copy needs none. Lifetime: the borrows keep both mappings. Aliasing: the ranges are apart,
        // as was just found, and no reference ever points into a mapping; concurrent accesses are what `copy_untrusted` is for.
        unsafe { copy_untrusted(place, source, bytes) };
        Ok(())
    }

    fn copy_pieces(&self, range: Range<usize>, target: &Self, at: usize) -> Result<(), OutOfRegion> {
        let mut bounce = [0; BOUNCE_BYTES];
        for from in range.clone().step_by(BOUNCE_BYTES) {
            let piece = &mut bounce[..BOUNCE_BYTES.min(range.end - from)];
            self.copy_in(from, piece)?;
            target.copy_out(at + (from - range.start), piece)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_between_regions_are_exact_at_every_alignment() {
        let (source, target) =
            (SharedMemory::anonymous(16_384).unwrap(), SharedMemory::anonymous(16_384).unwrap());
        let pattern: Vec<u8> = (0..=250).cycle().take(16_384).collect();
        source.copy_out(0, &pattern).unwrap();
        for (offset, at) in [(0, 0), (1, 7), (4_095, 4_096), (64, 63)] {
            for bytes in [0, 1, 63, 64, 4_096, 9_001] {
                target.copy_out(0, &[0xEE; 16_384]).unwrap();
                source.copy_to(offset..offset + bytes, &target, at).unwrap();
                let mut back = vec![0; 16_384];
                target.copy_in(0, &mut back).unwrap();
                assert_eq!(back[at..at + bytes], pattern[offset..offset + bytes]);
                assert!(back[..at].iter().chain(&back[at + bytes..]).all(|byte| *byte == 0xEE));
            }
        }
    }

    #[test]
    fn range_outside_either_region_is_refused_and_nothing_is_copied() {
        let (long, short) = (SharedMemory::anonymous(200).unwrap(), SharedMemory::anonymous(100).unwrap());
        long.copy_out(0, &[7; 200]).unwrap();
        let outside = |offset| Err(OutOfRegion { offset, bytes: 10, region_bytes: 100 });
        assert_eq!(long.copy_to(0..10, &short, 91), outside(91));
        assert_eq!(long.copy_to(0..10, &short, usize::MAX), outside(usize::MAX));
        assert_eq!(short.copy_to(95..105, &long, 0), outside(95));
        let mut back = [1; 100];
        short.copy_in(0, &mut back).unwrap();
        assert_eq!(back, [0; 100]);
    }

    #[test]
    fn ranges_of_one_region_that_overlap_are_copied_by_pieces() {
        let region = SharedMemory::anonymous(8_192).unwrap();
        let pattern: Vec<u8> = (0..=250).cycle().take(6_000).collect();
        region.copy_out(0, &pattern).unwrap();
        region.copy_to(0..6_000, &region.clone(), 100).unwrap();
        let mut back = [0; 8_192];
        region.copy_in(0, &mut back).unwrap();
        assert_eq!(back[..100], pattern[..100]);
        // A copy in one pass would read what it wrote 100 bytes before.
        assert_eq!(back[100..100 + BOUNCE_BYTES], pattern[..BOUNCE_BYTES]);
        assert!(back[6_100..].iter().all(|byte| *byte == 0));
    }
}
