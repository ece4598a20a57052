//! A session with a device that may go away and come back: the admin queue, and what it takes to connect again.
//!
//! In: wishes for the admin queue and for I/O queues. Out: answers and connections, of whichever controller there is now.
//! Invariant: the epoch counts controllers, so that each queue notices that its own is over; a controller is told that its
//! host lives, in time, by a thread that ends with the session.

use super::NvmeTcpTarget;
use super::control::Control;
use super::link::Link;
use super::queue::open_link;
use crate::error::IoError;
use headwater_host::clock::{Clock, Nanos};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// First pause between two tries to connect; doubled up to [`PAUSE_MAX`].
const PAUSE_FIRST: Nanos = Nanos::from_millis(1);
const PAUSE_MAX: Nanos = Nanos::from_millis(100);
/// Keep Alives in one Keep Alive timeout, so that one that is late is not missed.
const BEATS: u64 = 3;

/// Whether a call may be made twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// What it does twice is what it does once.
    May,
    /// It must not.
    MustNot,
}

/// The numbers of I/O queues. They are given out in turn, so that one that was just given back, and may still be known to the
/// device, is not soon another queue's.
#[derive(Debug, Default)]
struct Numbers {
    last: u16,
    used: BTreeSet<u16>,
}

impl Numbers {
    fn take(&mut self, most: u16) -> Option<u16> {
        let mut turn = (self.last.saturating_add(1)..=most).chain(1..=self.last.min(most));
        let number = turn.find(|number| !self.used.contains(number))?;
        self.used.insert(number);
        self.last = number;
        Some(number)
    }
}

/// One host's controller, shared by its queues.
#[derive(Debug)]
pub(super) struct Session {
    target: NvmeTcpTarget,
    /// `None` while it is looked for, and once it was given up.
    control: Mutex<Option<Control>>,
    epoch: AtomicU64,
    numbers: Mutex<Numbers>,
    /// Its end is the end of the thread that says that the host lives.
    _alive: Sender<()>,
}

impl Session {
    /// Connects; one that does not answer is not looked for.
    pub(super) fn open(target: NvmeTcpTarget) -> Result<Arc<Self>, IoError> {
        let control = Control::open(&target)?;
        let (alive, ended) = channel();
        let every = Nanos(target.keep_alive.0 / BEATS);
        let session = Arc::new(Self {
            target,
            control: Mutex::new(Some(control)),
            epoch: AtomicU64::new(1),
            numbers: Mutex::default(),
            _alive: alive,
        });
        if every > Nanos::ZERO {
            let host = Arc::downgrade(&session);
            std::thread::spawn(move || {
                while ended.recv_timeout(every.to_duration()) == Err(RecvTimeoutError::Timeout) {
                    if let Some(session) = host.upgrade() {
                        session.beat();
                    }
                }
            });
        }
        Ok(session)
    }

    /// Counts controllers.
    #[inline]
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Asks the admin queue.
    pub(super) fn call<T>(
        &self,
        again: Again,
        mut ask: impl FnMut(&mut Control) -> Result<T, IoError>,
    ) -> Result<T, IoError> {
        let epoch = self.epoch();
        let mut control = self.lock();
        let gone = || self.gone("it went away");
        let answer = control.as_mut().ok_or_else(gone).and_then(&mut ask);
        match answer {
            Err(IoError::Gone { .. }) if again == Again::May => {
                self.renew(&mut control, epoch)?;
                control.as_mut().ok_or_else(gone).and_then(ask)
            }
            other => other,
        }
    }

    /// The number of another I/O queue, until it is [given back](Self::give_number).
    pub(super) fn take_number(&self) -> Result<u16, IoError> {
        let most = self.call(Again::May, |control| Ok(control.queues_max))?;
        let taken = self.numbers().take(most);
        let reason = || format!("all {most} queues that the device gives a host are in use; drop one first");
        taken.ok_or_else(|| IoError::Refused { reason: reason() })
    }

    /// A queue is over.
    pub(super) fn give_number(&self, number: u16) {
        self.numbers().used.remove(&number);
    }

    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects I/O queue `number` to the present controller. With the epoch of the controller that it is of.
    pub(super) fn link(&self, number: u16, depth: u32) -> Result<(Link, u64), IoError> {
        let control = self.lock();
        let control = control.as_ref().ok_or_else(|| self.gone("it went away"))?;
        open_link(&self.target, control, number, depth).map(|link| (link, self.epoch()))
    }

    /// As [`link`](Self::link), to another controller than that of `epoch`.
    pub(super) fn link_again(&self, mut epoch: u64, number: u16, depth: u32) -> Result<(Link, u64), IoError> {
        let clock = Clock::start();
        let mut pause = PAUSE_FIRST;
        loop {
            self.renew(&mut self.lock(), epoch)?;
            match self.link(number, depth) {
                // It went away once more.
                Err(IoError::Gone { .. }) if clock.now() < self.target.retry_for => {
                    epoch = self.epoch();
                    Clock::sleep(pause);
                    pause = Nanos(pause.0 * 2).min(PAUSE_MAX);
                }
                other => return other,
            }
        }
    }

    /// Whether a queue may be ended by Disconnect. Not while another controller is looked for: who leaves does not wait.
    pub(super) fn disconnects(&self) -> bool {
        let control = self.control.try_lock();
        control.is_ok_and(|control| control.as_ref().is_some_and(|control| control.disconnects))
    }

    /// Tells the controller that its host lives; one that does not answer is looked for.
    fn beat(&self) {
        let epoch = self.epoch();
        let mut control = self.lock();
        if control.as_mut().is_some_and(|control| matches!(control.keep_alive(), Err(IoError::Gone { .. }))) {
            // Who next asks for something hears why.
            let _ = self.renew(&mut control, epoch);
        }
    }

    /// Connects a new controller, unless somebody has done so since `epoch`.
    fn renew(&self, control: &mut Option<Control>, epoch: u64) -> Result<(), IoError> {
        if self.epoch() != epoch {
            return Ok(());
        }
        *control = None;
        let clock = Clock::start();
        let mut pause = PAUSE_FIRST;
        loop {
            match Control::open(&self.target) {
                Ok(found) => {
                    *control = Some(found);
                    self.epoch.fetch_add(1, Ordering::Release);
                    return Ok(());
                }
                Err(IoError::Gone { .. }) if clock.now() < self.target.retry_for => {
                    Clock::sleep(pause);
                    pause = Nanos(pause.0 * 2).min(PAUSE_MAX);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// A thread that panicked in a call left at worst an old connection.
    fn lock(&self) -> MutexGuard<'_, Option<Control>> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn gone(&self, reason: &str) -> IoError {
        IoError::Gone { what: self.target.address.to_string(), reason: reason.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_given_in_turn_and_never_twice() {
        let mut numbers = Numbers::default();
        let all: Vec<u16> = (0..4).filter_map(|_| numbers.take(4)).collect();
        assert_eq!(all, [1, 2, 3, 4]);
        assert_eq!(numbers.take(4), None);
        numbers.used.remove(&2);
        numbers.used.remove(&3);
        assert_eq!((numbers.take(4), numbers.take(4), numbers.take(4)), (Some(2), Some(3), None));
        numbers.used.remove(&1);
        numbers.used.remove(&4);
        assert_eq!(numbers.take(4), Some(4), "not the one that was first in line before");
        assert_eq!(numbers.take(2), Some(1), "a device that came back gives fewer");
    }
}
