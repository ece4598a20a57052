//! Tables of the devices, queues and handles that C holds by numbers that look like pointers.
//!
//! Input: values. Output: numbers, and the value of a number, for one caller at a time. Invariant: a number is looked
//! up and never dereferenced; a process issues each number once, so that a stale one finds nothing.

use crate::call_error::CallError;
use headwater_host::fork::ProcessGeneration;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

/// A slot for a value.
#[derive(Debug)]
struct TableSlot<T> {
    number: usize,
    value: Option<(T, ProcessGeneration)>,
}

/// A table with slots for `N` values.
#[derive(Debug)]
pub(crate) struct HandleTable<T, const N: usize> {
    slots: [Mutex<TableSlot<T>>; N],
    generations: AtomicUsize,
    /// The name of its values in error messages.
    value_name: &'static str,
}

impl<T, const N: usize> HandleTable<T, N> {
    pub(crate) const fn new(value_name: &'static str) -> Self {
        Self {
            slots: [const { Mutex::new(TableSlot { number: 0, value: None }) }; N],
            generations: AtomicUsize::new(0),
            value_name,
        }
    }

    /// Stores a value and returns its number, as a pointer without provenance.
    pub(crate) fn add<H>(&self, value: T) -> Result<*mut H, CallError> {
        let generation = self.generations.fetch_add(1, Ordering::Relaxed) + 1;
        for (index, place) in self.slots.iter().enumerate() {
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
        Err(CallError::TooMany { what: self.value_name, most: N })
    }

    /// Runs `work` on the value of a number. One thread at a time uses a value: a second one gets [`CallError::Busy`].
    #[inline]
    pub(crate) fn with<H, R>(
        &self,
        number: *const H,
        work: impl FnOnce(&mut T) -> Result<R, CallError>,
    ) -> Result<R, CallError> {
        let mut place = match self.slots[number.addr() % N].try_lock() {
            Ok(place) => place,
            // A thread that panicked inside left the value as it was at the panic.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(CallError::Busy(self.value_name)),
        };
        work(self.checked_value(&mut place, number)?)
    }

    /// Runs `work` as [`with`](Self::with), but waits while another thread uses the value.
    pub(crate) fn with_waiting<H, R>(
        &self,
        number: *const H,
        work: impl FnOnce(&mut T) -> Result<R, CallError>,
    ) -> Result<R, CallError> {
        let mut place = self.slots[number.addr() % N].lock().unwrap_or_else(PoisonError::into_inner);
        work(self.checked_value(&mut place, number)?)
    }

    /// Removes a value; its number finds nothing from now on.
    pub(crate) fn remove<H>(&self, number: *const H) -> Result<T, CallError> {
        let mut place = self.slots[number.addr() % N].lock().unwrap_or_else(PoisonError::into_inner);
        self.checked_value(&mut place, number)?;
        place.value.take().map(|(value, _)| value).ok_or(CallError::NotOpen(self.value_name))
    }

    #[inline]
    fn checked_value<'a, H>(
        &self,
        place: &'a mut TableSlot<T>,
        number: *const H,
    ) -> Result<&'a mut T, CallError> {
        if number.is_null() {
            return Err(CallError::Null(self.value_name));
        }
        match &mut place.value {
            Some((value, born)) if place.number == number.addr() => {
                if born.is_current() {
                    Ok(value)
                } else {
                    Err(CallError::Inherited(self.value_name))
                }
            }
            _ => Err(CallError::NotOpen(self.value_name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Number = *mut u8;

    #[test]
    fn stale_number_never_finds_the_value_that_reused_its_slot() {
        static TABLE: HandleTable<String, 4> = HandleTable::new("thing");
        let first: Number = TABLE.add("one".to_owned()).unwrap();
        assert_eq!(TABLE.with(first, |value| Ok(value.clone())).unwrap(), "one");
        assert_eq!(TABLE.remove(first).unwrap(), "one");
        let numbers: Vec<Number> = (0..4).map(|at| TABLE.add(at.to_string()).unwrap()).collect();
        assert!(matches!(TABLE.with(first, |_| Ok(())), Err(CallError::NotOpen("thing"))));
        assert!(matches!(TABLE.remove(first), Err(CallError::NotOpen("thing"))));
        assert!(matches!(TABLE.add::<u8>(String::new()), Err(CallError::TooMany { most: 4, .. })));
        for number in [1, 5, usize::MAX] {
            let made_up: Number = ptr::without_provenance_mut(number);
            assert!(matches!(TABLE.with(made_up, |_| Ok(())), Err(CallError::NotOpen("thing"))), "{number}");
        }
        assert!(matches!(TABLE.with(ptr::null::<u8>(), |_| Ok(())), Err(CallError::Null("thing"))));
        for (at, number) in numbers.into_iter().enumerate() {
            assert_eq!(TABLE.remove(number).unwrap(), at.to_string());
        }
    }

    #[test]
    fn second_thread_is_refused_or_waits_and_never_shares() {
        static TABLE: HandleTable<u32, 2> = HandleTable::new("thing");
        let number: Number = TABLE.add(0).unwrap();
        let number = number.addr();
        let at = || ptr::without_provenance::<u8>(number);
        TABLE
            .with(at(), |_| {
                std::thread::scope(|scope| {
                    let second = scope.spawn(|| TABLE.with(at(), |_| Ok(())));
                    assert!(matches!(second.join().unwrap(), Err(CallError::Busy("thing"))));
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
