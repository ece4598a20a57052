//! Copies into shared memory past the cache, and into persistent shared memory.
//!
//! Input: an offset and bytes. Output: the bytes in the region, on their way out of the caches; a
//! [`drain`](crate::copy::persist::drain) of the same thread waits for them. Invariant: as for every copy of a
//! [`SharedMemory`], no reference into the region exists.

use super::{OutOfRegion, SharedMemory};
use crate::copy::StreamingCopies;
use crate::copy::persist::{fill_raw, flush_raw, store_raw, stream_raw};

impl SharedMemory {
    /// Copies from memory of this process to the region past the cache. The bytes have left the caches, and other threads
    /// see them, after a [`drain`](crate::copy::persist::drain).
    ///
    /// # Errors
    /// [`OutOfRegion`] for a range that does not lie inside; nothing was copied.
    pub fn copy_out_streaming(&self, offset: usize, from: &[u8]) -> Result<(), OutOfRegion> {
        let target = self.checked_address(offset, from.len())?;
        // SAFETY: bounds: `checked_address` found that many bytes. Alignment: the copy needs none. Lifetime: `self` keeps
        // the mapping. Aliasing: no reference ever points into the mapping, and the copy tolerates concurrent accesses.
        unsafe { stream_raw(target, from) };
        Ok(())
    }

    /// Copies from memory of this process to the region through the cache, and starts the write-back of its lines. The
    /// bytes have left the caches after a [`drain`](crate::copy::persist::drain).
    ///
    /// # Errors
    /// [`OutOfRegion`] for a range that does not lie inside; nothing was copied.
    pub fn copy_out_flushed(&self, offset: usize, from: &[u8]) -> Result<(), OutOfRegion> {
        let target = self.checked_address(offset, from.len())?;
        // SAFETY: as in `copy_out_streaming`.
        unsafe { store_raw(target, from) };
        // SAFETY: the range that `checked_address` found, which `self` keeps mapped.
        unsafe { flush_raw(target, from.len()) };
        Ok(())
    }

    /// Fills a range of the region past the cache, as [`copy_out_streaming`](Self::copy_out_streaming) copies.
    ///
    /// # Errors
    /// [`OutOfRegion`] for a range that does not lie inside; nothing was filled.
    pub fn fill_streaming(&self, offset: usize, bytes: usize, value: u8) -> Result<(), OutOfRegion> {
        let target = self.checked_address(offset, bytes)?;
        // SAFETY: as in `copy_out_streaming`.
        unsafe { fill_raw(target, bytes, value) };
        Ok(())
    }

    /// Copies from memory of this process to the region past the cache, as one of `copies`: other threads and processes see the
    /// bytes behind their fence.
    ///
    /// # Errors
    /// [`OutOfRegion`] for a range that does not lie inside; nothing was copied.
    pub fn copy_out_past_cache(
        &self,
        offset: usize,
        from: &[u8],
        copies: &mut StreamingCopies,
    ) -> Result<(), OutOfRegion> {
        let target = self.checked_address(offset, from.len())?;
        // SAFETY: as in `copy_out_streaming`.
        unsafe { copies.store_raw(target, from) };
        Ok(())
    }

    /// Fills a range of the region past the cache, as [`copy_out_past_cache`](Self::copy_out_past_cache) copies.
    ///
    /// # Errors
    /// [`OutOfRegion`] for a range that does not lie inside; nothing was filled.
    pub fn fill_past_cache(
        &self,
        offset: usize,
        bytes: usize,
        value: u8,
        copies: &mut StreamingCopies,
    ) -> Result<(), OutOfRegion> {
        let target = self.checked_address(offset, bytes)?;
        // SAFETY: as in `copy_out_streaming`.
        unsafe { copies.fill_raw(target, bytes, value) };
        Ok(())
    }

    /// Starts the write-back of every line that the range touches, for bytes that a DMA engine or other code stored there.
    ///
    /// # Errors
    /// [`OutOfRegion`] for a range that does not lie inside.
    pub fn flush_lines(&self, offset: usize, bytes: usize) -> Result<(), OutOfRegion> {
        let start = self.checked_address(offset, bytes)?;
        // SAFETY: the range that `checked_address` found, which `self` keeps mapped.
        unsafe { flush_raw(start, bytes) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::persist::drain;

    #[test]
    fn persistent_copies_are_exact_and_refuse_ranges_outside() {
        let region = SharedMemory::anonymous(8_192).unwrap();
        let pattern: Vec<u8> = (0..=u8::MAX).cycle().take(4_500).collect();
        for offset in [0, 1, 7, 63, 64, 3_000] {
            for bytes in [0, 1, 8, 63, 64, 65, 127, 128, 4_500] {
                let from = &pattern[..bytes];
                let mut back = vec![0; bytes];
                region.copy_out_streaming(offset, from).unwrap();
                region.copy_in(offset, &mut back).unwrap();
                assert_eq!(back, from, "{offset} {bytes}");
                let mut copies = StreamingCopies::default();
                region.fill_past_cache(offset, bytes, 8, &mut copies).unwrap();
                region.copy_in(offset, &mut back).unwrap();
                assert_eq!(back, vec![8; bytes], "{offset} {bytes}");
                region.copy_out_past_cache(offset, from, &mut copies).unwrap();
                region.copy_in(offset, &mut back).unwrap();
                assert_eq!(back, from, "{offset} {bytes}");
                region.fill_streaming(offset, bytes, 9).unwrap();
                region.copy_out_flushed(offset, from).unwrap();
                region.flush_lines(offset, bytes).unwrap();
                let _promise = drain();
                region.copy_in(offset, &mut back).unwrap();
                assert_eq!(back, from, "{offset} {bytes}");
            }
        }
        let refused = OutOfRegion { offset: 8_190, bytes: 3, region_bytes: 8_192 };
        assert_eq!(region.copy_out_streaming(8_190, b"abc"), Err(refused));
        assert_eq!(region.copy_out_flushed(8_190, b"abc"), Err(refused));
        assert_eq!(region.fill_streaming(8_190, 3, 1), Err(refused));
        let mut copies = StreamingCopies::default();
        assert_eq!(region.copy_out_past_cache(8_190, b"abc", &mut copies), Err(refused));
        assert_eq!(region.fill_past_cache(8_190, 3, 1, &mut copies), Err(refused));
        assert_eq!(region.flush_lines(8_190, 3), Err(refused));
    }
}
