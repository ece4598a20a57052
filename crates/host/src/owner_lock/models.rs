//! Models of an owner and strangers. Loom's cell fails a model in which two look into the value at a time.

use super::*;
use loom::sync::Arc;

fn shared(visits: u32) -> Arc<OwnerLock<u32>> {
    Arc::new(OwnerLock::new(visits))
}

#[test]
fn loom_owner_and_stranger_are_never_inside_together() {
    loom::model(|| {
        let lock = shared(0);
        let other = Arc::clone(&lock);
        let stranger = thread::spawn(move || other.visit(|value| *value += 1).unwrap());
        let mut owner = lock.own().unwrap();
        let mut made = 0;
        for _ in 0..2 {
            made += u32::from(owner.try_visit(|value| *value += 10).is_some()) * 10;
        }
        stranger.join().unwrap();
        assert_eq!(owner.visit(|value| *value), made + 1);
    });
}

#[test]
fn loom_an_owner_that_waits_for_a_stranger_gets_in() {
    loom::model(|| {
        let lock = shared(0);
        let other = Arc::clone(&lock);
        let stranger = thread::spawn(move || other.visit(|value| *value += 1).unwrap());
        lock.own().unwrap().visit(|value| *value += 10);
        stranger.join().unwrap();
        assert_eq!(lock.visit(|value| *value), Ok(11));
    });
}

#[test]
fn loom_a_second_owner_sees_what_the_first_one_did() {
    loom::model(|| {
        let lock = shared(0);
        let other = Arc::clone(&lock);
        let first =
            thread::spawn(move || other.own().map(|mut owner| owner.visit(|value| *value += 1)).is_some());
        let second = lock.own().map(|mut owner| owner.visit(|value| *value += 1)).is_some();
        let made = u32::from(first.join().unwrap()) + u32::from(second);
        assert!(made >= 1);
        assert_eq!(lock.visit(|value| *value), Ok(made));
    });
}
