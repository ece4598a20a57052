//! The caches of threads: each thread owns one for each pool it uses, and gives it up when it ends.
//!
//! In: the calling thread. Out: its cache, alone for a moment. Invariant: a cache belongs to one thread at a time; strangers
//! visit it through the lock's long way only, and what is done inside a visit takes no lock and does not come back here.

use super::cache::Cache;
use super::depot::Depot;
use headwater_host::owner_lock::{Owner, OwnerLock};
use headwater_host::reservation::Span;
use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;

/// Where a thread's cache lies: on cache lines of its own, which no other thread writes.
#[repr(align(128))]
#[derive(Debug)]
pub(super) struct Slot(pub(super) OwnerLock<Cache<Span>>);

/// A pool that this thread has a cache of.
struct Entry {
    depot: &'static Depot,
    slot: &'static Slot,
    owner: Owner<'static, Cache<Span>>,
}

impl Entry {
    fn new(depot: &'static Depot) -> Option<Box<Self>> {
        let slot = depot.slot_for_thread();
        Some(Box::new(Self { depot, slot, owner: slot.0.own()? }))
    }

    /// Gives the cache up: the thread ends, or the pool is closed.
    fn end(mut self) {
        let mut spans = Vec::new();
        let (arena, quota) = self.owner.visit(|cache| {
            let arena = cache.arena();
            (arena, cache.empty(arena, &mut spans))
        });
        drop(self.owner);
        self.depot.thread_ended(self.slot, arena, quota, spans);
    }
}

/// The caches that were not used last. When the thread ends it gives up all of them, the one used last included.
#[expect(
    clippy::vec_box,
    reason = "an entry goes to and fro by its address: a pool that is used last is one word"
)]
struct Others(RefCell<Vec<Box<Entry>>>);

impl Drop for Others {
    fn drop(&mut self) {
        let last = LAST.take().map(ManuallyDrop::into_inner);
        last.into_iter().chain(self.0.get_mut().drain(..)).for_each(|entry| entry.end());
    }
}

thread_local! {
    /// The cache used last; nothing while it is visited. It has no destructor, so reaching it costs no check of one: it is
    /// filled only after `OTHERS`, which has one, is there, and is emptied by it.
    static LAST: Cell<Option<ManuallyDrop<Box<Entry>>>> = const { Cell::new(None) };
    static OTHERS: Others = const { Others(RefCell::new(Vec::new())) };
}

/// Visits the calling thread's cache of a pool if it is the one used last and no stranger is in it: the short way.
#[inline]
pub(super) fn try_cache<R>(depot: &'static Depot, visit: impl FnOnce(&mut Cache<Span>) -> R) -> Option<R> {
    let mut entry = LAST.take()?;
    let result = if std::ptr::eq(entry.depot, depot) { entry.owner.try_visit(visit) } else { None };
    LAST.set(Some(entry));
    result
}

/// Visits the calling thread's cache of a pool, which from now on is the one used last. `None`, without a visit, where the
/// thread cannot have one: while it ends.
#[cold]
pub(super) fn with_cache<R>(depot: &'static Depot, visit: impl FnOnce(&mut Cache<Span>) -> R) -> Option<R> {
    let found = OTHERS.try_with(|others| {
        let mut others = others.0.try_borrow_mut().ok()?;
        let last = LAST.take().map(ManuallyDrop::into_inner);
        if let Some(entry) = last {
            if std::ptr::eq(entry.depot, depot) {
                return Some((Some(entry), Vec::new()));
            }
            others.push(entry);
        }
        let at = others.iter().position(|entry| std::ptr::eq(entry.depot, depot));
        let entry = at.map(|at| others.swap_remove(at));
        Some((entry, others.extract_if(.., |entry| entry.depot.is_closed()).collect()))
    });
    let (entry, closed): (Option<Box<Entry>>, Vec<Box<Entry>>) = found.ok().flatten()?;
    closed.into_iter().for_each(|entry| entry.end());
    let mut entry = entry.or_else(|| Entry::new(depot))?;
    let result = entry.owner.visit(visit);
    LAST.set(Some(ManuallyDrop::new(entry)));
    Some(result)
}
