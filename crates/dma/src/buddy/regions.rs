//! Which parts of the range have free pages: a count for each region of sixteen leaves, and the set of those above zero.
//!
//! In: pages that become free or used. Out: the next region worth looking at. Invariant: a region's count is the number of
//! its free pages, and it is in the set exactly while that is not zero.

use super::PageRun;
use super::bit_tree::BitTree;
use super::leaf::LEAF_PAGES;

/// Leaves of a region.
const REGION_LEAVES: u32 = 16;

/// Pages of a region.
const REGION_PAGES: u32 = REGION_LEAVES * LEAF_PAGES;

/// The counts.
#[derive(Clone, Debug)]
pub(super) struct Regions {
    free: Vec<u32>,
    inhabited: BitTree,
}

impl Regions {
    /// Regions for so many leaves, none of which has a free page.
    pub(super) fn new(leaves: u32) -> Self {
        let count = leaves.div_ceil(REGION_LEAVES) as usize;
        Self { free: vec![0; count], inhabited: BitTree::new(count) }
    }

    /// Pages of one leaf became free.
    #[inline]
    pub(super) fn grow(&mut self, leaf: u32, pages: u32) {
        self.grow_region((leaf / REGION_LEAVES) as usize, pages);
    }

    /// Pages of one leaf became used.
    #[inline]
    pub(super) fn shrink(&mut self, leaf: u32, pages: u32) {
        self.shrink_region((leaf / REGION_LEAVES) as usize, pages);
    }

    /// Counts more free pages in a region.
    #[inline]
    pub(super) fn grow_region(&mut self, region: usize, pages: u32) {
        if self.free[region] == 0 {
            self.inhabited.insert(region);
        }
        self.free[region] += pages;
    }

    /// Counts fewer.
    #[inline]
    pub(super) fn shrink_region(&mut self, region: usize, pages: u32) {
        self.free[region] -= pages;
        if self.free[region] == 0 {
            self.inhabited.remove(region);
        }
    }

    /// Calls `change` with every region that a run touches and how many of its pages lie there.
    #[inline]
    pub(super) fn each(&mut self, run: PageRun, change: impl Fn(&mut Self, usize, u32)) {
        let end = run.first + run.pages;
        let mut page = run.first;
        while page < end {
            let region = page / REGION_PAGES;
            let next = end.min((region + 1).saturating_mul(REGION_PAGES));
            change(self, region as usize, next - page);
            page = next;
        }
    }

    /// The first leaf from `leaf` on that lies in a region with free pages, and the first leaf behind that region.
    pub(super) fn next_from(&self, leaf: u32) -> Option<(u32, u32)> {
        let region = super::narrow(self.inhabited.next_from((leaf / REGION_LEAVES) as usize)?);
        Some((leaf.max(region * REGION_LEAVES), (region + 1).saturating_mul(REGION_LEAVES)))
    }
}
