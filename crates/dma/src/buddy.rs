//! The buddy allocator: runs of pages from one range, split on allocation and merged on free.
//!
//! Input: a number of pages and an alignment. Output: [`PageRun`]s that never overlap. One bit per page records whether
//! it is free; these bits are the authoritative state and lie in [`BitmapWords`], whose storage the caller chooses. Blocks of
//! up to 64 pages are found inside a word by arithmetic; larger ones, up to [`BLOCK_PAGES_MAX`], in one bitmap per
//! order with summaries, built from the bits when a buddy is opened. Invariant: a free block is never next to its free
//! buddy, so the size of the largest block is known without a search, and a run is freed exactly once.
//!
//! One leaf of 64 pages is excluded from the sets: the open leaf. Small runs are taken from it and returned to it by
//! changing its word alone. It is put back into the sets when it cannot serve a request. Without it, a page that is
//! allocated and freed repeatedly would split and merge every order each time.
//!
//! # What this does not do
//! It accesses no memory but its bitmaps, never waits and takes no locks.

pub use headwater_host::reservation::PageRun;

pub use crate::buddy::bitmap::BitmapWords;
pub use crate::buddy::runs::FreeRuns;
use bit_tree::BitTree;
use leaf::{LEAF_ORDER, LEAF_PAGES, ones};
use region_counts::RegionCounts;

mod bit_tree;
mod bitmap;
mod leaf;
mod region_counts;
mod runs;
#[cfg(test)]
mod tests;

/// Order of the largest blocks.
const TOP_ORDER: u32 = 10;

/// Pages of the largest blocks. [`BuddyAllocator::allocate_across_blocks`] makes longer runs from several blocks.
pub const BLOCK_PAGES_MAX: u32 = 1 << TOP_ORDER;

/// The value of the field `open` when no leaf is open.
const NO_LEAF: u32 = u32::MAX;

/// The reason why a run cannot be freed or taken. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The run extends past the range, or has no pages.
    #[error(
        "{count} pages from page {first} are not within the range of {pages} pages: free only allocated runs"
    )]
    Outside {
        /// First page of the run.
        first: u32,
        /// Pages of the run.
        count: u32,
        /// Pages of the range.
        pages: u32,
    },
    /// Some page of the run is already free.
    #[error("page {page} is already free: free a run once")]
    DoubleFree {
        /// The lowest such page.
        page: u32,
    },
    /// Some page of the run is in use.
    #[error("page {page} is in use: take only free pages")]
    InUse {
        /// The lowest such page.
        page: u32,
    },
}

/// The buddy allocator over `pages` pages. All are in use until they are first freed.
#[derive(Clone, Debug)]
pub struct BuddyAllocator<W> {
    words: W,
    pages: u32,
    free_pages: u32,
    /// Sets by order: below order 6, leaves by the order of their largest block; from 6 on, free blocks by number.
    blocks: Vec<BitTree>,
    /// Bitmap of the orders whose set is not empty.
    orders: u64,
    /// Regions of the range that have free pages.
    regions: RegionCounts,
    /// The leaf that is in no set, or [`NO_LEAF`].
    open: u32,
}

impl BuddyAllocator<Vec<u64>> {
    /// Creates an allocator with its bits in ordinary memory and no free page.
    #[must_use]
    pub fn new(pages: u32) -> Self {
        Self::open(vec![0; pages.div_ceil(LEAF_PAGES) as usize], pages)
    }
}

impl<W: BitmapWords> BuddyAllocator<W> {
    /// Opens an allocator over existing bits, with the state they record. There must be a word for every 64 pages; bits
    /// past the last page count as used.
    #[must_use]
    pub fn open(words: W, pages: u32) -> Self {
        let leaves = pages.div_ceil(LEAF_PAGES);
        let top = (LEAF_ORDER + leaves.max(1).next_power_of_two().trailing_zeros()).min(TOP_ORDER);
        let set = |order: u32| BitTree::new(leaves.div_ceil(1 << order.saturating_sub(LEAF_ORDER)) as usize);
        let mut buddy = Self {
            words,
            pages,
            free_pages: 0,
            blocks: (0..=top).map(set).collect(),
            orders: 0,
            regions: RegionCounts::new(leaves),
            open: NO_LEAF,
        };
        for leaf in 0..leaves {
            let within = ones((pages - leaf * LEAF_PAGES).min(LEAF_PAGES));
            let word = buddy.word(leaf) & within;
            if word != 0 {
                buddy.words.store(leaf as usize, 0);
                buddy.regions.add_free(leaf, word.count_ones());
                buddy.free_pages += word.count_ones();
                buddy.add(leaf, word);
            }
        }
        buddy
    }

    /// Returns the number of pages, free or not.
    #[must_use]
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Returns the number of free pages.
    #[must_use]
    pub fn free_pages(&self) -> u32 {
        self.free_pages
    }

    /// Returns the pages of the largest free block, which [`allocate`](Self::allocate) can always provide; 0 if none is
    /// free.
    #[must_use]
    pub fn largest(&self) -> u32 {
        let settled = self.orders.checked_ilog2().map_or(0, |order| 1 << order);
        let open = if self.open == NO_LEAF { None } else { leaf::largest(self.word(self.open)) };
        let open = match open {
            Some(LEAF_ORDER) => 1 << self.merged_block(LEAF_ORDER, self.open).0,
            other => other.map_or(0, |order| 1 << order),
        };
        settled.max(open)
    }

    /// Returns the free runs in address order, with adjacent blocks merged.
    #[must_use]
    pub fn free_runs(&self) -> FreeRuns<'_, W> {
        FreeRuns::new(self)
    }

    /// Allocates a run of exactly `pages` pages from the smallest sufficient block, the lowest of these. The remaining
    /// pages of the block stay free.
    pub fn allocate(&mut self, pages: u32) -> Option<PageRun> {
        self.allocate_aligned(pages, 1)
    }

    /// Allocates a run as [`allocate`](Self::allocate) does, starting at a multiple of `align_pages`, a power of two.
    pub fn allocate_aligned(&mut self, pages: u32, align_pages: u32) -> Option<PageRun> {
        if pages == 0 || pages > self.free_pages {
            return None;
        }
        let order = pages.checked_next_power_of_two()?.max(align_pages).trailing_zeros();
        let first = if order < LEAF_ORDER {
            self.allocate_in_leaf(pages, order)?
        } else {
            // The pages of the open leaf may complete a larger block.
            self.allocate_leaves(pages, order)
                .or_else(|| self.close_open_leaf().then(|| self.allocate_leaves(pages, order))?)?
        };
        self.free_pages -= pages;
        Some(PageRun { first, pages })
    }

    /// Allocates a run of at most half a leaf, from the open leaf or from another one that is then opened.
    #[inline]
    fn allocate_in_leaf(&mut self, pages: u32, order: u32) -> Option<u32> {
        if self.open != NO_LEAF
            && let Some(at) = leaf::find(self.word(self.open), order)
        {
            return Some(self.cut(self.open, at, pages));
        }
        self.close_open_leaf();
        let found = self.lowest_order_from(order)?;
        let block = to_page_index(self.blocks[found as usize].first()?);
        self.remove(found, block);
        self.open = if found > LEAF_ORDER { self.halve(found, block, LEAF_ORDER) } else { block };
        let at = leaf::find(self.word(self.open), order)?;
        Some(self.cut(self.open, at, pages))
    }

    #[inline]
    fn cut(&mut self, leaf: u32, at: u32, pages: u32) -> u32 {
        let word = self.word(leaf);
        self.words.store(leaf as usize, word & !(ones(pages) << at));
        self.regions.remove_free(leaf, pages);
        leaf * LEAF_PAGES + at
    }

    /// Allocates a run of whole leaves.
    fn allocate_leaves(&mut self, pages: u32, order: u32) -> Option<u32> {
        let found = self.lowest_order_from(order)?;
        let block = to_page_index(self.blocks[found as usize].first()?);
        self.remove(found, block);
        Some(self.split(found, block, order, pages))
    }

    /// Returns the lowest order from `order` on that has a block.
    #[inline]
    fn lowest_order_from(&self, order: u32) -> Option<u32> {
        let orders = self.orders.checked_shr(order).filter(|&orders| orders != 0)?;
        Some(orders.trailing_zeros() + order)
    }

    /// Closes the open leaf: puts it into the sets. Returns true if there was one.
    fn close_open_leaf(&mut self) -> bool {
        let leaf = std::mem::replace(&mut self.open, NO_LEAF);
        if leaf == NO_LEAF {
            return false;
        }
        match leaf::largest(self.word(leaf)) {
            Some(LEAF_ORDER) => self.insert_merged(LEAF_ORDER, leaf),
            Some(order) => self.insert(order, leaf),
            None => {}
        }
        true
    }

    /// Allocates a run of exactly `pages` pages from the shortest sufficient free run, across blocks. Scans every free
    /// run: for use when [`allocate`](Self::allocate) finds nothing.
    pub fn allocate_across_blocks(&mut self, pages: u32, align_pages: u32) -> Option<PageRun> {
        // A run of n pages contains an aligned block of at least a quarter of n's next power of two.
        let least = (pages.checked_next_power_of_two()? / 4).min(BLOCK_PAGES_MAX);
        if pages == 0 || pages > self.free_pages || self.largest() < least {
            return None;
        }
        let fits = |run: PageRun| {
            let first = run.first.checked_next_multiple_of(align_pages)?;
            let end = first.checked_add(pages)?;
            (end <= run.first + run.pages).then_some((run.pages, first))
        };
        let (_, first) = self.free_runs().filter_map(fits).min()?;
        let run = PageRun { first, pages };
        self.take(run).ok().map(|()| run)
    }

    /// Takes exactly these pages, all of which must be free.
    ///
    /// # Errors
    /// Some page is in use or outside; nothing is taken.
    pub fn take(&mut self, run: PageRun) -> Result<(), RunError> {
        self.check(run)?;
        let last = (run.first + run.pages - 1) / LEAF_PAGES;
        if let Some(page) = self.lowest_wrong_page(run, |word| !word) {
            return Err(RunError::InUse { page });
        }
        self.close_open_leaf();
        self.regions.for_each_region(run, RegionCounts::remove_free_in_region);
        let mut leaf = run.first / LEAF_PAGES;
        while leaf <= last {
            let word = self.word(leaf);
            if word != u64::MAX {
                self.replace(leaf, word, word & !run_mask(run, leaf));
                leaf += 1;
                continue;
            }
            let (order, block) = self.containing(leaf);
            self.remove(order, block);
            let span = 1 << (order - LEAF_ORDER);
            let (low, high) = (block * span, block * span + span);
            let (from, to) = (leaf, high.min(last + 1));
            self.insert_leaves(low, from);
            self.insert_leaves(to, high);
            for leaf in from..to {
                self.words.store(leaf as usize, 0);
                self.add(leaf, !run_mask(run, leaf));
            }
            leaf = to;
        }
        self.free_pages -= run.pages;
        Ok(())
    }

    /// Frees pages. They need not be one allocated run; a part of one, or several adjacent runs, can be freed.
    ///
    /// # Errors
    /// Some page is already free or outside; nothing is freed.
    pub fn free(&mut self, run: PageRun) -> Result<(), RunError> {
        self.check(run)?;
        if let Some(page) = self.lowest_wrong_page(run, |word| word) {
            return Err(RunError::DoubleFree { page });
        }
        self.free_pages += run.pages;
        let leaf = run.first / LEAF_PAGES;
        let last = (run.first + run.pages - 1) / LEAF_PAGES;
        if leaf != last {
            self.regions.for_each_region(run, RegionCounts::add_free_in_region);
            self.free_leaves(run, leaf, last);
        } else {
            self.regions.add_free(leaf, run.pages);
            if leaf == self.open {
                self.words.store(leaf as usize, self.word(leaf) | run_mask(run, leaf));
            } else {
                self.add(leaf, run_mask(run, leaf));
            }
        }
        Ok(())
    }

    /// Frees a run that crosses a leaf boundary.
    fn free_leaves(&mut self, run: PageRun, mut leaf: u32, last: u32) {
        if (leaf..=last).contains(&self.open) {
            self.close_open_leaf();
        }
        if run_mask(run, leaf) != u64::MAX {
            self.add(leaf, run_mask(run, leaf));
            leaf += 1;
        }
        let whole = (run.first + run.pages) / LEAF_PAGES;
        if leaf < whole {
            for leaf in leaf..whole {
                self.words.store(leaf as usize, u64::MAX);
            }
            self.insert_leaves(leaf, whole);
            leaf = whole;
        }
        if leaf <= last {
            self.add(leaf, run_mask(run, leaf));
        }
    }

    fn check(&self, run: PageRun) -> Result<(), RunError> {
        let inside = run.pages > 0 && run.first.checked_add(run.pages).is_some_and(|end| end <= self.pages);
        let outside = RunError::Outside { first: run.first, count: run.pages, pages: self.pages };
        if inside { Ok(()) } else { Err(outside) }
    }

    /// Returns the lowest page of the run whose bit is set in the result of `wrong` for its word.
    fn lowest_wrong_page(&self, run: PageRun, wrong: impl Fn(u64) -> u64) -> Option<u32> {
        let last = (run.first + run.pages - 1) / LEAF_PAGES;
        (run.first / LEAF_PAGES..=last).find_map(|leaf| {
            let bits = wrong(self.word(leaf)) & run_mask(run, leaf);
            (bits != 0).then(|| leaf * LEAF_PAGES + bits.trailing_zeros())
        })
    }

    #[inline]
    fn word(&self, leaf: u32) -> u64 {
        self.words.load(leaf as usize)
    }

    fn leaves(&self) -> u32 {
        self.pages.div_ceil(LEAF_PAGES)
    }

    /// Takes `pages` pages from the start of a whole free block that is in no set, and puts the rest into the sets:
    /// halves down to `order`, then leaves, then pages.
    fn split(&mut self, found: u32, block: u32, order: u32, pages: u32) -> u32 {
        let block = self.halve(found, block, order);
        let span = 1 << (order - LEAF_ORDER);
        let leaf = block * span;
        self.regions.for_each_region(
            PageRun { first: leaf * LEAF_PAGES, pages },
            RegionCounts::remove_free_in_region,
        );
        let (whole, rest) = (pages / LEAF_PAGES, pages % LEAF_PAGES);
        for leaf in leaf..leaf + whole {
            self.words.store(leaf as usize, 0);
        }
        let mut kept = leaf + whole;
        if rest > 0 {
            let word = !ones(rest);
            self.words.store(kept as usize, word);
            self.insert(leaf::largest(word).unwrap_or(0), kept);
            kept += 1;
        }
        self.insert_leaves(kept, leaf + span);
        leaf * LEAF_PAGES
    }

    /// Halves a free block that is in no set until it is of `order`, keeps the lowest part and puts the rest into the
    /// sets.
    #[inline]
    fn halve(&mut self, mut found: u32, mut block: u32, order: u32) -> u32 {
        while found > order {
            (found, block) = (found - 1, block * 2);
            self.insert(found, block + 1);
        }
        block
    }

    /// Frees the pages of `mask` in one leaf, none of which is free.
    #[inline]
    fn add(&mut self, leaf: u32, mask: u64) {
        if mask == 0 {
            return;
        }
        let before = self.word(leaf);
        if before | mask != u64::MAX {
            return self.replace(leaf, before, before | mask);
        }
        if let Some(order) = leaf::largest(before) {
            self.remove(order, leaf);
        }
        self.words.store(leaf as usize, u64::MAX);
        self.insert_merged(LEAF_ORDER, leaf);
    }

    /// Changes the word of a leaf that is entirely free neither before nor after.
    #[inline]
    fn replace(&mut self, leaf: u32, before: u64, after: u64) {
        self.words.store(leaf as usize, after);
        let (old, new) = (leaf::largest(before), leaf::largest(after));
        if old == new {
            return;
        }
        if let Some(order) = old {
            self.remove(order, leaf);
        }
        if let Some(order) = new {
            self.insert(order, leaf);
        }
    }

    /// Inserts whole free leaves into the sets, as the largest blocks they form.
    fn insert_leaves(&mut self, mut from: u32, to: u32) {
        while from < to {
            let order = from.trailing_zeros().min((to - from).ilog2()).min(TOP_ORDER - LEAF_ORDER);
            self.insert_merged(LEAF_ORDER + order, from >> order);
            from += 1 << order;
        }
    }

    /// Inserts a free block into its set, merged with its buddy as long as that is free.
    #[inline]
    fn insert_merged(&mut self, order: u32, block: u32) {
        let (to, joined) = self.merged_block(order, block);
        for below in order..to {
            self.remove(below, block >> (below - order) ^ 1);
        }
        self.insert(to, joined);
    }

    /// Returns the order and number of the block that a free block forms with its free buddies.
    #[inline]
    fn merged_block(&self, mut order: u32, mut block: u32) -> (u32, u32) {
        while (order as usize) < self.blocks.len() - 1
            && self.blocks[order as usize].has((block ^ 1) as usize)
        {
            (order, block) = (order + 1, block / 2);
        }
        (order, block)
    }

    /// Returns the order and number of the free block that contains a whole free leaf.
    fn containing(&self, leaf: u32) -> (u32, u32) {
        let mut order = LEAF_ORDER;
        while !self.blocks[order as usize].has((leaf >> (order - LEAF_ORDER)) as usize) {
            order += 1;
        }
        (order, leaf >> (order - LEAF_ORDER))
    }

    #[inline]
    fn insert(&mut self, order: u32, block: u32) {
        self.blocks[order as usize].insert(block as usize);
        self.orders |= 1 << order;
    }

    #[inline]
    fn remove(&mut self, order: u32, block: u32) {
        let set = &mut self.blocks[order as usize];
        set.remove(block as usize);
        if set.is_empty() {
            self.orders &= !(1 << order);
        }
    }
}

/// Returns the pages of a run that lie in one leaf, as bits.
#[inline]
fn run_mask(run: PageRun, leaf: u32) -> u64 {
    let base = leaf * LEAF_PAGES;
    let low = run.first.max(base) - base;
    let high = (run.first + run.pages - base).min(LEAF_PAGES);
    ones(high - low) << low
}

/// Converts a member of a set to `u32`: sets are bounded by page numbers.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "members of a set are below the number of leaves, a u32")]
fn to_page_index(member: usize) -> u32 {
    member as u32
}
