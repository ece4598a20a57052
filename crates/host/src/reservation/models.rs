//! Models of concurrent threads on one page table without a lock.

use super::PageRun;
use super::PageSpan;
use super::page_table::{AdoptError, PageTable};
use crate::sync::thread;
use std::ptr::NonNull;

const RUN: PageRun = PageRun { first: 1, pages: 2 };

/// Creates a table over memory that is never accessed, and its one span.
fn claimed() -> (PageTable, PageSpan) {
    let table = PageTable::new(NonNull::dangling(), 4);
    table.record_claim(RUN);
    // SAFETY: no code accesses the bytes of a span in these models, so none need be mapped.
    let span = unsafe { PageSpan::new(table.page_address(RUN.first), RUN) };
    (table, span)
}

#[test]
fn loom_exactly_one_of_two_concurrent_frees_gets_the_span() {
    loom::model(|| {
        let (table, span) = claimed();
        let address = table.leak(span).as_ptr() as usize;
        let other = table.clone();
        let concurrent = thread::spawn(move || other.adopt(address as *const u8).is_ok());
        let ours = table.adopt(address as *const u8);
        let theirs = concurrent.join().unwrap();
        assert!(ours.is_ok() != theirs);
        assert!(ours.map_or_else(|error| error == AdoptError::DoubleFree, |span| span.run() == RUN));
    });
}

#[test]
fn loom_adoption_concurrent_with_leak_gets_the_span_or_an_error() {
    loom::model(|| {
        let (table, span) = claimed();
        let address = span.address();
        let other = table.clone();
        let concurrent = thread::spawn(move || other.adopt(address as *const u8));
        let _ = table.leak(span);
        let theirs = concurrent.join().unwrap();
        let ours = table.adopt(address as *const u8);
        match theirs {
            Ok(_) => assert_eq!(ours.unwrap_err(), AdoptError::DoubleFree),
            Err(error) => {
                assert_eq!(error, AdoptError::NotLeaked);
                assert_eq!(ours.unwrap().run(), RUN);
            }
        }
    });
}
