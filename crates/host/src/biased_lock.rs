//! A biased lock: nearly free for its owner thread, expensive for other threads.
//!
//! Input: a value; closures of the owner thread and of other threads. Output: each closure runs with exclusive access
//! to the value. Invariant: at most one closure at a time has the value.
//!
//! The owner thread stores `owner_inside` and then loads `other_waiting`. Another thread stores `other_waiting` and
//! then loads `owner_inside`. If neither load may overtake the store before it, at least one side sees the other: that
//! takes a full fence on both sides, and a fence costs the owner more than everything else it does. So where the kernel
//! has `membarrier`, the other thread makes every thread of the process pass a fence, and the owner executes none of
//! its own.
//!
//! # What this does not do
//! A call of [`BiasedLock::with_value`] from inside the owner's closure deadlocks: the owner waits for itself.

mod fence_pair;

#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, not(loom)))]
mod tests;

use crate::sync::{AtomicBool, Mutex, Ordering, UnsafeCell, thread};
use fence_pair::FencePair;
pub use fence_pair::MembarrierError;
use std::fmt;
use std::sync::PoisonError;

/// A value with one owner thread at a time.
pub struct BiasedLock<T> {
    barrier: FencePair,
    /// True while the owner's fast path is inside. Written by the owner only.
    owner_inside: AtomicBool,
    /// True while another thread is inside, or waits for the owner to leave. Written under `other_threads` only.
    other_waiting: AtomicBool,
    /// True while an [`LockOwner`] exists.
    has_owner: AtomicBool,
    /// Excludes every thread but the owner on its fast path.
    other_threads: Mutex<()>,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by one closure at a time, on any thread: that is sending it there and back, for which
// `T: Send` is enough. Every other field is built for sharing.
unsafe impl<T: Send> Sync for BiasedLock<T> {}

impl<T> BiasedLock<T> {
    /// Creates a lock that has no owner yet.
    pub fn new(value: T) -> Self {
        Self::with_barrier(value, FencePair::best())
    }

    fn with_barrier(value: T, barrier: FencePair) -> Self {
        Self {
            barrier,
            owner_inside: AtomicBool::new(false),
            other_waiting: AtomicBool::new(false),
            has_owner: AtomicBool::new(false),
            other_threads: Mutex::new(()),
            value: UnsafeCell::new(value),
        }
    }

    /// Makes the caller the owner until it drops the result; `None` while there is another owner.
    pub fn try_own(&self) -> Option<LockOwner<'_, T>> {
        // Acquire, and release in the owner's drop: a new owner sees all that the last one did.
        let taken = self.has_owner.swap(true, Ordering::AcqRel);
        // Made only if it was not taken: a value that is dropped here would end the ownership of another thread.
        (!taken).then(|| LockOwner { lock: self })
    }

    /// Runs a closure on the value from a thread that is not the owner. Blocks until other threads and the owner are
    /// out.
    ///
    /// # Errors
    /// The kernel now refuses the fence it allowed before: from now on only the owner can access the value.
    ///
    /// # Panics
    /// Never: the threads that are not the owner exclude each other.
    pub fn with_value<R>(&self, look: impl FnOnce(&mut T) -> R) -> Result<R, MembarrierError> {
        let _alone = self.other_threads.lock().unwrap_or_else(PoisonError::into_inner);
        // Relaxed: only a holder of `other_threads` stores it.
        let inside = self.other_waiting.load(Ordering::Relaxed);
        assert!(!inside, "another thread is inside while this one holds the lock of the other threads");
        let _wanted = RaisedFlag::raise(&self.other_waiting);
        // After this fence, which the owner passes too, either the owner's flag is seen here or ours is seen there.
        self.barrier.heavy()?;
        // Acquire: what the owner did inside happens before what is done here.
        while self.owner_inside.load(Ordering::Acquire) {
            thread::yield_now();
        }
        Ok(self.access(look))
    }

    #[inline]
    fn access<R>(&self, look: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: bounds, alignment and lifetime: the cell's own value, borrowed for the closure. Aliasing: the caller
        // is inside. Other threads, and an owner on the slow path, hold `other_threads`. The owner's fast path runs
        // with `owner_inside` set and `other_waiting` seen clear; another thread runs with `other_waiting` set and
        // `owner_inside` seen clear; of the two fences between, heavy against light, at least one side sees the other.
        // The owner runs one closure at a time, since that takes its only `LockOwner` by `&mut`.
        self.value.with_mut(|value| look(unsafe { &mut *value }))
    }
}

/// The right to the fast path. At most one exists.
#[derive(Debug)]
pub struct LockOwner<'a, T> {
    lock: &'a BiasedLock<T>,
}

impl<T> LockOwner<'_, T> {
    /// Runs a closure on the value unless another thread wants it now: no waiting, no atomic read-modify-write.
    #[inline]
    pub fn try_with_value<R>(&mut self, look: impl FnOnce(&mut T) -> R) -> Option<R> {
        let lock = self.lock;
        let inside = RaisedFlag::raise(&lock.owner_inside);
        lock.barrier.light();
        // Acquire: what another thread did inside happens before what is done here.
        if lock.other_waiting.load(Ordering::Acquire) {
            return None;
        }
        let result = lock.access(look);
        drop(inside);
        Some(result)
    }

    /// Runs a closure on the value, after other threads that wait for it.
    #[inline]
    pub fn with_value<R>(&mut self, look: impl FnOnce(&mut T) -> R) -> R {
        let mut look = Some(look);
        let short = self.try_with_value(|value| look.take().map(|look| look(value)));
        match (short, look) {
            (Some(Some(result)), _) => result,
            (_, Some(look)) => self.wait_with_value(look),
            (_, None) => unreachable!("a refused fast path has not used its closure"),
        }
    }

    #[cold]
    fn wait_with_value<R>(&mut self, look: impl FnOnce(&mut T) -> R) -> R {
        let _alone = self.lock.other_threads.lock().unwrap_or_else(PoisonError::into_inner);
        // Relaxed: only a holder of `other_threads` stores it.
        let inside = self.lock.other_waiting.load(Ordering::Relaxed);
        assert!(!inside, "another thread is inside while the owner holds the lock of the other threads");
        self.lock.access(look)
    }
}

impl<T> Drop for LockOwner<'_, T> {
    fn drop(&mut self) {
        let owned = self.lock.has_owner.swap(false, Ordering::Release);
        assert!(owned, "a lock had two owners");
    }
}

/// A flag that is set while this value lives, panics included.
struct RaisedFlag<'a>(&'a AtomicBool);

impl<'a> RaisedFlag<'a> {
    #[inline]
    fn raise(flag: &'a AtomicBool) -> Self {
        // Relaxed: the fence after it, light or heavy, orders it.
        flag.store(true, Ordering::Relaxed);
        Self(flag)
    }
}

impl Drop for RaisedFlag<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: a thread that sees it clear sees what was done while it was set.
        self.0.store(false, Ordering::Release);
    }
}

impl<T> fmt::Debug for BiasedLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BiasedLock({:?})", self.barrier)
    }
}
