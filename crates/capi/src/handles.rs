//! Which pools C has: numbers that look like pointers, and the pools behind them.
//!
//! In: pools that were opened. Out: handles, and the pool of a handle. Invariant: a handle is looked up and never followed;
//! its number is given out once in the life of the process, so that a stale one finds nothing.
//!
//! What stands behind a handle is never freed, like the core of a pool: a call that races with the closing of its pool
//! finds a closed pool.

use crate::fault::Fault;
use headwater_dma::pool::{Pool, PoolError, Ticker};
use headwater_host::fork::Generation;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Most pools that C can have at a time.
pub(crate) const POOLS_MAX: usize = 256;

/// A pool of pinned memory.
#[derive(Debug)]
pub struct PoolHandle {
    _opaque: (),
}

/// What stands behind a handle.
#[derive(Debug)]
pub(crate) struct Face {
    number: usize,
    pub(crate) pool: Pool,
    ticker: Mutex<Option<Ticker>>,
    opened_in: Generation,
    closed: AtomicBool,
}

static FACES: [AtomicPtr<Face>; POOLS_MAX] = [const { AtomicPtr::new(ptr::null_mut()) }; POOLS_MAX];

/// How many handles were made.
static MADE: AtomicUsize = AtomicUsize::new(0);

impl Face {
    /// Whether this process opened it; not so in its children.
    pub(crate) fn ours(&self) -> Result<&Self, Fault> {
        if self.opened_in.is_current() { Ok(self) } else { Err(PoolError::Forked.into()) }
    }

    /// Closes the pool; buffers that are out stay, and come back by the same handle.
    pub(crate) fn close(&self) -> Result<(), Fault> {
        self.ours()?;
        if self.closed.swap(true, Ordering::AcqRel) {
            return Err(PoolError::Closed.into());
        }
        drop(self.ticker.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.pool.close();
        Ok(())
    }

    /// Whether nobody can have any more use for it.
    fn is_spent(&self) -> bool {
        let closed = self.closed.load(Ordering::Acquire);
        !self.opened_in.is_current() || (closed && self.pool.statistics().in_use_bytes == 0)
    }
}

/// Makes a handle for a pool.
pub(crate) fn add(pool: Pool, ticker: Option<Ticker>) -> Result<*mut PoolHandle, Fault> {
    let generation = MADE.fetch_add(1, Ordering::Relaxed) + 1;
    let mut face = Box::new(Face {
        number: 0,
        pool,
        ticker: Mutex::new(ticker),
        opened_in: Generation::current(),
        closed: AtomicBool::new(false),
    });
    for reuse in [false, true] {
        for (index, place) in FACES.iter().enumerate() {
            let old = place.load(Ordering::Acquire);
            // SAFETY: a pointer in the table is null or that of a leaked box.
            let was = unsafe { old.as_ref() };
            if was.is_some_and(|was| !reuse || !was.is_spent()) {
                continue;
            }
            face.number = generation * POOLS_MAX + index;
            let number = face.number;
            let new = Box::into_raw(face);
            if place.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return Ok(ptr::without_provenance_mut(number));
            }
            // SAFETY: it came from a box a moment ago and nobody else has seen it.
            face = unsafe { Box::from_raw(new) };
        }
    }
    Err(Fault::TooManyPools(POOLS_MAX))
}

/// The pool behind a handle.
#[inline]
pub(crate) fn find(handle: *const PoolHandle) -> Result<&'static Face, Fault> {
    let number = handle.addr();
    let face = FACES[number % POOLS_MAX].load(Ordering::Acquire);
    // SAFETY: a pointer in the table is null or that of a box that is never freed, written before it was put there.
    match unsafe { face.as_ref() } {
        Some(face) if face.number == number => Ok(face),
        _ if handle.is_null() => Err(Fault::Null("pool")),
        _ => Err(Fault::Handle),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_dma::pool::PoolConfig;

    #[test]
    fn a_stale_handle_never_finds_the_pool_that_took_its_place() {
        let open = || add(Pool::open(PoolConfig::default()).unwrap(), None).unwrap();
        let first = open();
        let face = find(first).unwrap();
        let held = face.pool.buffer(1).unwrap().leak();
        face.close().unwrap();
        assert!(matches!(face.close(), Err(Fault::Pool(PoolError::Closed))));
        assert!(!face.is_spent());
        drop(find(first).unwrap().pool.adopt(held.as_ptr()).unwrap());
        assert!(face.is_spent());
        let others: Vec<_> = (0..POOLS_MAX).map(|_| open()).collect();
        assert!(matches!(find(first), Err(Fault::Handle)));
        let mut numbers: Vec<usize> = others.iter().map(|other| other.addr()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), POOLS_MAX);
        let more = add(Pool::open(PoolConfig::default()).unwrap(), None);
        assert!(matches!(more, Err(Fault::TooManyPools(POOLS_MAX))));
        others.into_iter().for_each(|other| find(other).unwrap().close().unwrap());
    }

    #[test]
    fn numbers_that_are_no_handles_find_nothing() {
        for number in [1, 0xff, POOLS_MAX << 40, usize::MAX] {
            assert!(matches!(find(ptr::without_provenance(number)), Err(Fault::Handle)));
        }
        assert!(matches!(find(ptr::null()), Err(Fault::Null("pool"))));
    }
}
