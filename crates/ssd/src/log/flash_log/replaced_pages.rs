//! Device DRAM without the pages of replaced records.
//!
//! Input: a record that the index names no more, or a block of which nothing is needed. Output: its pages leave the cache, so
//! that their frames serve pages that are needed. Invariant: only the cache changes; a page that is looked at after all is
//! read again. A page that a reader or a program pins leaves when it is unpinned.

use super::FlashLog;
use crate::log::record::{RecordAddress, UNIT_BYTES};
use crate::media::Media;
use crate::media::geometry::{BlockId, PAGE_DATA_BYTES, PAGES_PER_BLOCK, PageAddress};
use crate::mutant::{Mutant, mutant};

impl<M: Media> FlashLog<M> {
    /// Drops the pages of a record that was replaced or removed from device DRAM, unless they hold something else that is
    /// needed: its accounts are changed already.
    #[inline]
    pub(crate) fn drop_replaced(&mut self, address: RecordAddress, units: u32) {
        if self.traits.addressable {
            return;
        }
        let PageAddress { block, page: first } = address.page();
        // What lies in the next block leaves with that one.
        let end = address.offset_in_block() + units as usize * UNIT_BYTES - 1;
        let last = (end / PAGE_DATA_BYTES).min(PAGES_PER_BLOCK - 1);
        for page in (first..).take(last + 1 - usize::from(first)) {
            self.drop_if_replaced(PageAddress::new(block, page));
        }
    }

    /// Drops a page of the log of which nothing is needed.
    #[inline]
    pub(super) fn drop_if_replaced(&mut self, page: PageAddress) {
        if self.blocks.get(page.block).is_of_log() && !self.blocks.needs_page(page.block, page.page.into()) {
            self.page_cache.drop_unpinned(page);
        }
    }

    /// Drops the pages of a block of which nothing is needed.
    pub(crate) fn drop_evacuated(&mut self, block: BlockId) {
        for page in (0..).take(PAGES_PER_BLOCK).filter(|_| !mutant(Mutant::ErasedPagesCached)) {
            self.page_cache.drop_unpinned(PageAddress::new(block, page));
        }
    }
}
