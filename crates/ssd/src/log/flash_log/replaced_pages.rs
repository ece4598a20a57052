//! Device DRAM without the pages of replaced records.
//!
//! Input: a record that the index names no more. Output: its pages leave the cache, so that their frames serve pages that are
//! needed. Invariant: only the cache changes; a page that is looked at after all is read again.

use super::FlashLog;
use crate::log::record::{RecordAddress, UNIT_BYTES};
use crate::media::Media;
use crate::media::geometry::{PAGE_DATA_BYTES, PAGES_PER_BLOCK, PageAddress};

impl<M: Media> FlashLog<M> {
    /// Drops the pages of a record that was replaced or removed from device DRAM, unless they hold something else that is
    /// needed: its accounts are changed already.
    #[inline]
    pub(crate) fn drop_replaced(&mut self, address: RecordAddress, units: u32) {
        if self.traits.addressable {
            return;
        }
        let PageAddress { block, page: first } = address.page();
        // What lies in the next block stays.
        let end = address.offset_in_block() + units as usize * UNIT_BYTES - 1;
        let last = (end / PAGE_DATA_BYTES).min(PAGES_PER_BLOCK - 1);
        for page in (first..).take(last + 1 - usize::from(first)) {
            self.drop_if_replaced(PageAddress::new(block, page));
        }
    }

    /// Drops a page of which nothing is needed: nothing starts in it, nor in the page before, from where it might reach into
    /// it. A page that a read or a program pins stays; a program drops it at its end.
    #[inline]
    pub(super) fn drop_if_replaced(&mut self, page: PageAddress) {
        let number = usize::from(page.page);
        let needs = |number| self.blocks.needs_page(page.block, number);
        if !needs(number) && !number.checked_sub(1).is_some_and(needs) {
            self.page_cache.drop_unpinned(page);
        }
    }
}
