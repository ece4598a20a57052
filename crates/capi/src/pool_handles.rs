//! The pools that C holds: numbers that look like pointers, and the pools behind them.
//!
//! Input: opened pools. Output: handles, and the pool of a handle. Invariant: a handle is looked up and never
//! dereferenced; a process issues each number once, so that a stale one finds nothing.
//!
//! The object behind a handle is never freed, like the core of a pool: a call that races with the closing of its pool
//! finds a closed pool.

use crate::call_error::CallError;
use headwater_dma::pool::{Pool, PoolError, PoolTicker};
use headwater_host::fork::ProcessGeneration;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Maximum number of pools that C can have at a time.
pub(crate) const POOLS_MAX: usize = 256;

/// A pool of pinned memory.
#[derive(Debug)]
pub struct PoolHandle {
    _opaque: (),
}

/// The object behind a pool handle.
#[derive(Debug)]
pub(crate) struct OpenPool {
    number: usize,
    pub(crate) pool: Pool,
    ticker: Mutex<Option<PoolTicker>>,
    opened_in: ProcessGeneration,
    closed: AtomicBool,
}

static OPEN_POOLS: [AtomicPtr<OpenPool>; POOLS_MAX] = [const { AtomicPtr::new(ptr::null_mut()) }; POOLS_MAX];

/// The number of handles issued so far.
static HANDLES_ISSUED: AtomicUsize = AtomicUsize::new(0);

impl OpenPool {
    /// Returns the pool if this process opened it; fails in a child of that process.
    pub(crate) fn of_this_process(&self) -> Result<&Self, CallError> {
        if self.opened_in.is_current() { Ok(self) } else { Err(PoolError::Forked.into()) }
    }

    /// Closes the pool. Allocated buffers stay valid and are freed by the same handle.
    pub(crate) fn close(&self) -> Result<(), CallError> {
        self.of_this_process()?;
        if self.closed.swap(true, Ordering::AcqRel) {
            return Err(PoolError::Closed.into());
        }
        drop(self.ticker.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.pool.close();
        Ok(())
    }

    /// Returns true if its slot can be reused: the pool is closed and holds no buffer in use, or is a parent process's.
    fn is_reusable(&self) -> bool {
        let closed = self.closed.load(Ordering::Acquire);
        !self.opened_in.is_current() || (closed && self.pool.statistics().in_use_bytes == 0)
    }
}

/// Stores a pool and returns its handle.
pub(crate) fn add(pool: Pool, ticker: Option<PoolTicker>) -> Result<*mut PoolHandle, CallError> {
    let generation = HANDLES_ISSUED.fetch_add(1, Ordering::Relaxed) + 1;
    let mut open_pool = Box::new(OpenPool {
        number: 0,
        pool,
        ticker: Mutex::new(ticker),
        opened_in: ProcessGeneration::current(),
        closed: AtomicBool::new(false),
    });
    for reuse in [false, true] {
        for (index, place) in OPEN_POOLS.iter().enumerate() {
            let old = place.load(Ordering::Acquire);
            // SAFETY: a pointer in the table is null or that of a leaked box.
            let was = unsafe { old.as_ref() };
            if was.is_some_and(|was| !reuse || !was.is_reusable()) {
                continue;
            }
            open_pool.number = generation * POOLS_MAX + index;
            let number = open_pool.number;
            let new = Box::into_raw(open_pool);
            if place.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return Ok(ptr::without_provenance_mut(number));
            }
            // SAFETY: `new` comes from `Box::into_raw` above, and the failed exchange published it to no other thread.
            open_pool = unsafe { Box::from_raw(new) };
        }
    }
    Err(CallError::TooManyPools(POOLS_MAX))
}

/// Returns the pool behind a handle.
#[inline]
pub(crate) fn find(handle: *const PoolHandle) -> Result<&'static OpenPool, CallError> {
    let number = handle.addr();
    let open_pool = OPEN_POOLS[number % POOLS_MAX].load(Ordering::Acquire);
    // SAFETY: a pointer in the table is null or that of a box that is never freed, initialised before it was stored
    // there.
    match unsafe { open_pool.as_ref() } {
        Some(open_pool) if open_pool.number == number => Ok(open_pool),
        _ if handle.is_null() => Err(CallError::Null("pool")),
        _ => Err(CallError::PoolNotOpen),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_dma::pool::PoolConfig;

    #[test]
    fn stale_handle_never_finds_the_pool_that_reused_its_slot() {
        let open = || add(Pool::open(PoolConfig::default()).unwrap(), None).unwrap();
        let first = open();
        let open_pool = find(first).unwrap();
        let held = open_pool.pool.buffer(1).unwrap().leak();
        open_pool.close().unwrap();
        assert!(matches!(open_pool.close(), Err(CallError::Pool(PoolError::Closed))));
        assert!(!open_pool.is_reusable());
        drop(find(first).unwrap().pool.adopt(held.as_ptr()).unwrap());
        assert!(open_pool.is_reusable());
        let pools: Vec<_> = (0..POOLS_MAX).map(|_| open()).collect();
        assert!(matches!(find(first), Err(CallError::PoolNotOpen)));
        let mut numbers: Vec<usize> = pools.iter().map(|pool| pool.addr()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), POOLS_MAX);
        let more = add(Pool::open(PoolConfig::default()).unwrap(), None);
        assert!(matches!(more, Err(CallError::TooManyPools(POOLS_MAX))));
        pools.into_iter().for_each(|pool| find(pool).unwrap().close().unwrap());
    }

    #[test]
    fn numbers_that_were_never_issued_find_nothing() {
        for number in [1, 0xff, POOLS_MAX << 40, usize::MAX] {
            assert!(matches!(find(ptr::without_provenance(number)), Err(CallError::PoolNotOpen)));
        }
        assert!(matches!(find(ptr::null()), Err(CallError::Null("pool"))));
    }
}
