//! Both pairs of fences keep the same promises.

use super::*;
use std::sync::Arc;

#[test]
fn visits_of_owner_and_strangers_add_up() {
    // Twice the same where the kernel has no membarrier.
    for barrier in [Barrier::best(), Barrier::Fences] {
        let lock = Arc::new(OwnerLock::with_barrier((0_u64, 0_u64), barrier));
        let strangers: Vec<_> = (0..2)
            .map(|_| {
                let lock = Arc::clone(&lock);
                thread::spawn(move || {
                    for _ in 0..5_000 {
                        // Two words that are only ever equal if nobody else is inside.
                        lock.visit(|value| {
                            assert_eq!(value.0, value.1);
                            value.0 += 1;
                            value.1 += 1;
                        })
                        .unwrap();
                    }
                })
            })
            .collect();
        let mut owner = lock.own().unwrap();
        let (mut short, mut long) = (0, 0);
        while strangers.iter().any(|stranger| !stranger.is_finished()) {
            let visit = |value: &mut (u64, u64)| {
                assert_eq!(value.0, value.1);
                value.0 += 1;
                value.1 += 1;
            };
            short += u64::from(owner.try_visit(visit).is_some());
            owner.visit(visit);
            long += 1;
        }
        for stranger in strangers {
            stranger.join().unwrap();
        }
        let total = short + long + 10_000;
        assert_eq!(lock.visit(|value| *value), Ok((total, total)), "{barrier:?}");
    }
}

#[test]
fn there_is_one_owner_at_a_time() {
    let lock = OwnerLock::new(0);
    let first = lock.own().unwrap();
    assert!(lock.own().is_none());
    drop(first);
    let mut second = lock.own().unwrap();
    assert_eq!(second.try_visit(|value| std::mem::replace(value, 5)), Some(0));
    assert_eq!(lock.visit(|value| *value), Ok(5));
}

#[test]
fn a_visit_that_panics_locks_nobody_out() {
    let lock = Arc::new(OwnerLock::new(1));
    let of = Arc::clone(&lock);
    let panicked = thread::spawn(move || of.own().map(|mut owner| owner.visit(|_| panic!("inside"))));
    assert!(panicked.join().is_err());
    let of = Arc::clone(&lock);
    let panicked = thread::spawn(move || of.visit(|_| panic!("inside")));
    assert!(panicked.join().is_err());
    assert_eq!(lock.visit(|value| *value), Ok(1));
    assert_eq!(lock.own().unwrap().try_visit(|value| *value), Some(1));
}
