//! A fixed number of pages for PRP lists and SGL segments, allocated to commands in chains.
//!
//! Input: blocks. Output: [`PageChain`]s of pages, and the words in them. Invariant: a page is free or in exactly one
//! chain; [`take`](ListPages::take) and [`release`](ListPages::release) allocate no memory.

use super::memory::DmaBlock;
use crate::data_pointer::PageBytes;
use headwater_host::ring_memory::RingMemory;
use headwater_host::width::narrow;

/// The index of no page.
const NONE: u32 = u32::MAX;

/// The list pages of one queue.
#[derive(Debug)]
pub struct ListPages<M> {
    pages: Vec<ListPage<M>>,
    /// The first free page; `next` links the rest.
    free: u32,
    left: usize,
    page: PageBytes,
}

#[derive(Debug)]
struct ListPage<M> {
    words: M,
    /// Index of its first word.
    first: usize,
    address: u64,
    next: u32,
}

/// The list pages of a command, which must be given back.
#[derive(Debug)]
#[must_use = "pages that are not given back are lost"]
pub struct PageChain {
    first: u32,
}

impl PageChain {
    /// The empty chain.
    pub const NONE: Self = Self { first: NONE };

    /// Returns true if the chain holds no pages.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.first == NONE
    }
}

/// A page of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageIndex(u32);

impl<M: RingMemory + Clone> ListPages<M> {
    /// Divides a page-aligned block into whole pages.
    #[must_use]
    pub fn within(block: &DmaBlock<M>, page: PageBytes) -> Self {
        let page_words = page.words();
        let count = narrow(block.words.words() / page_words);
        let pages = (0..count).map(|index| ListPage {
            words: block.words.clone(),
            first: index as usize * page_words,
            address: block.address + u64::from(index) * u64::from(page.get()),
            next: if index + 1 == count { NONE } else { index + 1 },
        });
        let free = if count == 0 { NONE } else { 0 };
        Self { pages: pages.collect(), free, left: count as usize, page }
    }
}

impl<M: RingMemory> ListPages<M> {
    /// Returns the page size.
    #[must_use]
    pub fn page(&self) -> PageBytes {
        self.page
    }

    /// Returns the number of free pages.
    #[must_use]
    pub fn free_pages(&self) -> usize {
        self.left
    }

    /// Returns the number of all pages.
    #[must_use]
    pub fn total(&self) -> usize {
        self.pages.len()
    }

    /// Takes `count` pages, or none and returns `None` if fewer are free.
    pub(super) fn take(&mut self, count: usize) -> Option<PageChain> {
        if count > self.left {
            return None;
        }
        let mut chain = PageChain::NONE;
        for _ in 0..count {
            let index = self.free;
            let page = self.pages.get_mut(index as usize)?;
            self.free = std::mem::replace(&mut page.next, chain.first);
            chain.first = index;
        }
        self.left -= count;
        Some(chain)
    }

    /// Frees the pages of a chain.
    #[inline]
    pub fn release(&mut self, mut chain: PageChain) {
        while let Some(page) = self.pages.get_mut(chain.first as usize) {
            let next = std::mem::replace(&mut page.next, self.free);
            self.free = chain.first;
            chain.first = next;
            self.left += 1;
        }
    }

    /// Returns the first page of a chain.
    pub(super) fn first(&self, chain: &PageChain) -> Option<PageIndex> {
        (chain.first != NONE).then_some(PageIndex(chain.first))
    }

    /// Returns the next page of a chain.
    pub(super) fn next(&self, page: PageIndex) -> Option<PageIndex> {
        let next = self.pages[page.0 as usize].next;
        (next != NONE).then_some(PageIndex(next))
    }

    /// Returns the bus address of a page.
    pub(super) fn address(&self, page: PageIndex) -> u64 {
        self.pages[page.0 as usize].address
    }

    /// Stores a word of a page.
    #[inline]
    pub(super) fn store(&self, page: PageIndex, word: usize, value: u64) {
        let page = &self.pages[page.0 as usize];
        page.words.store_relaxed(page.first + word, value);
    }
}
