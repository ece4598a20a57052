//! Tables of the devices, queues and handles that C holds by numbers that look like pointers.
//!
//! Input: values. Output: numbers, and the value of a number, for one caller at a time. Invariant: a number is looked
//! up and never dereferenced; a process issues each number once, so that a stale one finds nothing.

use crate::call_error::CallError;
use headwater_host::fork::ProcessGeneration;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

/// The lowest bit of the process generation in a number. The bits below count the values of a table.
const PROCESS_SHIFT: u32 = 48;

/// A slot for a value.
#[derive(Debug)]
struct TableSlot<T> {
    /// The number of the value; 0 if the slot is free. Only a thread with the right number locks the value: a lock that
    /// another thread tries would make the owner's call fail as busy.
    number: AtomicUsize,
    value: Mutex<Option<T>>,
}

/// A table with slots for `N` values.
#[derive(Debug)]
pub(crate) struct HandleTable<T, const N: usize> {
    slots: [TableSlot<T>; N],
    additions: AtomicUsize,
    /// The name of its values in error messages.
    value_name: &'static str,
}

impl<T, const N: usize> HandleTable<T, N> {
    pub(crate) const fn new(value_name: &'static str) -> Self {
        Self {
            slots: [const { TableSlot { number: AtomicUsize::new(0), value: Mutex::new(None) } }; N],
            additions: AtomicUsize::new(0),
            value_name,
        }
    }

    /// Stores a value and returns its number, as a pointer without provenance.
    pub(crate) fn add<H>(&self, value: T) -> Result<*mut H, CallError> {
        let first = self.additions.fetch_add(1, Ordering::Relaxed) + 1;
        for (index, slot) in self.slots.iter().enumerate() {
            let held = slot.number.load(Ordering::Acquire);
            if held != 0 && is_of_this_process(held) {
                continue;
            }
            let number = process_bits() | ((first * N + index) & !(usize::MAX << PROCESS_SHIFT));
            if slot.number.compare_exchange(held, number, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                continue;
            }
            // A value is locked here while its removal ends, or for ever if another thread of the parent process used it
            // at the fork.
            let mut place = match slot.value.try_lock() {
                Ok(place) => place,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => {
                    slot.number.store(held, Ordering::Release);
                    continue;
                }
            };
            // A child process must not drop a value of its parent.
            let _never_dropped = ManuallyDrop::new(place.replace(value));
            return Ok(ptr::without_provenance_mut(number));
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
        let slot = self.slot_of(number)?;
        let mut place = match slot.value.try_lock() {
            Ok(place) => place,
            // A thread that panicked inside left the value as it was at the panic.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Err(CallError::Busy(self.value_name)),
        };
        work(self.locked_value(slot, &mut place, number)?)
    }

    /// Runs `work` as [`with`](Self::with), but waits while another thread uses the value.
    pub(crate) fn with_waiting<H, R>(
        &self,
        number: *const H,
        work: impl FnOnce(&mut T) -> Result<R, CallError>,
    ) -> Result<R, CallError> {
        let slot = self.slot_of(number)?;
        let mut place = slot.value.lock().unwrap_or_else(PoisonError::into_inner);
        work(self.locked_value(slot, &mut place, number)?)
    }

    /// Removes a value; its number finds nothing from now on.
    pub(crate) fn remove<H>(&self, number: *const H) -> Result<T, CallError> {
        self.remove_if(number, |_| Ok(()))
    }

    /// Removes a value if `allow` allows it. No other thread uses the value in between.
    pub(crate) fn remove_if<H>(
        &self,
        number: *const H,
        allow: impl FnOnce(&mut T) -> Result<(), CallError>,
    ) -> Result<T, CallError> {
        let slot = self.slot_of(number)?;
        let mut place = slot.value.lock().unwrap_or_else(PoisonError::into_inner);
        allow(self.locked_value(slot, &mut place, number)?)?;
        let value = place.take();
        slot.number.store(0, Ordering::Release);
        value.ok_or(CallError::NotOpen(self.value_name))
    }

    /// Returns the slot that has a number, without locking it.
    #[inline]
    fn slot_of<H>(&self, number: *const H) -> Result<&TableSlot<T>, CallError> {
        if number.is_null() {
            return Err(CallError::Null(self.value_name));
        }
        let counted = number.addr() & !(usize::MAX << PROCESS_SHIFT);
        let slot = &self.slots[counted % N];
        if slot.number.load(Ordering::Acquire) != number.addr() {
            return Err(CallError::NotOpen(self.value_name));
        }
        if is_of_this_process(number.addr()) { Ok(slot) } else { Err(CallError::Inherited(self.value_name)) }
    }

    /// Returns the value of a locked slot, unless it was removed before the lock was taken.
    #[inline]
    fn locked_value<'a, H>(
        &self,
        slot: &TableSlot<T>,
        place: &'a mut Option<T>,
        number: *const H,
    ) -> Result<&'a mut T, CallError> {
        let is_same = slot.number.load(Ordering::Relaxed) == number.addr();
        place.as_mut().filter(|_| is_same).ok_or(CallError::NotOpen(self.value_name))
    }
}

/// Returns the generation of this process, at its place in a number.
#[inline]
fn process_bits() -> usize {
    ProcessGeneration::current().forks() << PROCESS_SHIFT
}

/// Returns true if a number was issued by this process, and not by one that it was forked from.
#[inline]
fn is_of_this_process(number: usize) -> bool {
    number >> PROCESS_SHIFT == process_bits() >> PROCESS_SHIFT
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
    fn value_whose_removal_is_refused_stays() {
        static TABLE: HandleTable<u8, 2> = HandleTable::new("thing");
        let number: Number = TABLE.add(7).unwrap();
        let refused = TABLE.remove_if(number, |_| Err(CallError::Busy("thing")));
        assert!(matches!(refused, Err(CallError::Busy("thing"))));
        assert_eq!(TABLE.with(number, |value| Ok(*value)).unwrap(), 7);
        assert_eq!(TABLE.remove_if(number, |_| Ok(())).unwrap(), 7);
        assert!(matches!(TABLE.remove(number), Err(CallError::NotOpen("thing"))));
    }

    #[test]
    fn additions_and_stale_numbers_never_make_a_value_busy() {
        static TABLE: HandleTable<u64, 8> = HandleTable::new("thing");
        let number = TABLE.add::<u8>(0).unwrap().addr();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let other: Number = TABLE.add(7).unwrap();
                    assert_eq!(TABLE.remove(other).unwrap(), 7);
                    // The slot of the value that stays, with an old number.
                    let stale = ptr::without_provenance::<u8>(number + 8);
                    assert!(matches!(
                        TABLE.with_waiting(stale, |_| Ok(())),
                        Err(CallError::NotOpen("thing"))
                    ));
                }
            });
            let uses = (0..200_000_u64).map(|_| {
                TABLE.with(ptr::without_provenance::<u8>(number), |value| {
                    *value += 1;
                    Ok(())
                })
            });
            let failed = uses.filter(Result::is_err).count();
            done.store(true, Ordering::Relaxed);
            assert_eq!(failed, 0, "the only user of a value was told that it is busy");
        });
        assert_eq!(TABLE.remove::<u8>(ptr::without_provenance(number)).unwrap(), 200_000);
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
