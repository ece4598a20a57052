//! The pages of one block, together.
//!
//! In: pages in order, as they come from the medium. Out: the block's data as one run, and what each page says of itself.
//! Invariant: a page of an older life of the block is never taken for one of the youngest.

use crate::log::page::{NO_RECORD, PageSpare};
use crate::media::geometry::{BlockId, PAGE_DATA_BYTES, PAGES_PER_BLOCK, PageAddress};

/// A block's pages, gathered until all have come.
pub(super) struct BlockPages {
    pub(super) block: BlockId,
    pub(super) data: Vec<u8>,
    pub(super) programmed: u8,
    spares: Vec<Option<PageSpare>>,
}

impl BlockPages {
    pub(super) fn new(block: BlockId) -> Self {
        Self {
            block,
            data: Vec::with_capacity(PAGES_PER_BLOCK * PAGE_DATA_BYTES),
            programmed: 0,
            spares: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, page: PageAddress, bytes: Option<&[u8]>) {
        match bytes {
            Some(bytes) => {
                self.data.extend_from_slice(&bytes[..PAGE_DATA_BYTES]);
                self.spares.push(PageSpare::decode(bytes, page.page));
                self.programmed = page.page + 1;
            }
            None => {
                self.data.resize(self.data.len() + PAGE_DATA_BYTES, 0);
                self.spares.push(None);
            }
        }
    }

    pub(super) fn is_whole(&self) -> bool {
        self.spares.len() == PAGES_PER_BLOCK
    }

    /// Whether some page before the last programmed one is not a page of this life.
    pub(super) fn is_holed(&self, life: &PageSpare) -> bool {
        (0..usize::from(self.programmed)).any(|number| self.spare(number, life).is_none())
    }

    /// The life of the block that its pages belong to: a page of an older life is not part of it.
    pub(super) fn life(&self) -> Option<PageSpare> {
        self.spares.iter().flatten().copied().max_by_key(|spare| spare.order)
    }

    /// What a page says of itself, if it is one of this life.
    pub(super) fn spare(&self, number: usize, life: &PageSpare) -> Option<PageSpare> {
        self.spares.get(number).copied().flatten().filter(|spare| spare.order == life.order)
    }

    /// Whether the pages of this life say that a record ends at this offset of the block: another starts there, or the
    /// page was sealed there.
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
