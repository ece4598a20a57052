//! The caches of threads: each thread owns one for each pool it uses, and gives it up when it ends.
//!
//! In: the calling thread. Out: its cache, alone for a moment. Invariant: a cache belongs to one thread at a time; strangers
//! visit it through the lock's long way only, and what is done inside a visit takes no lock and does not come back here.

use super::cache::Cache;
use super::depot::Depot;
use headwater_host::owner_lock::{Owner, OwnerLock};
use headwater_host::reservation::Span;
use headwater_host::sync::{AtomicU64, Ordering};
use std::cell::RefCell;
use std::fmt;

/// A cache and what others may read of it while its owner goes on.
pub(super) struct Slot {
    pub(super) lock: OwnerLock<Cache<Span>>,
    bytes: AtomicU64,
    hits: AtomicU64,
}

impl Slot {
    pub(super) fn new(arena: usize) -> Self {
        Self { lock: OwnerLock::new(Cache::new(arena)), bytes: AtomicU64::new(0), hits: AtomicU64::new(0) }
    }

    /// Says what the cache holds now. Called inside a visit, so there is one writer at a time.
    #[inline]
    pub(super) fn publish(&self, cache: &Cache<Span>) {
        self.bytes.store(cache.bytes() as u64, Ordering::Relaxed);
        self.hits.store(cache.hits(), Ordering::Relaxed);
    }

    /// Bytes it held a moment ago.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Requests it has served.
    pub(super) fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot({} bytes)", self.bytes())
    }
}

/// A pool that this thread has a cache of.
struct Entry {
    depot: &'static Depot,
    slot: &'static Slot,
    /// Empty only while the thread ends.
    owner: Option<Owner<'static, Cache<Span>>>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(mut owner) = self.owner.take() {
            let mut spans = Vec::new();
            let slot = self.slot;
            let (arena, quota) = owner.visit(|cache| {
                let arena = cache.arena();
                let quota = cache.empty(arena, &mut spans);
                slot.publish(cache);
                (arena, quota)
            });
            drop(owner);
            self.depot.thread_ended(slot, arena, quota, spans);
        }
    }
}

thread_local! {
    /// The pool used last comes first.
    static ENTRIES: RefCell<Vec<Entry>> = const { RefCell::new(Vec::new()) };
}

/// Visits the calling thread's cache of a pool. `None`, without a visit, where the thread cannot have one: while it ends.
#[inline]
pub(super) fn with_cache<R>(
    depot: &'static Depot,
    visit: impl FnOnce(&mut Cache<Span>, &Slot) -> R,
) -> Option<R> {
    let visited = ENTRIES.try_with(|entries| {
        let mut entries = entries.try_borrow_mut().ok()?;
        if !entries.first().is_some_and(|entry| std::ptr::eq(entry.depot, depot)) {
            bring_to_front(&mut entries, depot)?;
        }
        let entry = entries.first_mut()?;
        let slot = entry.slot;
        Some(entry.owner.as_mut()?.visit(|cache| visit(cache, slot)))
    });
    visited.ok().flatten()
}

#[cold]
fn bring_to_front(entries: &mut Vec<Entry>, depot: &'static Depot) -> Option<()> {
    if let Some(at) = entries.iter().position(|entry| std::ptr::eq(entry.depot, depot)) {
        entries.swap(0, at);
        return Some(());
    }
    entries.retain(|entry| !entry.depot.is_closed());
    let slot = depot.slot_for_thread();
    let owner = Some(slot.lock.own()?);
    entries.insert(0, Entry { depot, slot, owner });
    Some(())
}
