//! The position of the collector in its victim.
//!
//! Input: the pages of the victim with records that are needed, and the ends of pages. Output: the next page and offset to
//! process. Invariant: a record is processed once, and every record is unless the block turns out to hold nothing more.
//!
//! The pages that are counted as needed come first. When they are done, the block holds nothing more as a rule, and the rest
//! of it is never read.

use crate::ftl::prefetch::PREFETCH_PAGES;
use crate::media::geometry::{BlockId, PAGES_PER_BLOCK};

/// The pages that the collector processes now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VictimPass {
    /// Those counted as needed.
    Needed,
    /// The rest.
    Rest,
}

/// A block being collected, and the position reached in it.
#[derive(Clone, Debug)]
pub(in crate::ftl) struct VictimCursor {
    pub(in crate::ftl) block: BlockId,
    /// The page that is processed.
    pub(in crate::ftl) page: usize,
    /// The offset in the block of the next record; 0 at the start of a page.
    pub(in crate::ftl) offset: usize,
    /// True once the record that reaches into the block from the one before it was processed.
    pub(in crate::ftl) continued_done: bool,
    pass: VictimPass,
    /// The pages whose records are all processed, a bit each.
    done: u64,
    /// Pages that were left, each with the offset of its next record.
    left: Vec<(usize, usize)>,
    /// The first page that was not prefetched in this pass.
    unprefetched: usize,
}

const _: () = assert!(PAGES_PER_BLOCK <= 64, "a bit for each page");

impl VictimCursor {
    /// Begins with the pages of a block that hold what is needed.
    pub(in crate::ftl) const fn new(block: BlockId) -> Self {
        Self {
            block,
            page: 0,
            offset: 0,
            continued_done: false,
            pass: VictimPass::Needed,
            done: 0,
            left: Vec::new(),
            unprefetched: 0,
        }
    }

    /// Returns true while only pages that are needed are processed.
    pub(in crate::ftl) fn is_in_needed_pages(&self) -> bool {
        self.pass == VictimPass::Needed
    }

    /// Returns true if every record of a page was processed.
    pub(in crate::ftl) const fn is_done(&self, page: usize) -> bool {
        self.done >> page & 1 != 0
    }

    /// Goes to the next page that is not done, and in the first pass is needed. Returns false when none of the first `pages`
    /// pages is left.
    pub(in crate::ftl) fn find_page(&mut self, pages: usize, is_needed: impl Fn(usize) -> bool) -> bool {
        while self.page >= pages
            || self.is_done(self.page)
            || self.is_in_needed_pages() && !is_needed(self.page)
        {
            if self.page < pages {
                self.leave_page();
            } else if self.is_in_needed_pages() {
                (self.pass, self.unprefetched) = (VictimPass::Rest, 0);
                self.enter_page(0);
            } else {
                return false;
            }
        }
        true
    }

    fn enter_page(&mut self, page: usize) {
        let left = self.left.iter().position(|(left, _)| *left == page);
        self.offset = left.map_or(0, |at| self.left.swap_remove(at).1);
        self.page = page;
    }

    /// Leaves the rest of a page for the second pass, and goes on to the next one.
    fn leave_page(&mut self) {
        if self.offset > 0 {
            self.left.push((self.page, self.offset));
        }
        self.enter_page(self.page + 1);
    }

    /// Ends a page and goes on to the next one.
    pub(in crate::ftl) fn end_page(&mut self) {
        self.done |= 1 << self.page;
        self.enter_page(self.page + 1);
    }

    /// Returns true if the pages from this one on are to be prefetched now.
    pub(in crate::ftl) fn takes_prefetch(&mut self) -> bool {
        let is_due = self.offset == 0 && self.page >= self.unprefetched;
        if is_due {
            self.unprefetched = self.page + PREFETCH_PAGES;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Processes the records of random blocks. A page has four records, at its number times ten plus one to four.
    #[test]
    fn every_record_comes_once_and_needed_pages_come_first() {
        for seed in 0..2_000 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let pages = rng.usize(0..=PAGES_PER_BLOCK);
            let mut cursor = VictimCursor::new(BlockId(3));
            let (mut seen, mut is_first_pass, mut needed) = (Vec::new(), true, rng.u64(..));
            while cursor.find_page(pages, |page| needed >> page & 1 != 0) {
                assert!(
                    is_first_pass || !cursor.is_in_needed_pages(),
                    "seed {seed}: the first pass came back"
                );
                is_first_pass = cursor.is_in_needed_pages();
                assert!(
                    !is_first_pass || needed >> cursor.page & 1 != 0,
                    "seed {seed}: a page is not needed"
                );
                // A page, often this one, is needed no more, and some are again.
                needed &= !(1 << if rng.bool() { cursor.page } else { rng.usize(0..64) });
                needed |= 1 << rng.u32(0..64) & rng.u64(..);
                let next = cursor.offset.max(cursor.page * 10) + 1;
                seen.push(next);
                if next % 10 == 4 { cursor.end_page() } else { cursor.offset = next }
            }
            seen.sort_unstable();
            let all: Vec<usize> =
                (0..pages).flat_map(|page| (1..=4).map(move |record| page * 10 + record)).collect();
            assert_eq!(seen, all, "seed {seed}");
        }
    }
}
