//! A lock with one owner, who pays almost nothing, and strangers, who seldom come and pay for both.
//!
//! In: a value; its owner's visits and strangers' visits. Out: each visit alone with the value. Invariant: at most one
//! closure at a time has the value.
//!
//! The owner writes that it is inside and then reads whether it is wanted elsewhere. A stranger writes that it wants and
//! then reads whether the owner is inside. If neither may overtake its own write, at least one sees the other: that takes
//! a full fence on both sides, and a fence costs the owner more than everything else it does. So where the kernel has
//! `membarrier`, the stranger makes every other thread of the process pass a fence, and the owner has none of its own.
//!
//! # What this does not do
//! A stranger's visit from inside the owner's never ends: the owner is waited for by itself.

mod barrier;

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;

use crate::sync::{AtomicBool, Mutex, Ordering, UnsafeCell, thread};
use barrier::Barrier;
pub use barrier::BarrierRefused;
use std::fmt;
use std::sync::PoisonError;

/// A value with one owner at a time.
pub struct OwnerLock<T> {
    barrier: Barrier,
    /// The owner is inside. Written by the owner only.
    inside: AtomicBool,
    /// A stranger is inside, or waits for the owner to leave. Written under `strangers` only.
    wanted: AtomicBool,
    /// Somebody holds the [`Owner`].
    owned: AtomicBool,
    /// Whoever has this is alone but for the owner's quick way in.
    strangers: Mutex<()>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by one closure at a time, on whatever thread: that is sending it there and back, for which
// `T: Send` is enough. Everything else in the lock is made to be shared.
unsafe impl<T: Send> Sync for OwnerLock<T> {}

impl<T> OwnerLock<T> {
    /// A lock without an owner yet.
    pub fn new(value: T) -> Self {
        Self::with_barrier(value, Barrier::best())
    }

    fn with_barrier(value: T, barrier: Barrier) -> Self {
        Self {
            barrier,
            inside: AtomicBool::new(false),
            wanted: AtomicBool::new(false),
            owned: AtomicBool::new(false),
            strangers: Mutex::new(()),
            value: UnsafeCell::new(value),
        }
    }

    /// Makes the caller the owner, until it drops what it gets. `None` while somebody else is.
    pub fn own(&self) -> Option<Owner<'_, T>> {
        // Acquire, and release in the owner's drop: a new owner sees all that the last one did.
        let taken = self.owned.swap(true, Ordering::AcqRel);
        (!taken).then_some(Owner { lock: self })
    }

    /// Visits the value as a stranger: waits for other strangers and for the owner to be out, which is as long as their
    /// visits take.
    ///
    /// # Errors
    /// The kernel has begun to refuse the fence it gave before: nobody but the owner can visit any more.
    pub fn visit<R>(&self, look: impl FnOnce(&mut T) -> R) -> Result<R, BarrierRefused> {
        let _alone = self.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        let _wanted = Raised::raise(&self.wanted);
        // Behind this fence, which the owner passes too, either the owner's flag is seen here or ours is seen there.
        self.barrier.heavy()?;
        // Acquire: what the owner did inside comes before what is done here.
        while self.inside.load(Ordering::Acquire) {
            thread::yield_now();
        }
        Ok(self.look(look))
    }

    #[inline]
    fn look<R>(&self, look: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: bounds, alignment and lifetime: the cell's own value, borrowed for the closure. Aliasing: the caller is
        // inside. Strangers, and an owner that was sent the long way, hold `strangers`. The owner's short way is taken
        // with `inside` set and `wanted` seen down; a stranger looks with `wanted` set and `inside` seen down; of the two
        // fences between, heavy against light, one side at least sees the other. The owner visits once at a time, since
        // that takes its one `Owner` by `&mut`.
        self.value.with_mut(|value| look(unsafe { &mut *value }))
    }
}

/// The right to the short way in. There is one at a time.
#[derive(Debug)]
pub struct Owner<'a, T> {
    lock: &'a OwnerLock<T>,
}

impl<T> Owner<'_, T> {
    /// Visits the value unless a stranger wants it now: no waiting, no atomic read-modify-write.
    #[inline]
    pub fn try_visit<R>(&mut self, look: impl FnOnce(&mut T) -> R) -> Option<R> {
        let lock = self.lock;
        let inside = Raised::raise(&lock.inside);
        lock.barrier.light();
        // Acquire: what a stranger did inside comes before what is done here.
        if lock.wanted.load(Ordering::Acquire) {
            return None;
        }
        let result = lock.look(look);
        drop(inside);
        Some(result)
    }

    /// Visits the value, behind strangers if there are any.
    #[inline]
    pub fn visit<R>(&mut self, look: impl FnOnce(&mut T) -> R) -> R {
        let mut look = Some(look);
        let short = self.try_visit(|value| look.take().map(|look| look(value)));
        match (short, look) {
            (Some(Some(result)), _) => result,
            (_, Some(look)) => self.wait_and_visit(look),
            (_, None) => unreachable!("a visit that did not take place has not used its closure"),
        }
    }

    #[cold]
    fn wait_and_visit<R>(&mut self, look: impl FnOnce(&mut T) -> R) -> R {
        let _alone = self.lock.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        self.lock.look(look)
    }
}

impl<T> Drop for Owner<'_, T> {
    fn drop(&mut self) {
        self.lock.owned.store(false, Ordering::Release);
    }
}

/// A flag that is up as long as this lives, whatever happens in between.
struct Raised<'a>(&'a AtomicBool);

impl<'a> Raised<'a> {
    #[inline]
    fn raise(flag: &'a AtomicBool) -> Self {
        // Relaxed: the fence behind it, light or heavy, is what orders it.
        flag.store(true, Ordering::Relaxed);
        Self(flag)
    }
}

impl Drop for Raised<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: whoever sees it down sees what was done while it was up.
        self.0.store(false, Ordering::Release);
    }
}

impl<T> fmt::Debug for OwnerLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnerLock({:?})", self.barrier)
    }
}
