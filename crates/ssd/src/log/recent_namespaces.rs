//! The namespaces of the last pages: what a page or a commit record says for pages in front of it that are lost.
//!
//! Input: the namespaces of each page, in order. Output: those of at least the last 64 pages. Invariant: the namespaces of
//! a page are named until 64 more pages followed.

use super::page::PAGES_NAMED;

/// The namespaces of the last pages, as bits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RecentNamespaces {
    /// Of the former group of 64 pages.
    former: u32,
    /// Of the pages behind it.
    current: u32,
    pages: u64,
    /// Of the pages since the last commit.
    commit: u32,
}

impl RecentNamespaces {
    /// Adds the namespaces of the next page.
    pub(crate) fn push(&mut self, namespaces: u32) {
        self.current |= namespaces;
        self.commit |= namespaces;
        self.pages += 1;
        if self.pages == PAGES_NAMED {
            self.former = std::mem::take(&mut self.current);
            self.pages = 0;
        }
    }

    /// Returns the namespaces of at least the last 64 pages.
    pub(crate) fn named(&self) -> u32 {
        self.former | self.current
    }

    /// Returns the namespaces of at least the last 64 pages and of all pages since the last commit, which ends here.
    pub(crate) fn take_commit(&mut self) -> u32 {
        self.named() | std::mem::take(&mut self.commit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_named_until_64_pages_followed() {
        let mut recent = RecentNamespaces::default();
        for at in 0..300_u32 {
            recent.push(1 << (at % 31));
            recent.push(1 << 31);
            for _ in 0..PAGES_NAMED - 1 {
                recent.push(0);
                assert!(recent.named() & 1 << 31 != 0, "page {at}");
            }
        }
        for _ in 0..2 * PAGES_NAMED {
            recent.push(0);
        }
        assert_eq!(recent.named(), 0);
        assert_ne!(recent.take_commit(), 0, "a commit names all of its pages");
        assert_eq!(recent.take_commit(), 0);
    }
}
