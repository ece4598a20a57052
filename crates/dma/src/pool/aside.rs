//! What came back last: a span of each class that is not joined with its neighbours yet.
//!
//! In: spans that come back, requests for a class. Out: the same span, as it is. Joining pages and cutting them apart again
//! costs more than everything else that an arena does for a request. Invariant: nothing stays here that could serve
//! anybody else: an arena that finds no free run, looks for empty chunks or counts puts all of it back first.

use super::cache::{CLASSES, Class};
use headwater_host::reservation::Span;

/// One span of each class.
#[derive(Debug)]
pub(super) struct Aside {
    spans: [Option<Span>; CLASSES],
}

impl Aside {
    pub(super) fn new() -> Self {
        Self { spans: std::array::from_fn(|_| None) }
    }

    /// The span of a class.
    #[inline]
    pub(super) fn take(&mut self, class: Class) -> Option<Span> {
        self.spans[class.index()].take()
    }

    /// Keeps a span of a class, and gives up the one that was kept.
    #[inline]
    pub(super) fn keep(&mut self, class: Class, span: Span) -> Option<Span> {
        self.spans[class.index()].replace(span)
    }

    /// Everything, whatever the class.
    pub(super) fn pop(&mut self) -> Option<Span> {
        self.spans.iter_mut().find_map(Option::take)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use headwater_host::reservation::{Backing, PAGE_BYTES, PageRun, Reservation, Wish};

    #[test]
    fn a_class_keeps_what_came_last() {
        let mut reservation = Reservation::new(16 * PAGE_BYTES).unwrap();
        reservation.commit(PageRun { first: 0, pages: 16 }, Wish::only(Backing::Small)).unwrap();
        let mut claim = |first, pages| reservation.claim(PageRun { first, pages }).unwrap();
        let mut aside = Aside::new();
        let (two, four) = (Class::exactly(2).unwrap(), Class::exactly(4).unwrap());
        assert!(aside.keep(two, claim(0, 2)).is_none());
        assert_eq!(aside.keep(two, claim(2, 2)).unwrap().first(), 0);
        assert!(aside.keep(four, claim(4, 4)).is_none());
        assert_eq!(aside.take(two).unwrap().first(), 2);
        assert!(aside.take(two).is_none());
        assert_eq!(aside.pop().unwrap().first(), 4);
        assert!(aside.pop().is_none());
    }
}
