//! A set of pages, one bit each.
//!
//! In: runs of pages. Out: whether all of a run are in it. Invariant: a run that is empty or reaches beyond the set is
//! never held, and never changes it.

use super::PageRun;

/// Pages of one word.
const WORD_PAGES: u32 = u64::BITS;

/// Which pages of a reservation can be claimed.
pub(super) struct PageSet {
    words: Vec<u64>,
    pages: u32,
}

impl PageSet {
    /// An empty set that `pages` pages fit in. Its memory is taken when bits are first set.
    pub(super) fn empty(pages: u32) -> Self {
        Self { words: vec![0; pages.div_ceil(WORD_PAGES) as usize], pages }
    }

    /// Whether the run has a page and lies within the pages that fit.
    #[inline]
    pub(super) fn reaches(&self, run: PageRun) -> bool {
        run.pages > 0 && run.first < self.pages && run.pages <= self.pages - run.first
    }

    /// Whether every page of the run is in the set.
    #[inline]
    pub(super) fn holds(&self, run: PageRun) -> bool {
        self.reaches(run) && Parts::of(run).all(|(word, mask)| self.words[word] & mask == mask)
    }

    /// Whether no page of the run is in the set. The run is within reach.
    #[inline]
    pub(super) fn lacks(&self, run: PageRun) -> bool {
        self.reaches(run) && Parts::of(run).all(|(word, mask)| self.words[word] & mask == 0)
    }

    /// Puts every page of a run within reach into the set.
    #[inline]
    pub(super) fn insert(&mut self, run: PageRun) {
        if self.reaches(run) {
            Parts::of(run).for_each(|(word, mask)| self.words[word] |= mask);
        }
    }

    /// Takes every page of a run within reach out of the set.
    #[inline]
    pub(super) fn remove(&mut self, run: PageRun) {
        if self.reaches(run) {
            Parts::of(run).for_each(|(word, mask)| self.words[word] &= !mask);
        }
    }
}

/// The words that a run touches, each with the bits of the run in it.
struct Parts {
    at: u32,
    end: u32,
}

impl Parts {
    #[inline]
    fn of(run: PageRun) -> Self {
        Self { at: run.first, end: run.end() }
    }
}

impl Iterator for Parts {
    type Item = (usize, u64);

    #[inline]
    fn next(&mut self) -> Option<(usize, u64)> {
        if self.at >= self.end {
            return None;
        }
        let bit = self.at % WORD_PAGES;
        let count = (self.end - self.at).min(WORD_PAGES - bit);
        let word = (self.at / WORD_PAGES) as usize;
        self.at += count;
        // `count` is 1 to 64, so neither shift is by 64.
        Some((word, (u64::MAX >> (WORD_PAGES - count)) << bit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_at_every_place_of_a_word_are_held_exactly() {
        const PAGES: u32 = 200;
        for first in 0..PAGES {
            for pages in 1..=PAGES - first {
                let run = PageRun { first, pages };
                let mut set = PageSet::empty(PAGES);
                set.insert(run);
                let held = |page| set.holds(PageRun { first: page, pages: 1 });
                assert!((0..PAGES).all(|page| held(page) == (page >= first && page < first + pages)));
                assert!(set.holds(run) && !set.lacks(run));
                set.remove(run);
                assert!(set.lacks(PageRun { first: 0, pages: PAGES }));
            }
        }
    }

    #[test]
    fn runs_out_of_reach_are_never_held_and_change_nothing() {
        let mut set = PageSet::empty(100);
        set.insert(PageRun { first: 0, pages: 100 });
        for (first, pages) in [(0, 0), (100, 1), (99, 2), (u32::MAX, 1), (1, u32::MAX), (0, 101)] {
            let run = PageRun { first, pages };
            assert!(!set.holds(run) && !set.lacks(run), "{run:?}");
            set.remove(run);
        }
        assert!(set.holds(PageRun { first: 0, pages: 100 }));
    }
}
