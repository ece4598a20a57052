//! Loom models of the wait queue and the thread caches.
//!
//! Input: none. Output: proof, within loom's bounds, that no waiter is forgotten, that a grant is taken once even if a
//! cancellation races with it, and that a waiter finds spans that an owner caches. A lost waiter shows as a deadlock.

use super::cache::{CacheClass, ThreadCache};
use super::wait_queue::{CancelOutcome, WaitQueue};
use headwater_host::biased_lock::BiasedLock;
use headwater_host::sync::{ModelBuilder, Mutex, thread};
use std::sync::Arc;
use std::time::Duration;

/// Context switches that loom may force at arbitrary points, besides those at which a thread waits.
const PREEMPTIONS: usize = 2;

/// A pool of single units: the wait queue, and shared stock under a lock.
struct ModelPool {
    queue: WaitQueue<u32, ModelUnits>,
    stock: Mutex<u32>,
}

/// A grant: like a payload it returns to the pool when it is dropped.
struct ModelUnits {
    count: u32,
    pool: Option<Arc<ModelPool>>,
}

impl ModelUnits {
    fn keep(mut self) -> u32 {
        self.pool = None;
        self.count
    }
}

impl Drop for ModelUnits {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            pool.put(self.count);
        }
    }
}

impl ModelPool {
    fn new(stock: u32) -> Arc<Self> {
        Arc::new(Self { queue: WaitQueue::new(), stock: Mutex::new(stock) })
    }

    fn serve(self: &Arc<Self>) {
        self.queue.serve(|&wanted| {
            let mut stock = self.stock.lock().unwrap();
            *stock = stock.checked_sub(wanted)?;
            Some(ModelUnits { count: wanted, pool: Some(Arc::clone(self)) })
        });
    }

    fn put(self: &Arc<Self>, count: u32) {
        *self.stock.lock().unwrap() += count;
        if self.queue.pressure() {
            self.serve();
        }
    }

    fn wait_for(self: &Arc<Self>, count: u32) -> u32 {
        let place = self.queue.enqueue(count);
        self.serve();
        place.wait(Duration::ZERO).unwrap().keep()
    }
}

fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = ModelBuilder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(run);
}

#[test]
fn loom_no_waiter_is_forgotten() {
    model(|| {
        let pool = ModelPool::new(0);
        let theirs = Arc::clone(&pool);
        let freer = thread::spawn(move || theirs.put(1));
        assert_eq!(pool.wait_for(1), 1);
        freer.join().unwrap();
        assert!(!pool.queue.pressure());
    });
}

#[test]
fn loom_the_head_is_served_before_later_requests() {
    model(|| {
        let pool = ModelPool::new(0);
        let (large, small) = (pool.queue.enqueue(2), pool.queue.enqueue(1));
        let theirs = Arc::clone(&pool);
        let freer = thread::spawn(move || theirs.put(1));
        pool.put(1);
        freer.join().unwrap();
        assert_eq!((large.take().map(ModelUnits::keep), small.take().map(ModelUnits::keep)), (Some(2), None));
        pool.put(1);
        assert_eq!(small.take().map(ModelUnits::keep), Some(1));
    });
}

#[test]
fn loom_a_slot_is_either_cancelled_or_served() {
    model(|| {
        let pool = ModelPool::new(0);
        let (first, second) = (pool.queue.enqueue(1), pool.queue.enqueue(1));
        let theirs = Arc::clone(&pool);
        let freer = thread::spawn(move || theirs.put(1));
        match pool.queue.cancel(&first) {
            CancelOutcome::Granted(units) => drop(units),
            CancelOutcome::NotGranted => pool.serve(),
        }
        freer.join().unwrap();
        // In either order, the one unit has gone to the second.
        assert_eq!((second.take().map(ModelUnits::keep), pool.queue.waiting()), (Some(1), 0));
    });
}

#[test]
fn loom_a_waiter_finds_spans_that_an_owner_caches() {
    model(|| {
        let pool = ModelPool::new(0);
        let lock = Arc::new(BiasedLock::new(ThreadCache::new(0)));
        let (theirs, cache) = (Arc::clone(&pool), Arc::clone(&lock));
        let owner = thread::spawn(move || {
            let class = CacheClass::exactly(1).unwrap();
            let mut owner = cache.try_own().unwrap();
            let refused = owner.with_value(|cache| {
                cache.raise_quota(class.bytes());
                if theirs.queue.pressure() { Some(1) } else { cache.push(1, 1) }
            });
            if let Some(count) = refused {
                theirs.put(count);
            }
        });
        let place = pool.queue.enqueue(1);
        let mut found = Vec::new();
        lock.with_value(|cache| cache.drain_all(0, &mut found)).unwrap();
        pool.put(found.iter().sum());
        assert_eq!(place.wait(Duration::ZERO).map(ModelUnits::keep), Some(1));
        owner.join().unwrap();
    });
}
