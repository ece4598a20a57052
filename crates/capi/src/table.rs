//! Tables of the devices, queues and handles that C holds by numbers that look like pointers.
//!
//! Input: values. Output: numbers, and the value of a number, for one caller at a time. Invariant: a number is looked
//! up and never dereferenced; a process issues each number once, so that a stale one finds nothing.

use crate::fault::Fault;
use headwater_host::fork::ProcessGeneration;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

/// A slot for a value.
#[derive(Debug)]
struct Place<T> {
    number: usize,
    value: Option<(T, ProcessGeneration)>,
}

/// A table with slots for `N` values.
#[derive(Debug)]
pub(crate) struct Table<T, const N: usize> {
    places: [Mutex<Place<T>>; N],
    made: AtomicUsize,
    /// The name of its values in error messages.
    what: &'static str,
}

impl<T, const N: usize> Table<T, N> {
    pub(crate) const fn new(what: &'static str) -> Self {
        Self {
            places: [const { Mutex::new(Place { number: 0, value: None }) }; N],
            made: AtomicUsize::new(0),
            what,
        }
    }

    /// Stores a value and returns its number, as a pointer without provenance.
    pub(crate) fn add<H>(&self, value: T) -> Result<*mut H, Fault> {
        let generation = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        for (index, place) in self.places.iter().enumerate() {
            // A locked slot is in use.
            let Ok(mut place) = place.try_lock() else {
                continue;
            };
            if place.value.as_ref().is_some_and(|(_, born)| born.is_current()) {
                continue;
            }
            if let Some((inherited, _)) = place.value.take() {
                // A child process must not drop a value of its parent.
                let _never_dropped = std::mem::ManuallyDrop::new(inherited);
            }
            place.number = generation * N + index;
            place.value = Some((value, ProcessGeneration::current()));
            return Ok(ptr::without_provenance_mut(place.number));
        }
        Err(Fault::TooMany { what: self.what, most: N })
    }

    /// Runs `work` on the value of a number. One thread at a time uses a value: a second one gets [`Fault::Busy`].
    #[inline]
    pub(crate) fn with<H, R>(
        &self,
        number: *const H,
        work: impl FnOnce(&mut T) -> Result<R, Fault>,
    ) -> Result<R, Fault> {
        let mut place = match self.places[number.addr() % N].try_lock() {
            Ok(place) => place,
            // A thread that panicked inside left the value as it was at the panic.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(Fault::Busy(self.what)),
        };
        work(self.live(&mut place, number)?)
    }

    /// Runs `work` as [`with`](Self::with), but waits while another thread uses the value.
    pub(crate) fn with_waiting<H, R>(
        &self,
        number: *const H,
        work: impl FnOnce(&mut T) -> Result<R, Fault>,
    ) -> Result<R, Fault> {
        let mut place = self.places[number.addr() % N].lock().unwrap_or_else(PoisonError::into_inner);
        work(self.live(&mut place, number)?)
    }

    /// Removes a value; its number finds nothing from now on.
    pub(crate) fn remove<H>(&self, number: *const H) -> Result<T, Fault> {
        let mut place = self.places[number.addr() % N].lock().unwrap_or_else(PoisonError::into_inner);
        self.live(&mut place, number)?;
        place.value.take().map(|(value, _)| value).ok_or(Fault::Gone(self.what))
    }

    #[inline]
    fn live<'a, H>(&self, place: &'a mut Place<T>, number: *const H) -> Result<&'a mut T, Fault> {
        if number.is_null() {
            return Err(Fault::Null(self.what));
        }
        match &mut place.value {
            Some((value, born)) if place.number == number.addr() => {
                if born.is_current() {
                    Ok(value)
                } else {
                    Err(Fault::Inherited(self.what))
                }
            }
            _ => Err(Fault::Gone(self.what)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Number = *mut u8;

    #[test]
    fn stale_number_never_finds_the_value_that_reused_its_slot() {
        static TABLE: Table<String, 4> = Table::new("thing");
        let first: Number = TABLE.add("one".to_owned()).unwrap();
        assert_eq!(TABLE.with(first, |value| Ok(value.clone())).unwrap(), "one");
        assert_eq!(TABLE.remove(first).unwrap(), "one");
        let numbers: Vec<Number> = (0..4).map(|at| TABLE.add(at.to_string()).unwrap()).collect();
        assert!(matches!(TABLE.with(first, |_| Ok(())), Err(Fault::Gone("thing"))));
        assert!(matches!(TABLE.remove(first), Err(Fault::Gone("thing"))));
        assert!(matches!(TABLE.add::<u8>(String::new()), Err(Fault::TooMany { most: 4, .. })));
        for number in [1, 5, usize::MAX] {
            let made_up: Number = ptr::without_provenance_mut(number);
            assert!(matches!(TABLE.with(made_up, |_| Ok(())), Err(Fault::Gone("thing"))), "{number}");
        }
        assert!(matches!(TABLE.with(ptr::null::<u8>(), |_| Ok(())), Err(Fault::Null("thing"))));
        for (at, number) in numbers.into_iter().enumerate() {
            assert_eq!(TABLE.remove(number).unwrap(), at.to_string());
        }
    }

    #[test]
    fn second_thread_is_refused_or_waits_and_never_shares() {
        static TABLE: Table<u32, 2> = Table::new("thing");
        let number: Number = TABLE.add(0).unwrap();
        let number = number.addr();
        let at = || ptr::without_provenance::<u8>(number);
        TABLE
            .with(at(), |_| {
                std::thread::scope(|scope| {
                    let second = scope.spawn(|| TABLE.with(at(), |_| Ok(())));
                    assert!(matches!(second.join().unwrap(), Err(Fault::Busy("thing"))));
                });
                Ok(())
            })
            .unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    (0..1_000).for_each(|_| {
                        TABLE
                            .with_waiting(at(), |value| {
                                *value += 1;
                                Ok(())
                            })
                            .unwrap();
                    });
                });
            }
        });
        assert_eq!(TABLE.remove(at()).unwrap(), 4_000);
    }
}
