//! The progress of a store of a value with extents.
//!
//! Input: extents that are opened, pages that are filled. Output: what is left. Invariant: pages are filled in order.

use crate::log::extent_list::Extent;
use crate::log::extent_writes::ExtentWriter;
use crate::media::geometry::PAGES_PER_BLOCK;

/// A store that fills extents.
#[derive(Debug)]
pub(crate) struct ExtentStore {
    pub(super) writer: ExtentWriter,
    /// Extents that the value takes.
    pub(super) count: usize,
    /// Those that are open or full.
    pub(super) extents: Vec<Extent>,
    /// Pages that are filled.
    pub(super) pages: usize,
}

impl ExtentStore {
    /// Begins a store of so many extents.
    pub(super) fn new(writer: ExtentWriter, count: usize) -> Self {
        Self { writer, count, extents: Vec::new(), pages: 0 }
    }

    /// Returns true if the next page needs an extent that is not open.
    pub(super) fn lacks_extent(&self) -> bool {
        self.extents.len() < self.count && self.pages == self.extents.len() * PAGES_PER_BLOCK
    }
}
