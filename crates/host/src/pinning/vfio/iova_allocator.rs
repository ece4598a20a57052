//! The free I/O virtual addresses of a container.
//!
//! Input: the ranges that an IOMMU translates. Output: runs of them, allocated and freed. Invariant: an allocated run
//! lies in one of the ranges and overlaps no other allocated run; adjacent free runs are merged.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// The free runs: first address and last address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IovaAllocator {
    free: BTreeMap<u64, u64>,
}

impl IovaAllocator {
    /// Collects all whole pages of the ranges, except page 0: devices and drivers treat address 0 as no address.
    pub(super) fn from_ranges(ranges: &[RangeInclusive<u64>], page: u64) -> Self {
        let mut addresses = Self { free: BTreeMap::new() };
        for range in ranges {
            let first = (*range.start()).max(page).checked_next_multiple_of(page);
            // The end after the last whole page; the very last page of all addresses is left out, so that an end
            // exists.
            let end = range.end().saturating_add(1) / page * page;
            if let Some(first) = first.filter(|&first| first < end) {
                addresses.add(first, end - first);
            }
        }
        addresses
    }

    /// Allocates the lowest run of `bytes` bytes that starts `phase` bytes after a multiple of `align`.
    pub(super) fn allocate(&mut self, bytes: u64, align: u64, phase: u64) -> Option<u64> {
        let fits = |(&first, &last): (&u64, &u64)| {
            let start = first.saturating_sub(phase).checked_next_multiple_of(align)?;
            let start = start.checked_add(phase)?;
            let end = start.checked_add(bytes - 1)?;
            (end <= last).then_some((first, last, start, end))
        };
        let (first, last, start, end) = self.free.iter().find_map(fits)?;
        self.free.remove(&first);
        if first < start {
            self.free.insert(first, start - 1);
        }
        if end < last {
            self.free.insert(end + 1, last);
        }
        Some(start)
    }

    /// Frees a run that was allocated.
    ///
    /// # Panics
    /// A part of it is free: two mappings have shared its addresses.
    pub(super) fn free(&mut self, start: u64, bytes: u64) {
        let below = self.free.range(..=start.saturating_add(bytes - 1)).next_back();
        assert!(
            below.is_none_or(|(_, &last)| last < start),
            "{bytes} bytes from I/O virtual address {start:#x} are freed, and a part of them is free already"
        );
        self.add(start, bytes);
    }

    /// Adds a run. Any part that is free already stays free.
    fn add(&mut self, start: u64, bytes: u64) {
        let (mut start, mut last) = (start, start.saturating_add(bytes - 1));
        while let Some((&first, &end)) = self.free.range(..=last.saturating_add(1)).next_back() {
            if end.saturating_add(1) < start {
                break;
            }
            self.free.remove(&first);
            (start, last) = (start.min(first), last.max(end));
        }
        self.free.insert(start, last);
    }

    /// Returns the free bytes.
    #[cfg(test)]
    pub(super) fn free_bytes(&self) -> u64 {
        self.free.iter().map(|(first, last)| last - first + 1).sum()
    }

    /// Returns the number of free runs.
    #[cfg(test)]
    pub(super) fn runs(&self) -> usize {
        self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_pages_of_valid_ranges_except_page_zero_are_allocated() {
        let ranges = [0..=0x3fff, 0x8800..=0xb7ff, u64::MAX - 0x1fff..=u64::MAX, 0x5000..=0x5ffe];
        let mut addresses = IovaAllocator::from_ranges(&ranges, 0x1000);
        let mut given = Vec::new();
        while let Some(start) = addresses.allocate(0x1000, 0x1000, 0) {
            given.push(start);
        }
        assert_eq!(given, [0x1000, 0x2000, 0x3000, 0x9000, 0xa000, u64::MAX - 0x1fff]);
    }

    #[test]
    fn run_keeps_its_offset_within_a_large_page() {
        let mut addresses = IovaAllocator::from_ranges(&[0..=0xff_ffff], 0x1000);
        assert_eq!(addresses.allocate(0x40_0000, 0x20_0000, 0x3000), Some(0x3000));
        assert_eq!(addresses.allocate(0x1000, 0x20_0000, 0), Some(0x60_0000));
        assert_eq!(addresses.allocate(0x1000, 0x1000, 0), Some(0x1000));
        assert_eq!(addresses.allocate(0x100_0000, 0x1000, 0), None);
        addresses.free(0x60_0000, 0x1000);
        addresses.free(0x1000, 0x1000);
        addresses.free(0x3000, 0x40_0000);
        assert_eq!((addresses.runs(), addresses.free_bytes()), (1, 0xff_f000));
        assert_eq!(addresses.allocate(u64::MAX, 1 << 30, 5), None);
    }

    #[test]
    #[should_panic(expected = "8192 bytes from I/O virtual address 0x2000 are freed")]
    fn run_that_is_partly_free_is_not_freed_again() {
        let mut addresses = IovaAllocator::from_ranges(&[0..=0xff_ffff], 0x1000);
        assert_eq!(addresses.allocate(0x2000, 0x1000, 0), Some(0x1000));
        addresses.free(0x2000, 0x2000);
    }
}
