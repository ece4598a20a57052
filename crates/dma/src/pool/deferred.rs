//! Deferred coalescing: the last freed span of each class, not merged with its neighbours yet.
//!
//! Input: freed spans, requests for a class. Output: the same span, unchanged. Merging pages and splitting them again
//! costs more than everything else that an arena does for a request. Invariant: no span stays here that another request
//! could use: an arena that finds no free run, retires empty chunks or reads counters merges all of them first.

use super::cache::{CLASSES, CacheClass};
use headwater_host::reservation::PageSpan;

/// At most one deferred span per class.
#[derive(Debug)]
pub(super) struct DeferredSpans {
    spans: [Option<PageSpan>; CLASSES],
}

impl DeferredSpans {
    pub(super) fn new() -> Self {
        Self { spans: std::array::from_fn(|_| None) }
    }

    /// Takes the span of a class.
    #[inline]
    pub(super) fn take(&mut self, class: CacheClass) -> Option<PageSpan> {
        self.spans[class.index()].take()
    }

    /// Keeps a span of a class, and returns the one kept before.
    #[inline]
    pub(super) fn keep(&mut self, class: CacheClass, span: PageSpan) -> Option<PageSpan> {
        self.spans[class.index()].replace(span)
    }

    /// Takes any kept span, of any class.
    pub(super) fn pop(&mut self) -> Option<PageSpan> {
        self.spans.iter_mut().find_map(Option::take)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use headwater_host::reservation::{Backing, BackingOrder, PAGE_BYTES, PageRun, Reservation};

    #[test]
    fn each_class_keeps_the_last_freed_span() {
        let mut reservation = Reservation::new(16 * PAGE_BYTES).unwrap();
        reservation.commit(PageRun { first: 0, pages: 16 }, BackingOrder::only(Backing::Small)).unwrap();
        let mut claim = |first, pages| reservation.claim(PageRun { first, pages }).unwrap();
        let mut aside = DeferredSpans::new();
        let (two, four) = (CacheClass::exactly(2).unwrap(), CacheClass::exactly(4).unwrap());
        assert!(aside.keep(two, claim(0, 2)).is_none());
        assert_eq!(aside.keep(two, claim(2, 2)).unwrap().first(), 0);
        assert!(aside.keep(four, claim(4, 4)).is_none());
        assert_eq!(aside.take(two).unwrap().first(), 2);
        assert!(aside.take(two).is_none());
        assert_eq!(aside.pop().unwrap().first(), 4);
        assert!(aside.pop().is_none());
    }
}
