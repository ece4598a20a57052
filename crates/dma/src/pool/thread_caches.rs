//! The caches of threads: each thread owns one for each pool it uses, and releases it when it ends.
//!
//! Input: the calling thread. Output: exclusive access to its cache during a visit. Invariant: a cache has one owner
//! thread at a time; other threads access it only through the biased lock's slow path, and code in a visit takes no
//! lock and does not re-enter this module.

use super::cache::ThreadCache;
use super::state::PoolState;
use headwater_host::biased_lock::{BiasedLock, LockOwner};
use headwater_host::reservation::PageSpan;
use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;

/// A slot with one thread's cache, on its own cache lines, which no other thread writes.
#[repr(align(128))]
#[derive(Debug)]
pub(super) struct ThreadSlot(pub(super) BiasedLock<ThreadCache<PageSpan>>);

/// The calling thread's cache of one pool.
struct ThreadEntry {
    state: &'static PoolState,
    slot: &'static ThreadSlot,
    owner: LockOwner<'static, ThreadCache<PageSpan>>,
}

impl ThreadEntry {
    fn new(state: &'static PoolState) -> Option<Box<Self>> {
        let slot = state.acquire_slot();
        Some(Box::new(Self { state, slot, owner: slot.0.try_own()? }))
    }

    /// Releases the cache: the thread ends, or the pool is closed.
    fn end(mut self) {
        let mut spans = Vec::new();
        let (arena, quota) = self.owner.with_value(|cache| {
            let arena = cache.arena();
            (arena, cache.drain_all(arena, &mut spans))
        });
        drop(self.owner);
        self.state.release_slot(self.slot, arena, quota, spans);
    }
}

/// The caches not used last. When the thread ends, this releases all of them, including the one used last.
#[expect(clippy::vec_box, reason = "an entry is moved by its address, so the last used cache is one word")]
struct OlderCaches(RefCell<Vec<Box<ThreadEntry>>>);

impl Drop for OlderCaches {
    fn drop(&mut self) {
        let last = LAST_CACHE.take().map(ManuallyDrop::into_inner);
        last.into_iter().chain(self.0.get_mut().drain(..)).for_each(|entry| entry.end());
    }
}

thread_local! {
    /// The cache used last; empty during a visit. It has no destructor, so an access needs no check for one: it is
    /// filled only after `OLDER_CACHES`, which has a destructor, was initialised, and the destructor of `OLDER_CACHES` empties it.
    static LAST_CACHE: Cell<Option<ManuallyDrop<Box<ThreadEntry>>>> = const { Cell::new(None) };
    static OLDER_CACHES: OlderCaches = const { OlderCaches(RefCell::new(Vec::new())) };
}

/// Visits the calling thread's cache of a pool if it is the one used last and no other thread is in it: the fast path.
#[inline]
pub(super) fn try_cache<R>(
    state: &'static PoolState,
    visit: impl FnOnce(&mut ThreadCache<PageSpan>) -> R,
) -> Option<R> {
    let mut entry = LAST_CACHE.take()?;
    let result = if std::ptr::eq(entry.state, state) { entry.owner.try_with_value(visit) } else { None };
    LAST_CACHE.set(Some(entry));
    result
}

/// Visits the calling thread's cache of a pool, which becomes the one used last. Returns `None` without a visit if the
/// thread cannot have a cache because it ends.
#[cold]
pub(super) fn with_cache<R>(
    state: &'static PoolState,
    visit: impl FnOnce(&mut ThreadCache<PageSpan>) -> R,
) -> Option<R> {
    let found = OLDER_CACHES.try_with(|entries| {
        let mut entries = entries.0.try_borrow_mut().ok()?;
        let last = LAST_CACHE.take().map(ManuallyDrop::into_inner);
        if let Some(entry) = last {
            if std::ptr::eq(entry.state, state) {
                return Some((Some(entry), Vec::new()));
            }
            entries.push(entry);
        }
        let at = entries.iter().position(|entry| std::ptr::eq(entry.state, state));
        let entry = at.map(|at| entries.swap_remove(at));
        Some((entry, entries.extract_if(.., |entry| entry.state.is_closed()).collect()))
    });
    let (entry, closed): (Option<Box<ThreadEntry>>, Vec<Box<ThreadEntry>>) = found.ok().flatten()?;
    closed.into_iter().for_each(|entry| entry.end());
    let mut entry = entry.or_else(|| ThreadEntry::new(state))?;
    let result = entry.owner.with_value(visit);
    LAST_CACHE.set(Some(ManuallyDrop::new(entry)));
    Some(result)
}
