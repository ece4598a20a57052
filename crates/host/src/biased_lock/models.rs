//! Models of an owner thread and other threads. Loom's cell fails a model in which two accesses to the value overlap.

use super::*;
use loom::sync::Arc;

fn shared(visits: u32) -> Arc<BiasedLock<u32>> {
    Arc::new(BiasedLock::new(visits))
}

#[test]
fn loom_owner_and_other_thread_are_never_inside_together() {
    loom::model(|| {
        let lock = shared(0);
        let other = Arc::clone(&lock);
        let visitor = thread::spawn(move || other.with_value(|value| *value += 1).unwrap());
        let mut owner = lock.try_own().unwrap();
        let mut made = 0;
        for _ in 0..2 {
            made += u32::from(owner.try_with_value(|value| *value += 10).is_some()) * 10;
        }
        visitor.join().unwrap();
        assert_eq!(owner.with_value(|value| *value), made + 1);
    });
}

#[test]
fn loom_owner_that_waits_for_another_thread_gets_in() {
    loom::model(|| {
        let lock = shared(0);
        let other = Arc::clone(&lock);
        let visitor = thread::spawn(move || other.with_value(|value| *value += 1).unwrap());
        lock.try_own().unwrap().with_value(|value| *value += 10);
        visitor.join().unwrap();
        assert_eq!(lock.with_value(|value| *value), Ok(11));
    });
}

#[test]
fn loom_second_owner_sees_writes_of_first_owner() {
    loom::model(|| {
        let lock = shared(0);
        let other = Arc::clone(&lock);
        let first = thread::spawn(move || {
            other.try_own().map(|mut owner| owner.with_value(|value| *value += 1)).is_some()
        });
        let second = lock.try_own().map(|mut owner| owner.with_value(|value| *value += 1)).is_some();
        let made = u32::from(first.join().unwrap()) + u32::from(second);
        assert!(made >= 1);
        assert_eq!(lock.with_value(|value| *value), Ok(made));
    });
}

/// Checks for a former defect: a refused try ended the ownership of the present owner, and the next one succeeded.
#[test]
fn loom_refused_try_leaves_the_only_owner_its_right() {
    loom::model(|| {
        let lock = shared(0);
        let mut owner = lock.try_own().unwrap();
        let other = Arc::clone(&lock);
        let refused = thread::spawn(move || (0..2).all(|_| other.try_own().is_none()));
        owner.with_value(|value| *value += 1);
        assert!(refused.join().unwrap());
        drop(owner);
        assert!(lock.try_own().is_some());
    });
}
