//! A run of pages of a reservation.

use super::backing::PAGE_BYTES;

/// A run of consecutive pages, counted from the start of their reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageRun {
    /// The first page.
    pub first: u32,
    /// The number of pages.
    pub pages: u32,
}

impl PageRun {
    /// Returns the page after the last one; saturates for a run outside every reservation.
    #[must_use]
    #[inline]
    pub const fn end(self) -> u32 {
        self.first.saturating_add(self.pages)
    }

    /// Returns the length in bytes.
    #[must_use]
    #[inline]
    pub const fn bytes(self) -> usize {
        self.pages as usize * PAGE_BYTES
    }
}
