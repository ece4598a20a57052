//! The kinds of pages that back reserved addresses, and the order in which a caller wants them tried.
//!
//! Input: a caller's preference. Output: the kinds of pages to request from the kernel, in order. Invariant: an order
//! names at least one kind and each kind at most once.

use std::fmt;

/// The size of a page, the unit of reservations.
pub const PAGE_BYTES: usize = 4_096;

/// A kind of page, the largest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Backing {
    /// Pages of 1 GiB from the kernel's fixed pool.
    Huge1G,
    /// Pages of 2 MiB from the kernel's fixed pool.
    Huge2M,
    /// Ordinary memory that the kernel is advised to build of 2 MiB pages where it finds contiguous ones.
    Transparent,
    /// Pages of 4 KiB.
    Small,
}

impl Backing {
    /// Every kind, the largest first.
    pub const ALL: [Self; 4] = [Self::Huge1G, Self::Huge2M, Self::Transparent, Self::Small];

    /// Returns the pages of [`PAGE_BYTES`] in one page of this kind; a run must start on a multiple and be one.
    #[must_use]
    pub const fn granule_pages(self) -> u32 {
        match self {
            Self::Huge1G => 1 << 18,
            Self::Huge2M => 1 << 9,
            Self::Transparent | Self::Small => 1,
        }
    }

    /// Returns true if it comes from the kernel's fixed pool of huge pages.
    #[must_use]
    pub const fn is_pooled(self) -> bool {
        matches!(self, Self::Huge1G | Self::Huge2M)
    }
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Huge1G => "huge pages of 1 GiB",
            Self::Huge2M => "huge pages of 2 MiB",
            Self::Transparent => "transparent huge pages",
            Self::Small => "pages of 4 KiB",
        })
    }
}

/// A preference among kinds of pages: the order in which to try them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackingOrder {
    first: Backing,
    rest: [Option<Backing>; 3],
}

impl BackingOrder {
    /// 1 GiB, then 2 MiB, then transparent, then 4 KiB.
    pub const LARGEST: Self = Self {
        first: Backing::Huge1G,
        rest: [Some(Backing::Huge2M), Some(Backing::Transparent), Some(Backing::Small)],
    };
    /// 2 MiB, then transparent, then 4 KiB.
    pub const HUGE: Self =
        Self { first: Backing::Huge2M, rest: [Some(Backing::Transparent), Some(Backing::Small), None] };
    /// Transparent, then 4 KiB.
    pub const TRANSPARENT: Self =
        Self { first: Backing::Transparent, rest: [Some(Backing::Small), None, None] };

    /// Returns an order with this kind only.
    #[must_use]
    pub const fn only(backing: Backing) -> Self {
        Self { first: backing, rest: [None; 3] }
    }

    /// Appends another kind as the last resort. A kind already in the order stays where it is.
    #[must_use]
    pub fn or(mut self, backing: Backing) -> Self {
        if !self.kinds().any(|named| named == backing)
            && let Some(place) = self.rest.iter_mut().find(|place| place.is_none())
        {
            *place = Some(backing);
        }
        self
    }

    /// Returns the kinds, in order.
    pub fn kinds(&self) -> impl Iterator<Item = Backing> + use<> {
        std::iter::once(self.first).chain(self.rest.into_iter().flatten())
    }
}

impl Default for BackingOrder {
    /// Returns [`BackingOrder::HUGE`].
    fn default() -> Self {
        Self::HUGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_tried_once_in_the_order_given() {
        let order =
            BackingOrder::only(Backing::Small).or(Backing::Huge2M).or(Backing::Small).or(Backing::Huge1G);
        assert!(order.kinds().eq([Backing::Small, Backing::Huge2M, Backing::Huge1G]));
        assert!(BackingOrder::LARGEST.kinds().eq(Backing::ALL));
        assert!(BackingOrder::HUGE.or(Backing::Huge1G).kinds().count() == 4);
        assert!(BackingOrder::LARGEST.or(Backing::Small).kinds().eq(Backing::ALL));
    }
}
