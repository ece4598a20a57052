//! The shape of a cached device as pages, and the part of a request on one page.
//!
//! Input: offsets and lengths in bytes. Output: page numbers, and offsets in pages. Invariant: only the last page of a
//! device is short, and no part exceeds its end.

use crate::error::CacheError;
use headwater_host::width::to_usize;

/// The bytes of a page.
pub const PAGE_BYTES: usize = 4_096;
/// The bytes of a page, for offsets on a device.
pub(super) const PAGE: u64 = 4_096;
/// One more than the largest page number that an entry of the index can hold.
pub(super) const PAGES_MAX: u64 = (1 << 40) - 1;

/// The shape of a cached device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceShape {
    /// The length in bytes, a whole number of blocks. It need not be a whole number of pages.
    pub device_bytes: u64,
    /// The bytes of a logical block, a power of two up to the bytes of a page.
    pub block_bytes: u32,
}

impl DeviceShape {
    pub(super) fn check(self) -> Result<(), CacheError> {
        let block = u64::from(self.block_bytes);
        let fits = block.is_power_of_two() && block <= PAGE && self.device_bytes.is_multiple_of(block);
        if !fits || self.device_bytes == 0 || self.device_bytes.div_ceil(PAGE) > PAGES_MAX {
            let Self { device_bytes, block_bytes } = self;
            return Err(CacheError::Shape { device_bytes, block_bytes });
        }
        Ok(())
    }

    /// Returns the number of pages, including a short last one.
    pub(super) fn pages(self) -> u64 {
        self.device_bytes.div_ceil(PAGE)
    }

    /// Returns the bytes of a run of pages: whole pages, except at the end of the device.
    pub(super) fn run_bytes(self, page: u64, pages: usize) -> u64 {
        let end = (page + to_u64(pages)).saturating_mul(PAGE).min(self.device_bytes);
        end.saturating_sub(page * PAGE)
    }

    /// Returns the bytes of one page.
    pub(super) fn page_bytes(self, page: u64) -> usize {
        to_usize(self.run_bytes(page, 1))
    }

    /// Checks that a range lies on the device.
    ///
    /// # Errors
    /// [`CacheError::Range`] for bytes beyond the end.
    #[inline]
    pub(super) fn check_range(self, offset: u64, bytes: u64) -> Result<(), CacheError> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.device_bytes => Ok(()),
            _ => Err(CacheError::Range { offset, bytes, device_bytes: self.device_bytes }),
        }
    }

    /// Checks that a range is whole blocks.
    ///
    /// # Errors
    /// [`CacheError::Misaligned`] for a range that is not whole blocks.
    pub(super) fn check_blocks(self, offset: u64, bytes: u64) -> Result<(), CacheError> {
        let block = u64::from(self.block_bytes);
        if offset.is_multiple_of(block) && bytes.is_multiple_of(block) {
            return Ok(());
        }
        Err(CacheError::Misaligned { offset, bytes, block_bytes: self.block_bytes })
    }
}

/// The part of a request on one page.
#[derive(Clone, Copy, Debug)]
pub(super) struct PagePart {
    /// The start in the page.
    pub(super) page_offset: usize,
    /// The start in the request's bytes.
    pub(super) request_offset: usize,
    /// The length.
    pub(super) bytes: usize,
}

impl PagePart {
    /// Returns the part of `[offset, offset + bytes)` on a page of that range.
    #[inline]
    pub(super) fn of(page: u64, offset: u64, bytes: u64) -> Self {
        let begin = page * PAGE;
        let from = offset.max(begin);
        let to = (offset + bytes).min(begin + PAGE);
        Self {
            page_offset: to_usize(from - begin),
            request_offset: to_usize(from - offset),
            bytes: to_usize(to - from),
        }
    }
}

/// Returns the first page of a range, and the page after its last.
#[inline]
pub(super) fn pages_of(offset: u64, bytes: u64) -> (u64, u64) {
    (offset / PAGE, (offset + bytes).div_ceil(PAGE))
}

#[inline]
pub(super) fn to_u64(number: usize) -> u64 {
    number as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_page_is_shortened_to_the_device_length() {
        let shape = DeviceShape { device_bytes: 3 * PAGE + 512, block_bytes: 512 };
        shape.check().unwrap();
        assert_eq!((shape.pages(), shape.page_bytes(2), shape.page_bytes(3)), (4, 4_096, 512));
        assert_eq!(shape.run_bytes(1, 3), 2 * PAGE + 512);
        assert!(shape.check_range(3 * PAGE, 512).is_ok());
        assert!(shape.check_range(3 * PAGE, 513).is_err());
        assert!(shape.check_range(u64::MAX, 2).is_err());
    }

    #[test]
    fn parts_of_a_request_cover_it_exactly_once() {
        let (offset, bytes) = (1_000, 9_000);
        let (first, end) = pages_of(offset, bytes);
        let mut next = 0;
        for page in first..end {
            let part = PagePart::of(page, offset, bytes);
            assert_eq!(part.request_offset, next);
            assert_eq!(page * PAGE + to_u64(part.page_offset), offset + to_u64(part.request_offset));
            next += part.bytes;
        }
        assert_eq!(next, 9_000);
    }

    #[test]
    fn invalid_shapes_are_refused() {
        for (device_bytes, block_bytes) in [(0, 512), (1_000, 512), (8_192, 8_192), (4_096, 0), (u64::MAX, 1)]
        {
            assert!(DeviceShape { device_bytes, block_bytes }.check().is_err());
        }
    }
}
