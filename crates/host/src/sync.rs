//! Atomics, locks and threads: the standard library's, or loom's under `--cfg loom`.
//!
//! Input: `--cfg loom` or not. Output: the same names in both builds. Lock-free code in every crate uses these names
//! and never `std::sync::atomic`, so that its models run the code that ships.

#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(loom))]
pub use std::thread;

#[cfg(loom)]
pub(crate) use loom::cell::UnsafeCell;
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(loom)]
pub use loom::{model::Builder as ModelBuilder, thread};

/// The standard library's cell under the interface of loom's, which detects two concurrent accesses.
#[cfg(not(loom))]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    #[inline]
    pub(crate) fn with_mut<R>(&self, look: impl FnOnce(*mut T) -> R) -> R {
        look(self.0.get())
    }
}
