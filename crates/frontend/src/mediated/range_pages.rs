//! Pages for validated Dataset Management ranges, which the controller reads and no client can write.
//!
//! Input: pages mapped for the controller. Output: one page for each list. Invariant: a page belongs to one command
//! until it is returned.

use headwater_dma::iova::{Iova, IovaRange};
use headwater_host::ring_memory::RingMemory;
use headwater_nvme::driver::DmaBlock;
use headwater_nvme::spec::nvm::DatasetRange;
use zerocopy::little_endian::U64;
use zerocopy::transmute;

/// Bytes of the longest list: 256 ranges.
pub(super) const PAGE_BYTES: usize = 4_096;
/// Maximum lists in flight.
pub(super) const PAGES: usize = 64;
/// Words of a page.
const PAGE_WORDS: usize = PAGE_BYTES / 8;

/// The pool of pages.
#[derive(Debug)]
pub(super) struct RangePages<M> {
    block: DmaBlock<M>,
    free: Vec<usize>,
}

/// A page that holds a list. It must be returned to its pool.
#[derive(Debug)]
#[must_use = "a page that is not returned to its pool is lost"]
pub struct RangePage(usize);

impl<M: RingMemory> RangePages<M> {
    /// Creates a pool of the pages in a block of [`PAGES`] times [`PAGE_BYTES`].
    pub(super) fn in_block(block: DmaBlock<M>) -> Self {
        let free = (0..(block.words.words() / PAGE_WORDS).min(PAGES)).collect();
        Self { block, free }
    }

    /// Writes a list, and returns its page and the controller's address of it; `None` when all pages are in use.
    pub(super) fn write_list(&mut self, ranges: &[DatasetRange]) -> Option<(RangePage, IovaRange)> {
        let bytes = u32::try_from(size_of_val(ranges)).ok().filter(|&bytes| bytes as usize <= PAGE_BYTES)?;
        let page = self.free.pop()?;
        for (at, range) in ranges.iter().enumerate() {
            let words: [U64; 2] = transmute!(*range);
            for (word, value) in words.into_iter().enumerate() {
                self.block.words.store_relaxed(page * PAGE_WORDS + at * 2 + word, value.get());
            }
        }
        let start = Iova(self.block.address + (page * PAGE_BYTES) as u64);
        Some((RangePage(page), IovaRange { start, bytes }))
    }

    pub(super) fn return_page(&mut self, page: RangePage) {
        assert!(!self.free.contains(&page.0), "page {} is returned and was free", page.0);
        self.free.push(page.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_host::ring_memory::HeapWords;

    #[test]
    fn lists_do_not_overlap_and_returned_pages_are_reused() {
        let words = HeapWords::zeroed(PAGES * PAGE_WORDS);
        let mut pages = RangePages::in_block(DmaBlock { words: words.clone(), address: 0x7000_0000 });
        let list =
            |start| vec![DatasetRange { start: U64::new(start), blocks: 3.into(), context: 0.into() }; 256];
        let held: Vec<_> =
            (0..PAGES as u64).map(|start| (start, pages.write_list(&list(start)).unwrap())).collect();
        assert!(pages.write_list(&list(0)).is_none());
        for (start, (page, run)) in held {
            assert_eq!(run.bytes, 4_096);
            let first = usize::try_from(run.start.0 - 0x7000_0000).unwrap() / 8;
            for range in 0..256 {
                assert_eq!(words.load_relaxed(first + range * 2), 3 << 32);
                assert_eq!(words.load_relaxed(first + range * 2 + 1), start);
            }
            pages.return_page(page);
        }
        assert!(pages.write_list(&list(0)).is_some());
    }
}
