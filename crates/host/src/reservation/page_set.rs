//! A set of pages, one bit each.
//!
//! Input: runs of pages. Output: true if all pages of a run are in it. Invariant: a run that is empty or reaches beyond
//! the set is never held, and never changes it.

use super::page_run::PageRun;

/// The pages of one word.
const WORD_PAGES: u32 = u64::BITS;

/// The pages of a reservation that can be claimed.
pub(super) struct PageSet {
    words: Vec<u64>,
    pages: u32,
}

impl PageSet {
    /// Creates an empty set of capacity `pages`. Its memory is allocated when bits are first set.
    pub(super) fn empty(pages: u32) -> Self {
        Self { words: vec![0; pages.div_ceil(WORD_PAGES) as usize], pages }
    }

    /// Returns true if the run has a page and lies within the capacity.
    #[inline]
    pub(super) fn is_in_range(&self, run: PageRun) -> bool {
        run.pages > 0 && run.first < self.pages && run.pages <= self.pages - run.first
    }

    /// Removes every page of the run from the set if all of them are in it. Otherwise returns `false` and changes
    /// nothing.
    #[inline]
    pub(super) fn take(&mut self, run: PageRun) -> bool {
        let parts = RunMasks::of(run);
        match self.words(run) {
            Some([only]) if *only & parts.only == parts.only => *only &= !parts.only,
            Some([head, middle @ .., tail]) => {
                // No early exit: the middle is as fast to read whole, and it is nearly always complete.
                let whole = middle.iter().fold(u64::MAX, |all, word| all & word) == u64::MAX;
                if !whole || *head & parts.head != parts.head || *tail & parts.tail != parts.tail {
                    return false;
                }
                *head &= !parts.head;
                middle.fill(0);
                *tail &= !parts.tail;
            }
            _ => return false,
        }
        true
    }

    /// Inserts every page of a run within reach into the set.
    #[inline]
    pub(super) fn insert(&mut self, run: PageRun) {
        let parts = RunMasks::of(run);
        match self.words(run) {
            Some([only]) => *only |= parts.only,
            Some([head, middle @ .., tail]) => {
                *head |= parts.head;
                middle.fill(u64::MAX);
                *tail |= parts.tail;
            }
            _ => {}
        }
    }

    /// Returns the words that hold a run within reach.
    #[inline]
    fn words(&mut self, run: PageRun) -> Option<&mut [u64]> {
        if !self.is_in_range(run) {
            return None;
        }
        self.words.get_mut((run.first / WORD_PAGES) as usize..=((run.end() - 1) / WORD_PAGES) as usize)
    }
}

/// The bits of a run in its first word, in its last, and in the one that is both.
struct RunMasks {
    head: u64,
    tail: u64,
    only: u64,
}

impl RunMasks {
    #[inline]
    fn of(run: PageRun) -> Self {
        let head = u64::MAX << (run.first % WORD_PAGES);
        let tail = u64::MAX >> (WORD_PAGES - 1 - run.end().wrapping_sub(1) % WORD_PAGES);
        Self { head, tail, only: head & tail }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: u32 = 200;

    fn set(runs: &[(u32, u32)]) -> PageSet {
        let mut set = PageSet::empty(PAGES);
        runs.iter().for_each(|&(first, pages)| set.insert(PageRun { first, pages }));
        set
    }

    #[test]
    fn runs_at_every_bit_position_are_taken_exactly() {
        for first in 0..PAGES {
            for pages in 1..=PAGES - first {
                let run = PageRun { first, pages };
                let mut beside = set(&[(0, PAGES)]);
                assert!(beside.take(run) && !beside.take(run));
                let mut only = set(&[(first, pages)]);
                for page in 0..PAGES {
                    let inside = page >= first && page < run.end();
                    let single = PageRun { first: page, pages: 1 };
                    assert_eq!((beside.take(single), only.take(single)), (!inside, inside));
                }
            }
        }
    }

    #[test]
    fn run_with_missing_page_is_not_taken_and_changes_nothing() {
        for lacking in 0..PAGES {
            let (before, behind) = ((0, lacking), (lacking + 1, PAGES - lacking - 1));
            let mut set = set(&[before, behind]);
            for first in 0..=lacking {
                assert!(!set.take(PageRun { first, pages: PAGES - first }));
                assert!(!set.take(PageRun { first, pages: lacking + 1 - first }));
            }
            let mut back = |(first, pages)| pages == 0 || set.take(PageRun { first, pages });
            assert!(back(before) && back(behind));
        }
    }

    #[test]
    fn out_of_range_runs_are_never_taken_and_change_nothing() {
        let mut set = set(&[(0, PAGES)]);
        for (first, pages) in
            [(0, 0), (PAGES, 1), (PAGES - 1, 2), (u32::MAX, 1), (1, u32::MAX), (0, PAGES + 1)]
        {
            let run = PageRun { first, pages };
            assert!(!set.take(run), "{run:?}");
            set.insert(run);
        }
        assert!(set.take(PageRun { first: 0, pages: PAGES }) && !set.take(PageRun { first: 0, pages: 1 }));
    }
}
