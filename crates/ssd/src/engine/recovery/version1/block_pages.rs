//! The gathered pages of one block.
//!
//! Input: pages in order, as they are read from the medium. Output: the block's data as one run, and the page spares.
//! Invariant: a page from before the block's last erase is never taken for one written after it.

use super::super::page_reads::PageBytes;
use crate::log::page::NO_RECORD;
use crate::log::page_version1::PageSpare;
use crate::media::geometry::{BlockId, PAGE_DATA_BYTES, PAGES_PER_BLOCK, PageAddress};
use std::ops::Range;

/// The pages of one block, gathered until all are read.
pub(super) struct BlockPages {
    pub(super) block: BlockId,
    pub(super) data: Vec<u8>,
    pub(super) programmed: u8,
    first_blank: Option<u8>,
    spares: Vec<Option<PageSpare>>,
    /// Bit `n` is set if page `n` could not be read; its bytes in `data` have no meaning.
    unreadable: u64,
}

const _: () = assert!(PAGES_PER_BLOCK <= u64::BITS as usize);

impl BlockPages {
    pub(super) fn new(block: BlockId) -> Self {
        Self {
            block,
            data: Vec::with_capacity(PAGES_PER_BLOCK * PAGE_DATA_BYTES),
            programmed: 0,
            first_blank: None,
            spares: Vec::new(),
            unreadable: 0,
        }
    }

    pub(super) fn push(&mut self, page: PageAddress, bytes: PageBytes<'_>) {
        match bytes {
            PageBytes::Programmed(bytes) => {
                self.data.extend_from_slice(&bytes[..PAGE_DATA_BYTES]);
                self.spares.push(PageSpare::decode(bytes, page.page));
                self.programmed = page.page + 1;
            }
            PageBytes::Blank | PageBytes::Unreadable => {
                self.first_blank.get_or_insert(page.page);
                self.data.resize(self.data.len() + PAGE_DATA_BYTES, 0);
                self.spares.push(None);
            }
        }
        if bytes == PageBytes::Unreadable {
            self.unreadable |= 1 << page.page;
            self.programmed = page.page + 1;
        }
    }

    /// Returns true if every page with one of these bytes was read.
    pub(super) fn is_readable(&self, bytes: Range<usize>) -> bool {
        let mut pages =
            bytes.start / PAGE_DATA_BYTES..bytes.end.div_ceil(PAGE_DATA_BYTES).min(PAGES_PER_BLOCK);
        pages.all(|page| self.unreadable & 1 << page == 0)
    }

    pub(super) fn is_whole(&self) -> bool {
        self.spares.len() == PAGES_PER_BLOCK
    }

    /// Returns true if a page before the last programmed one does not belong to this life.
    pub(super) fn has_holes(&self, life: &PageSpare) -> bool {
        (0..usize::from(self.programmed)).any(|number| self.spare(number, life).is_none())
    }

    /// Returns the first blank page that lies before a programmed one.
    pub(super) fn blank_before_programmed(&self) -> Option<PageAddress> {
        let page = self.first_blank.filter(|page| *page < self.programmed)?;
        Some(PageAddress::new(self.block, page))
    }

    /// Returns the spare of the block's present life (the time since its last erase): the one with the highest order.
    pub(super) fn life(&self) -> Option<PageSpare> {
        self.spares.iter().flatten().copied().max_by_key(|spare| spare.order)
    }

    /// Returns the spare of a page, if the page belongs to this life.
    pub(super) fn spare(&self, number: usize, life: &PageSpare) -> Option<PageSpare> {
        self.spares.get(number).copied().flatten().filter(|spare| spare.order == life.order)
    }

    /// Returns true if, by the pages of this life, a record ends at this offset of the block: another one starts there,
    /// or the page was sealed there.
    pub(super) fn ends_at(&self, offset: usize, life: &PageSpare) -> bool {
        let starts = self.spare(offset / PAGE_DATA_BYTES, life).is_some_and(|spare| {
            spare.first != NO_RECORD && usize::from(spare.first) == offset % PAGE_DATA_BYTES
        });
        let last = offset.saturating_sub(1) / PAGE_DATA_BYTES;
        let sealed = self
            .spare(last, life)
            .is_some_and(|spare| last * PAGE_DATA_BYTES + usize::from(spare.used) == offset);
        starts || sealed
    }
}
