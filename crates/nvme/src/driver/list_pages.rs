//! Pages for PRP lists and SGL segments: a fixed number of them, lent to commands in chains.
//!
//! In: blocks. Out: [`Chain`]s of pages, and the words in them. Invariant: a page is free or in exactly one chain; taking
//! and giving back allocate nothing.

use super::memory::Block;
use crate::data_pointer::PageBytes;
use headwater_host::ring_memory::RingMemory;

/// No page.
const NONE: u32 = u32::MAX;

/// The pages of one queue.
#[derive(Debug)]
pub struct ListPages<M> {
    pages: Vec<ListPage<M>>,
    /// The first free page; the others follow by `next`.
    free: u32,
    left: usize,
    page: PageBytes,
}

#[derive(Debug)]
struct ListPage<M> {
    words: M,
    /// Its first word.
    first: usize,
    address: u64,
    next: u32,
}

/// Pages that a command has. It must be given back.
#[derive(Debug)]
#[must_use = "pages that are not given back are lost"]
pub struct Chain {
    first: u32,
}

impl Chain {
    /// No pages at all.
    pub const NONE: Self = Self { first: NONE };

    /// Whether there are pages in it.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.first == NONE
    }
}

/// A page of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageIndex(u32);

impl<M: RingMemory + Clone> ListPages<M> {
    /// As many whole pages as lie in a block that starts on a page.
    #[must_use]
    pub fn within(block: &Block<M>, page: PageBytes) -> Self {
        let page_words = page.words();
        let count = u32::try_from(block.words.words() / page_words).unwrap_or(NONE - 1);
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
    /// How long a page is.
    #[must_use]
    pub fn page(&self) -> PageBytes {
        self.page
    }

    /// How many are free.
    #[must_use]
    pub fn left(&self) -> usize {
        self.left
    }

    /// How many there are.
    #[must_use]
    pub fn total(&self) -> usize {
        self.pages.len()
    }

    /// So many pages, or `None` if fewer are free; then none is taken.
    pub(super) fn take(&mut self, count: usize) -> Option<Chain> {
        if count > self.left {
            return None;
        }
        let mut chain = Chain::NONE;
        for _ in 0..count {
            let index = self.free;
            let page = self.pages.get_mut(index as usize)?;
            self.free = std::mem::replace(&mut page.next, chain.first);
            chain.first = index;
        }
        self.left -= count;
        Some(chain)
    }

    /// Takes the pages of a chain back.
    #[inline]
    pub fn give_back(&mut self, mut chain: Chain) {
        while let Some(page) = self.pages.get_mut(chain.first as usize) {
            let next = std::mem::replace(&mut page.next, self.free);
            self.free = chain.first;
            chain.first = next;
            self.left += 1;
        }
    }

    /// The first page of a chain.
    pub(super) fn first(&self, chain: &Chain) -> Option<PageIndex> {
        (chain.first != NONE).then_some(PageIndex(chain.first))
    }

    /// The page behind one.
    pub(super) fn next(&self, page: PageIndex) -> Option<PageIndex> {
        let next = self.pages[page.0 as usize].next;
        (next != NONE).then_some(PageIndex(next))
    }

    /// The controller's address of a page.
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
