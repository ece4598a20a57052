//! Tests of both pairs of fences.

use super::*;
use std::sync::Arc;

#[test]
fn no_update_of_owner_or_other_threads_is_lost() {
    // Both entries are the same where the kernel has no membarrier.
    for barrier in [FencePair::best(), FencePair::Fences] {
        let lock = Arc::new(BiasedLock::with_barrier((0_u64, 0_u64), barrier));
        let visitors: Vec<_> = (0..2)
            .map(|_| {
                let lock = Arc::clone(&lock);
                thread::spawn(move || {
                    for _ in 0..5_000 {
                        // The two words are equal only if no other closure is inside.
                        lock.with_value(|value| {
                            assert_eq!(value.0, value.1);
                            value.0 += 1;
                            value.1 += 1;
                        })
                        .unwrap();
                    }
                })
            })
            .collect();
        let mut owner = lock.try_own().unwrap();
        let (mut short, mut long) = (0, 0);
        while visitors.iter().any(|visitor| !visitor.is_finished()) {
            let visit = |value: &mut (u64, u64)| {
                assert_eq!(value.0, value.1);
                value.0 += 1;
                value.1 += 1;
            };
            short += u64::from(owner.try_with_value(visit).is_some());
            owner.with_value(visit);
            long += 1;
        }
        for visitor in visitors {
            visitor.join().unwrap();
        }
        let total = short + long + 10_000;
        assert_eq!(lock.with_value(|value| *value), Ok((total, total)), "{barrier:?}");
    }
}

#[test]
fn only_one_owner_exists_at_a_time() {
    let lock = BiasedLock::new(0);
    let first = lock.try_own().unwrap();
    // More than one try: a refused one ended the ownership of `first`, so that the next one succeeded.
    assert!((0..3).all(|_| lock.try_own().is_none()));
    drop(first);
    let mut second = lock.try_own().unwrap();
    assert_eq!(second.try_with_value(|value| std::mem::replace(value, 5)), Some(0));
    assert_eq!(lock.with_value(|value| *value), Ok(5));
}

#[test]
fn panic_inside_leaves_lock_usable() {
    let lock = Arc::new(BiasedLock::new(1));
    let of = Arc::clone(&lock);
    let panicked =
        thread::spawn(move || of.try_own().map(|mut owner| owner.with_value(|_| panic!("inside"))));
    assert!(panicked.join().is_err());
    let of = Arc::clone(&lock);
    let panicked = thread::spawn(move || of.with_value(|_| panic!("inside")));
    assert!(panicked.join().is_err());
    assert_eq!(lock.with_value(|value| *value), Ok(1));
    assert_eq!(lock.try_own().unwrap().try_with_value(|value| *value), Some(1));
}
