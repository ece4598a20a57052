//! Counts of free pages for each region of sixteen leaves, and the set of regions whose count is not zero.
//!
//! Input: pages that become free or used. Output: the next region with free pages. Invariant: a region's count is the
//! number of its free pages, and the region is in the set exactly while that is not zero.

use super::PageRun;
use super::bit_tree::BitTree;
use super::leaf::LEAF_PAGES;

/// Leaves of a region.
const REGION_LEAVES: u32 = 16;

/// Pages of a region.
const REGION_PAGES: u32 = REGION_LEAVES * LEAF_PAGES;

/// Free-page counts of all regions.
#[derive(Clone, Debug)]
pub(super) struct RegionCounts {
    free: Vec<u32>,
    nonempty: BitTree,
}

impl RegionCounts {
    /// Creates regions for `leaves` leaves, none of which has a free page.
    pub(super) fn new(leaves: u32) -> Self {
        let count = leaves.div_ceil(REGION_LEAVES) as usize;
        Self { free: vec![0; count], nonempty: BitTree::new(count) }
    }

    /// Adds the freed pages of one leaf to its region's count.
    #[inline]
    pub(super) fn add_free(&mut self, leaf: u32, pages: u32) {
        self.add_free_in_region((leaf / REGION_LEAVES) as usize, pages);
    }

    /// Subtracts the used pages of one leaf from its region's count.
    #[inline]
    pub(super) fn remove_free(&mut self, leaf: u32, pages: u32) {
        self.remove_free_in_region((leaf / REGION_LEAVES) as usize, pages);
    }

    /// Adds to the free-page count of a region.
    #[inline]
    pub(super) fn add_free_in_region(&mut self, region: usize, pages: u32) {
        if self.free[region] == 0 {
            self.nonempty.insert(region);
        }
        self.free[region] += pages;
    }

    /// Subtracts from the free-page count of a region.
    #[inline]
    pub(super) fn remove_free_in_region(&mut self, region: usize, pages: u32) {
        let free = self.free[region];
        assert!(pages <= free, "{pages} pages are taken of region {region}, {free} are free");
        self.free[region] -= pages;
        if self.free[region] == 0 {
            self.nonempty.remove(region);
        }
    }

    /// Calls `change` with every region that a run touches and the number of the run's pages in it.
    #[inline]
    pub(super) fn for_each_region(&mut self, run: PageRun, change: impl Fn(&mut Self, usize, u32)) {
        let end = run.first + run.pages;
        let mut page = run.first;
        while page < end {
            let region = page / REGION_PAGES;
            let next = end.min((region + 1).saturating_mul(REGION_PAGES));
            change(self, region as usize, next - page);
            page = next;
        }
    }

    /// Returns the first leaf from `leaf` on in a region with free pages, and the first leaf after that region.
    pub(super) fn next_from(&self, leaf: u32) -> Option<(u32, u32)> {
        let region = super::to_page_index(self.nonempty.next_from((leaf / REGION_LEAVES) as usize)?);
        Some((leaf.max(region * REGION_LEAVES), (region + 1).saturating_mul(REGION_LEAVES)))
    }
}
