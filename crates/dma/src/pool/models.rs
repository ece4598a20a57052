//! Loom models of the line and of the caches beside it.
//!
//! In: nothing. Out: proof, within loom's bounds, that nobody in line is forgotten, that a grant is taken once however
//! giving up races with it, and that what an owner caches is found by whoever waits. A lost waiter shows as a deadlock.

use super::cache::{Cache, Class};
use super::line::{GaveUp, Line};
use headwater_host::owner_lock::OwnerLock;
use headwater_host::sync::{ModelBuilder, Mutex, thread};
use std::sync::Arc;
use std::time::Duration;

/// Context switches that loom may force at arbitrary points, beside those at which a thread waits.
const PREEMPTIONS: usize = 2;

/// A pool of single units: the line, and a shared stock under its lock.
struct Shop {
    line: Line<u32, Units>,
    stock: Mutex<u32>,
}

/// What was granted: like a payload it goes back by itself when it is dropped.
struct Units {
    count: u32,
    shop: Option<Arc<Shop>>,
}

impl Units {
    fn keep(mut self) -> u32 {
        self.shop = None;
        self.count
    }
}

impl Drop for Units {
    fn drop(&mut self) {
        if let Some(shop) = self.shop.take() {
            shop.put(self.count);
        }
    }
}

impl Shop {
    fn new(stock: u32) -> Arc<Self> {
        Arc::new(Self { line: Line::new(), stock: Mutex::new(stock) })
    }

    fn serve(self: &Arc<Self>) {
        self.line.serve(|&wanted| {
            let mut stock = self.stock.lock().unwrap();
            *stock = stock.checked_sub(wanted)?;
            Some(Units { count: wanted, shop: Some(Arc::clone(self)) })
        });
    }

    fn put(self: &Arc<Self>, count: u32) {
        *self.stock.lock().unwrap() += count;
        if self.line.pressure() {
            self.serve();
        }
    }

    fn wait_for(self: &Arc<Self>, count: u32) -> u32 {
        let place = self.line.join(count);
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
fn loom_nobody_in_line_is_forgotten() {
    model(|| {
        let shop = Shop::new(0);
        let theirs = Arc::clone(&shop);
        let freer = thread::spawn(move || theirs.put(1));
        assert_eq!(shop.wait_for(1), 1);
        freer.join().unwrap();
        assert!(!shop.line.pressure());
    });
}

#[test]
fn loom_the_head_is_served_before_those_behind() {
    model(|| {
        let shop = Shop::new(0);
        let (large, small) = (shop.line.join(2), shop.line.join(1));
        let theirs = Arc::clone(&shop);
        let freer = thread::spawn(move || theirs.put(1));
        shop.put(1);
        freer.join().unwrap();
        assert_eq!((large.take().map(Units::keep), small.take().map(Units::keep)), (Some(2), None));
        shop.put(1);
        assert_eq!(small.take().map(Units::keep), Some(1));
    });
}

#[test]
fn loom_giving_up_and_being_served_exclude_each_other() {
    model(|| {
        let shop = Shop::new(0);
        let (first, second) = (shop.line.join(1), shop.line.join(1));
        let theirs = Arc::clone(&shop);
        let freer = thread::spawn(move || theirs.put(1));
        match shop.line.give_up(&first) {
            GaveUp::Granted(units) => drop(units),
            GaveUp::Left => shop.serve(),
        }
        freer.join().unwrap();
        // Whatever came first, the one unit there is has gone on to the second.
        assert_eq!((second.take().map(Units::keep), shop.line.waiting()), (Some(1), 0));
    });
}

#[test]
fn loom_what_an_owner_caches_is_found_by_who_waits() {
    model(|| {
        let shop = Shop::new(0);
        let lock = Arc::new(OwnerLock::new(Cache::new(0)));
        let (theirs, cache) = (Arc::clone(&shop), Arc::clone(&lock));
        let owner = thread::spawn(move || {
            let class = Class::exactly(1).unwrap();
            let mut owner = cache.own().unwrap();
            let refused = owner.visit(|cache| {
                cache.grant(class.bytes());
                if theirs.line.pressure() { Some(1) } else { cache.push(1, 1) }
            });
            if let Some(count) = refused {
                theirs.put(count);
            }
        });
        let place = shop.line.join(1);
        let mut found = Vec::new();
        lock.visit(|cache| cache.empty(0, &mut found)).unwrap();
        shop.put(found.iter().sum());
        assert_eq!(place.wait(Duration::ZERO).map(Units::keep), Some(1));
        owner.join().unwrap();
    });
}
