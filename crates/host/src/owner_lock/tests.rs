//! Tests of both pairs of fences.

use super::*;
use std::sync::Arc;

#[test]
fn no_update_of_owner_or_other_threads_is_lost() {
    // Both entries are the same where the kernel has no membarrier.
    for barrier in [Barrier::best(), Barrier::Fences] {
        let lock = Arc::new(OwnerLock::with_barrier((0_u64, 0_u64), barrier));
        let visitors: Vec<_> = (0..2)
            .map(|_| {
                let lock = Arc::clone(&lock);
                thread::spawn(move || {
                    for _ in 0..5_000 {
                        // The two words are equal only if no other closure is inside.
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
        while visitors.iter().any(|visitor| !visitor.is_finished()) {
            let visit = |value: &mut (u64, u64)| {
                assert_eq!(value.0, value.1);
                value.0 += 1;
                value.1 += 1;
            };
            short += u64::from(owner.try_visit(visit).is_some());
            owner.visit(visit);
            long += 1;
        }
        for visitor in visitors {
            visitor.join().unwrap();
        }
        let total = short + long + 10_000;
        assert_eq!(lock.visit(|value| *value), Ok((total, total)), "{barrier:?}");
    }
}

#[test]
fn only_one_owner_exists_at_a_time() {
    let lock = OwnerLock::new(0);
    let first = lock.own().unwrap();
    assert!(lock.own().is_none());
    drop(first);
    let mut second = lock.own().unwrap();
    assert_eq!(second.try_visit(|value| std::mem::replace(value, 5)), Some(0));
    assert_eq!(lock.visit(|value| *value), Ok(5));
}

#[test]
fn panic_inside_leaves_lock_usable() {
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
