//! Atomics, locks and threads: the standard library's, or loom's when the build is a model. Decided here once.
//!
//! In: `--cfg loom` or not. Out: the same names either way. Lock-free code in every room names these and never
//! `std::sync::atomic`, so that its models run the code that ships.

#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::{Condvar, Mutex, MutexGuard};

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(loom)]
pub use loom::{model::Builder as ModelBuilder, thread};
