//! What stands behind reserved pages, and in which order a caller wants it tried.
//!
//! In: a caller's wish. Out: the kinds of pages to ask the kernel for, one after the other. Invariant: an order names at
//! least one kind and each kind at most once.

use std::fmt;

/// Bytes of a page, the unit of reservations.
pub const PAGE_BYTES: usize = 4_096;

/// Kinds of pages, the largest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Backing {
    /// Pages of 1 GiB out of the kernel's fixed pool.
    Huge1G,
    /// Pages of 2 MiB out of the kernel's fixed pool.
    Huge2M,
    /// Ordinary memory that the kernel is asked to build of 2 MiB pages, as far as it finds any in one piece.
    Transparent,
    /// Pages of 4 KiB.
    Small,
}

impl Backing {
    /// Every kind, the largest first.
    pub const ALL: [Self; 4] = [Self::Huge1G, Self::Huge2M, Self::Transparent, Self::Small];

    /// Pages of [`PAGE_BYTES`] that one page of this kind replaces; a run must start on a multiple and be one.
    #[must_use]
    pub const fn granule_pages(self) -> u32 {
        match self {
            Self::Huge1G => 1 << 18,
            Self::Huge2M => 1 << 9,
            Self::Transparent | Self::Small => 1,
        }
    }

    /// Whether it comes out of the kernel's fixed pool of huge pages.
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

/// Kinds of pages in the order in which they are to be tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    first: Backing,
    others: [Option<Backing>; 3],
}

impl Wish {
    /// 1 GiB, then 2 MiB, then transparent, then 4 KiB.
    pub const LARGEST: Self = Self {
        first: Backing::Huge1G,
        others: [Some(Backing::Huge2M), Some(Backing::Transparent), Some(Backing::Small)],
    };
    /// 2 MiB, then transparent, then 4 KiB.
    pub const HUGE: Self =
        Self { first: Backing::Huge2M, others: [Some(Backing::Transparent), Some(Backing::Small), None] };
    /// Transparent, then 4 KiB.
    pub const TRANSPARENT: Self =
        Self { first: Backing::Transparent, others: [Some(Backing::Small), None, None] };

    /// This kind or none.
    #[must_use]
    pub const fn only(backing: Backing) -> Self {
        Self { first: backing, others: [None; 3] }
    }

    /// The same wish, with another kind as its last resort. A kind that it names already stays where it is.
    #[must_use]
    pub fn or(mut self, backing: Backing) -> Self {
        if !self.order().any(|named| named == backing)
            && let Some(place) = self.others.iter_mut().find(|place| place.is_none())
        {
            *place = Some(backing);
        }
        self
    }

    /// The kinds, in order.
    pub fn order(&self) -> impl Iterator<Item = Backing> + use<> {
        std::iter::once(self.first).chain(self.others.into_iter().flatten())
    }
}

impl Default for Wish {
    /// [`Wish::HUGE`].
    fn default() -> Self {
        Self::HUGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_names_each_kind_once_in_the_order_it_was_made() {
        let wish = Wish::only(Backing::Small).or(Backing::Huge2M).or(Backing::Small).or(Backing::Huge1G);
        assert!(wish.order().eq([Backing::Small, Backing::Huge2M, Backing::Huge1G]));
        assert!(Wish::LARGEST.order().eq(Backing::ALL));
        assert!(Wish::HUGE.or(Backing::Huge1G).order().count() == 4);
        assert!(Wish::LARGEST.or(Backing::Small).order().eq(Backing::ALL));
    }
}
