//! The free runs of a buddy: every stretch of free pages that no used page divides, in address order.
//!
//! In: the words of a buddy. Out: [`PageRun`]s. Invariant: two runs never touch, and neighbouring blocks are one run
//! whatever their orders.

use super::leaf::LEAF_PAGES;
use super::{Buddy, PageRun, Words};

/// Iterates over the free runs. Regions without a free page are skipped by the summary, not looked at.
#[derive(Debug)]
pub struct FreeRuns<'a, W> {
    buddy: &'a Buddy<W>,
    /// The first page that has not been looked at.
    at: u32,
}

impl<'a, W: Words> FreeRuns<'a, W> {
    pub(super) fn new(buddy: &'a Buddy<W>) -> Self {
        Self { buddy, at: 0 }
    }

    /// The first free page at or behind `at`.
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

    /// The first page behind `start` that is not free.
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

impl<W: Words> Iterator for FreeRuns<'_, W> {
    type Item = PageRun;

    fn next(&mut self) -> Option<PageRun> {
        let first = self.start()?;
        let end = self.end(first);
        self.at = end;
        Some(PageRun { first, pages: end - first })
    }
}
