//! The free runs of a buddy allocator: every maximal sequence of free pages, in address order.
//!
//! Input: the words of a buddy. Output: [`PageRun`]s. Invariant: two runs are never adjacent, and adjacent blocks are
//! one run regardless of their orders.

use super::leaf::LEAF_PAGES;
use super::{BitmapWords, BuddyAllocator, PageRun};

/// An iterator over the free runs. Skips regions without a free page by their summary.
#[derive(Debug)]
pub struct FreeRuns<'a, W> {
    buddy: &'a BuddyAllocator<W>,
    /// The first page not yet examined.
    at: u32,
}

impl<'a, W: BitmapWords> FreeRuns<'a, W> {
    pub(super) fn new(buddy: &'a BuddyAllocator<W>) -> Self {
        Self { buddy, at: 0 }
    }

    /// Returns the first free page at or after `at`.
    fn start(&self) -> Option<u32> {
        let (mut leaf, mut below) = (self.at / LEAF_PAGES, self.at % LEAF_PAGES);
        loop {
            let (from, end) = self.buddy.regions.next_from(leaf)?;
            if from != leaf {
                (leaf, below) = (from, 0);
            }
            while leaf < end.min(self.buddy.leaves()) {
                let rest = self.buddy.word(leaf) & (u64::MAX << below);
                if rest != 0 {
                    return Some(leaf * LEAF_PAGES + rest.trailing_zeros());
                }
                (leaf, below) = (leaf + 1, 0);
            }
            leaf = leaf.max(end);
        }
    }

    /// Returns the first page after `start` that is not free.
    fn end(&self, start: u32) -> u32 {
        let (mut leaf, mut below) = (start / LEAF_PAGES, start % LEAF_PAGES);
        while leaf < self.buddy.leaves() {
            let used = !self.buddy.word(leaf) & (u64::MAX << below);
            if used != 0 {
                return leaf * LEAF_PAGES + used.trailing_zeros();
            }
            (leaf, below) = (leaf + 1, 0);
        }
        self.buddy.pages()
    }
}

impl<W: BitmapWords> Iterator for FreeRuns<'_, W> {
    type Item = PageRun;

    fn next(&mut self) -> Option<PageRun> {
        let first = self.start()?;
        let end = self.end(first);
        self.at = end;
        Some(PageRun { first, pages: end - first })
    }
}
