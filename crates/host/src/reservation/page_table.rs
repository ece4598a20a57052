//! The table of claims: maps an address back to its pages, for callers that carry addresses only.
//!
//! Input: claims, and spans that are leaked for their address. Output: the span of a leaked address, once. Invariant:
//! the word of a claim's first page holds its length and its owner, every other word is 0; a claim's word reads `Raw`
//! exactly while its span is leaked, and the thread that takes it out of that state makes the one span anew.

use super::backing::PAGE_BYTES;
use super::page_span::PageSpan;
use super::{PAGES_MAX, PageRun};
use crate::sync::{AtomicU32, Ordering};
use crate::width::narrow;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// An error of adopting an address that was not leaked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdoptError {
    /// The address lies outside the reservation.
    #[error("the address is not of this memory: free it where it was allocated")]
    Outside,
    /// The address lies inside a claim, not at its start.
    #[error("the address points into a buffer: free it by the address at which it starts")]
    Interior,
    /// The address was freed already.
    #[error("the buffer at this address was freed before")]
    DoubleFree,
    /// The claim at the address was never leaked.
    #[error("the buffer at this address is owned by a value, not by its address: drop that value instead")]
    NotLeaked,
}

/// The owner of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimState {
    /// A value of this process.
    Owned,
    /// The holder of its address.
    Raw,
    /// A value again, after the holder of the address freed it.
    Adopted,
}

/// A claim that covers an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundClaim {
    /// Its pages.
    pub run: PageRun,
    /// Its owner.
    pub state: ClaimState,
}

const OWNED: u32 = 1;
const RAW: u32 = 2;
const ADOPTED: u32 = 3;
const STATE_BITS: u32 = 2;

/// The table of a reservation. A clone is another handle to the same one; every method can be called from any thread,
/// with no lock held.
#[derive(Clone)]
pub struct PageTable {
    table: Arc<ClaimWords>,
}

struct ClaimWords {
    start: NonNull<u8>,
    words: Box<[AtomicU32]>,
}

// SAFETY: the pointer is only the origin of address computations; what is made of it is a `PageSpan`, which is `Send`.
unsafe impl Send for ClaimWords {}
// SAFETY: as for Send, and the words are atomics.
unsafe impl Sync for ClaimWords {}

impl PageTable {
    /// Creates a table for `pages` pages from `start`, none of which is claimed.
    pub(super) fn new(start: NonNull<u8>, pages: u32) -> Self {
        assert!(pages <= PAGES_MAX, "a claim's length fits its word");
        Self { table: Arc::new(ClaimWords { start, words: zeroed(pages as usize) }) }
    }

    /// Returns the address of page 0.
    #[inline]
    pub(super) fn start(&self) -> NonNull<u8> {
        self.table.start
    }

    /// Stores a claim. The run is within the table and no other claim covers any of it.
    #[inline]
    pub(super) fn record_claim(&self, run: PageRun) {
        // Relaxed: only the thread that leaks the span publishes it, and it does so with a release.
        self.table.words[run.first as usize].store((run.pages << STATE_BITS) | OWNED, Ordering::Relaxed);
    }

    /// Erases a claim whose span has been taken back.
    ///
    /// # Panics
    /// The table has no such claim, or the span is leaked: there were two spans over its pages.
    #[inline]
    pub(super) fn erase_claim(&self, run: PageRun) {
        let word = &self.table.words[run.first as usize];
        let seen = word.load(Ordering::Relaxed);
        assert!(
            seen >> STATE_BITS == run.pages && claim_state(seen) != Some(ClaimState::Raw),
            "the span of {run:?} is released, and the table of claims has {seen:#x} for it"
        );
        word.store(0, Ordering::Relaxed);
    }

    /// Returns true if the address lies in the reservation.
    #[must_use]
    #[inline]
    pub fn contains(&self, address: *const u8) -> bool {
        self.offset(address).is_some()
    }

    /// Converts a span to its address. [`adopt`](Self::adopt) makes it a span again.
    ///
    /// # Panics
    /// The span is of another reservation.
    #[must_use]
    #[inline]
    pub fn leak(&self, span: PageSpan) -> NonNull<u8> {
        let start = span.start();
        let run = span.run();
        assert!(self.page_address(run.first) == start, "a span must be leaked by its own reservation");
        // Release, and acquire in `adopt`: what was written through this span is seen by the next one.
        self.table.words[run.first as usize].store((run.pages << STATE_BITS) | RAW, Ordering::Release);
        start
    }

    /// Returns the span that was leaked for this address.
    ///
    /// # Errors
    /// [`AdoptError`] for any other address. Of two callers with one address exactly one gets the span.
    #[inline]
    pub fn adopt(&self, address: *const u8) -> Result<PageSpan, AdoptError> {
        let offset = self.offset(address).ok_or(AdoptError::Outside)?;
        let page = offset / PAGE_BYTES;
        let word = &self.table.words[page];
        let seen = word.load(Ordering::Relaxed);
        if !offset.is_multiple_of(PAGE_BYTES) || claim_state(seen) != Some(ClaimState::Raw) {
            return Err(self.adopt_error(offset, seen));
        }
        let adopted = seen - RAW + ADOPTED;
        match word.compare_exchange(seen, adopted, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => {
                let run = PageRun { first: narrow(page), pages: seen >> STATE_BITS };
                // SAFETY: the word was `Raw`, so `leak` has consumed the one span over exactly this run, and the
                // exchange let only this caller take it out of that state. The claim still exists in the reservation,
                // which keeps its pages committed and, even when it is dropped, mapped.
                Ok(unsafe { PageSpan::new(self.page_address(run.first), run) })
            }
            Err(now) => Err(self.adopt_error(offset, now)),
        }
    }

    /// Returns the claim that covers an address, as of some moment during the call.
    #[must_use]
    pub fn find(&self, address: *const u8) -> Option<FoundClaim> {
        let page = self.offset(address)? / PAGE_BYTES;
        for first in (0..=page).rev() {
            let word = self.table.words[first].load(Ordering::Relaxed);
            if let Some(state) = claim_state(word) {
                let run = PageRun { first: narrow(first), pages: word >> STATE_BITS };
                return (page < run.end() as usize).then_some(FoundClaim { run, state });
            }
        }
        None
    }

    /// Returns the offset of an address in a run; `None` if it is outside.
    #[must_use]
    pub fn offset_in(&self, address: *const u8, run: PageRun) -> Option<usize> {
        let offset = self.offset(address)?.checked_sub(run.first as usize * PAGE_BYTES)?;
        (offset < run.bytes()).then_some(offset)
    }

    /// Returns the reason why the address at `offset`, whose page has this word, cannot be adopted.
    #[cold]
    fn adopt_error(&self, offset: usize, word: u32) -> AdoptError {
        match claim_state(word) {
            Some(_) if !offset.is_multiple_of(PAGE_BYTES) => AdoptError::Interior,
            Some(ClaimState::Owned) => AdoptError::NotLeaked,
            Some(_) => AdoptError::DoubleFree,
            None => {
                let address = self.table.start.as_ptr().wrapping_add(offset);
                self.find(address).map_or(AdoptError::DoubleFree, |_| AdoptError::Interior)
            }
        }
    }

    #[inline]
    fn offset(&self, address: *const u8) -> Option<usize> {
        let offset = address.addr().checked_sub(self.table.start.as_ptr().addr())?;
        (offset / PAGE_BYTES < self.table.words.len()).then_some(offset)
    }

    #[inline]
    pub(super) fn page_address(&self, page: u32) -> NonNull<u8> {
        let place = self.table.start.as_ptr().wrapping_add(page as usize * PAGE_BYTES);
        // A reservation does not wrap around the address space, so no address in it is null.
        NonNull::new(place).unwrap_or(self.table.start)
    }
}

#[inline]
fn claim_state(word: u32) -> Option<ClaimState> {
    match word & ((1 << STATE_BITS) - 1) {
        OWNED => Some(ClaimState::Owned),
        RAW => Some(ClaimState::Raw),
        ADOPTED => Some(ClaimState::Adopted),
        _ => None,
    }
}

/// Allocates `words` words of 0, whose memory is taken when they are first written.
#[cfg(not(loom))]
fn zeroed(words: usize) -> Box<[AtomicU32]> {
    let words = Box::<[AtomicU32]>::new_zeroed_slice(words);
    // SAFETY: an atomic of 32 bits has the representation of a `u32`, for which all bits 0 is a value.
    unsafe { words.assume_init() }
}

#[cfg(loom)]
fn zeroed(words: usize) -> Box<[AtomicU32]> {
    (0..words).map(|_| AtomicU32::new(0)).collect()
}

impl fmt::Debug for PageTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageTable({} pages)", self.table.words.len())
    }
}
