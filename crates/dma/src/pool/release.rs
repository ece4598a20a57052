//! The release path: from a buffer to the thread's cache or to its arena, where waiters find it.
//!
//! Input: spans. Output: free memory. Invariant: while a request waits, or once the pool is closed, nothing goes into a
//! cache; a thread that releases memory checks the wait queue afterwards.

use super::cache::{CacheClass, ThreadCache};
use super::charge::CapCharge;
use super::error::PoolError;
use super::state::{PoolState, WaitGrant, WaitRequest, locked};
use super::thread_caches::{try_cache, with_cache};
use crate::buffer::DeviceSegment;
use headwater_host::mapped_region::SpanSink;
use headwater_host::reservation::{PAGE_BYTES, PageSpan};
use headwater_host::sync::Ordering;
use std::fmt;
use std::ptr::NonNull;

/// The release target of a buffer: its pool and its arena.
#[derive(Clone, Copy)]
pub struct ReleaseTarget {
    state: &'static PoolState,
    /// The index of the arena, with [`OWN_CHUNK`] for a buffer that is a chunk by itself.
    arena: usize,
}

/// The bit of a release target whose span never enters a cache. No cache has such an arena, so the fast path of a release
/// needs no check for it.
pub(super) const OWN_CHUNK: usize = 1 << (usize::BITS - 1);

impl ReleaseTarget {
    pub(super) fn new(state: &'static PoolState, arena: usize) -> Self {
        Self { state, arena }
    }

    /// Returns the target of a buffer that is a chunk by itself.
    pub(super) fn of_own_chunk(self) -> Self {
        Self { arena: self.arena | OWN_CHUNK, ..self }
    }

    fn index(self) -> usize {
        self.arena & !OWN_CHUNK
    }

    pub(crate) fn arena(self) -> usize {
        self.arena
    }

    #[inline]
    pub(crate) fn release(self, span: PageSpan) {
        self.state.release(self.arena, span);
    }

    pub(crate) fn release_all(self, spans: Vec<PageSpan>) {
        if self.state.is_current_process() {
            self.state.release_spans(self.index(), spans);
        }
    }

    pub(crate) fn leak(self, span: PageSpan) -> NonNull<u8> {
        self.state.nodes[self.index()].table.leak(span)
    }

    pub(crate) fn quarantine(self, bytes: usize) {
        self.state.quarantined_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.state.quarantined_buffers.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn segment(self, span: &PageSpan, bytes: usize) -> DeviceSegment {
        let bindings = &self.state.nodes[self.index()].bindings;
        let (iova, slot) = (bindings.iova(span.first()), bindings.slot(span.first()));
        DeviceSegment { address: span.address(), bytes, iova, slot }
    }
}

impl SpanSink for ReleaseTarget {
    fn return_span(&self, span: PageSpan) {
        self.release(span);
    }
}

impl fmt::Debug for ReleaseTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReleaseTarget(arena {})", self.arena)
    }
}

impl PoolState {
    /// Releases a span: into the thread's cache, or into its arena.
    #[inline]
    pub(super) fn release(&'static self, arena: usize, span: PageSpan) {
        let mut span = Some(span);
        // A pool without caches has none here; spans that a forked child pushes into its copy of a cache are never
        // popped.
        try_cache(self, |cache| {
            if cache.arena() == arena
                && !self.wait_queue.pressure()
                && let Some(given) = span.take()
            {
                span = cache.push(given.pages(), given);
            }
        });
        if let Some(span) = span {
            self.release_slow(arena, span);
        }
    }

    #[cold]
    #[inline(never)]
    fn release_slow(&'static self, arena: usize, span: PageSpan) {
        if !self.is_current_process() {
            // A forked child of the process that owns the memory. Dropping the span does nothing.
            return;
        }
        let own_chunk = arena & OWN_CHUNK != 0;
        let arena = arena & !OWN_CHUNK;
        match CacheClass::exactly(span.pages()).filter(|_| self.caches_enabled && !own_chunk) {
            Some(class) => self.cache_span(arena, class, span),
            None => self.release_spans(arena, [span]),
        }
    }

    /// Keeps a span in the thread's cache, which may need more quota or must spill; else releases it into its arena.
    pub(super) fn cache_span(&'static self, arena: usize, class: CacheClass, span: PageSpan) {
        let mut spilled = Vec::new();
        let mut span = Some(span);
        let mut is_short = false;
        with_cache(self, |cache| {
            if cache.arena() != arena || self.wait_queue.pressure() {
                return;
            }
            if cache.room() < class.bytes() {
                self.raise_quota(cache, class.bytes());
            }
            is_short = cache.room() < class.bytes();
            if is_short && cache.bytes() > 0 {
                cache.spill(&mut spilled);
            }
            if let Some(given) = span.take() {
                span = cache.push(given.pages(), given);
            }
        });
        if span.is_some() || !spilled.is_empty() {
            self.release_spans(arena, spilled.into_iter().chain(span));
        }
        if is_short {
            self.level_caches();
        }
    }

    /// Raises the quota of a cache so that it has room for `bytes` bytes, if its share allows that.
    pub(super) fn raise_quota(&self, cache: &mut ThreadCache<PageSpan>, bytes: usize) {
        if cache.note_sharing() {
            self.quota.join();
        }
        cache.raise_quota(self.quota.take(self.cache_limit(), cache.quota(), bytes));
    }

    /// Releases spans into an arena, and serves waiters.
    pub(super) fn release_spans(&'static self, arena: usize, spans: impl IntoIterator<Item = PageSpan>) {
        self.release_without_serving(arena, spans);
        if self.wait_queue.pressure() {
            self.serve_after_release();
        }
    }

    pub(super) fn release_without_serving(&self, arena: usize, spans: impl IntoIterator<Item = PageSpan>) {
        let mut guard = locked(&self.nodes[arena].arena);
        if let Some(arena) = guard.as_mut() {
            spans.into_iter().for_each(|span| arena.defer_span(span));
            if !arena.unused.is_empty() {
                arena.retire_unused(&self.config, &self.budget);
            }
        }
    }

    #[cold]
    fn serve_after_release(&'static self) {
        self.serve_waiters();
        if self.is_closed() {
            self.release_memory();
        }
    }

    /// Serves the wait queue as far as memory allows.
    pub(super) fn serve_waiters(&'static self) {
        if self.wait_queue.waiting() == 0 {
            return;
        }
        self.wait_queue.serve(|request| {
            if self.is_closed() {
                return Some(Err(PoolError::Closed));
            }
            let granted = match request {
                WaitRequest::Memory(request) => self
                    .check_cap(request.bytes, request.pages as usize * PAGE_BYTES)
                    .and_then(|()| self.attempt(request).map(WaitGrant::Memory)),
                WaitRequest::Charge(tier, bytes) => self.check_cap(*bytes, *bytes).and_then(|()| {
                    let charge = CapCharge::try_take(self, *tier, *bytes);
                    charge.map(WaitGrant::Charge).ok_or(PoolError::WouldBlock { bytes: *bytes, waiting: 0 })
                }),
            };
            if matches!(granted, Err(PoolError::WouldBlock { .. })) {
                return None;
            }
            self.waited.fetch_add(u64::from(granted.is_ok()), Ordering::Relaxed);
            Some(granted)
        });
    }

    /// Checks that the cap can ever allow a request for `bytes` bytes that pins `pinned`.
    fn check_cap(&self, bytes: usize, pinned: usize) -> Result<(), PoolError> {
        let max = self.budget.request_max();
        if pinned > max { Err(PoolError::OverCap { bytes, max }) } else { Ok(()) }
    }
}
