//! Deferred coalescing: a few freed spans of each class, not merged with their neighbours yet.
//!
//! Input: freed spans, requests for a class. Output: the same spans, unchanged. Merging pages and splitting them again
//! costs more than everything else that an arena does for a request, and all of it is done under the arena's lock.
//! Invariant: no span stays here that another request could use: an arena that finds no free run, retires empty chunks or
//! reads counters merges all of them first.

use super::cache::{CLASSES, CacheClass};
use headwater_host::reservation::PageSpan;

/// The most deferred spans of a class: what a cache gives up at once is usually what another one takes next.
/// More would be merged at once, under the lock, when another request needs the pages.
const SPANS_MAX: usize = 8;

/// A few deferred spans of each class.
#[derive(Debug)]
pub(super) struct DeferredSpans {
    spans: [Vec<PageSpan>; CLASSES],
}

impl DeferredSpans {
    pub(super) fn new() -> Self {
        Self { spans: std::array::from_fn(|_| Vec::with_capacity(SPANS_MAX)) }
    }

    /// Takes a span of a class, the last that was kept.
    #[inline]
    pub(super) fn take(&mut self, class: CacheClass) -> Option<PageSpan> {
        self.spans[class.index()].pop()
    }

    /// Keeps a span of a class, or returns it if there are [`SPANS_MAX`] of them.
    #[inline]
    pub(super) fn keep(&mut self, class: CacheClass, span: PageSpan) -> Option<PageSpan> {
        let kept = &mut self.spans[class.index()];
        if kept.len() == SPANS_MAX {
            return Some(span);
        }
        kept.push(span);
        None
    }

    /// Takes any kept span, of any class.
    pub(super) fn pop(&mut self) -> Option<PageSpan> {
        self.spans.iter_mut().find_map(Vec::pop)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use headwater_host::reservation::{Backing, BackingOrder, PAGE_BYTES, PageRun, Reservation};

    #[test]
    fn each_class_keeps_a_few_freed_spans_and_no_more_than_its_part() {
        let pages = u32::try_from(4 * SPANS_MAX).unwrap();
        let mut reservation = Reservation::new(pages as usize * PAGE_BYTES).unwrap();
        let all = PageRun { first: 0, pages };
        reservation.commit(all, BackingOrder::only(Backing::Small)).unwrap();
        let mut claim = |first, pages| reservation.claim(PageRun { first, pages }).unwrap();
        let mut aside = DeferredSpans::new();
        let (one, two) = (CacheClass::exactly(1).unwrap(), CacheClass::exactly(2).unwrap());
        for page in 0..u32::try_from(SPANS_MAX).unwrap() {
            assert!(aside.keep(one, claim(page, 1)).is_none());
        }
        let beyond = u32::try_from(SPANS_MAX).unwrap();
        assert_eq!(aside.keep(one, claim(beyond, 1)).unwrap().first(), beyond);
        assert!(aside.keep(two, claim(beyond + 2, 2)).is_none(), "another class has a part of its own");
        assert_eq!(aside.take(one).unwrap().first(), beyond - 1);
        assert_eq!(aside.take(two).unwrap().first(), beyond + 2);
        assert!(aside.take(two).is_none());
        let mut left = 0;
        while aside.pop().is_some() {
            left += 1;
        }
        assert_eq!(left, SPANS_MAX - 1);
    }
}
