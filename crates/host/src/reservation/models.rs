//! Models of what threads do to one page table without a lock.

use super::PageRun;
use super::page_table::{AdoptError, PageTable};
use super::span::Span;
use crate::sync::thread;
use std::ptr::NonNull;

const RUN: PageRun = PageRun { first: 1, pages: 2 };

/// A table over memory that is never touched, and its one span.
fn claimed() -> (PageTable, Span) {
    let table = PageTable::new(NonNull::dangling(), 4);
    table.note(RUN);
    // SAFETY: nobody looks at the bytes of a span in these models, so none need be mapped.
    let span = unsafe { Span::over(table.place(RUN.first), RUN) };
    (table, span)
}

#[test]
fn loom_of_two_that_free_one_address_exactly_one_gets_the_span() {
    loom::model(|| {
        let (table, span) = claimed();
        let address = table.leak(span).as_ptr() as usize;
        let other = table.clone();
        let rival = thread::spawn(move || other.adopt(address as *const u8).is_ok());
        let ours = table.adopt(address as *const u8);
        let theirs = rival.join().unwrap();
        assert!(ours.is_ok() != theirs);
        assert!(ours.map_or_else(|error| error == AdoptError::DoubleFree, |span| span.run() == RUN));
    });
}

#[test]
fn loom_an_address_is_adopted_after_it_was_given_up_or_not_at_all() {
    loom::model(|| {
        let (table, span) = claimed();
        let address = span.address();
        let other = table.clone();
        let rival = thread::spawn(move || other.adopt(address as *const u8));
        let _ = table.leak(span);
        let theirs = rival.join().unwrap();
        let ours = table.adopt(address as *const u8);
        match theirs {
            Ok(_) => assert_eq!(ours.unwrap_err(), AdoptError::DoubleFree),
            Err(error) => {
                assert_eq!(error, AdoptError::NotRaw);
                assert_eq!(ours.unwrap().run(), RUN);
            }
        }
    });
}
