//! A session with a device that may go away and come back: the admin queue, and the means to reconnect.
//!
//! Input: requests to the admin queue, and for I/O queues. Output: results and connections of the present controller.
//! Invariant: the epoch counts controllers, so that each queue detects that its own has ended; a thread that ends with
//! the session sends Keep Alives in time.

use super::NvmeTcpTarget;
use super::admin_connection::AdminConnection;
use super::link::TcpLink;
use super::queue::open_link;
use crate::error::IoError;
use headwater_host::clock::{Clock, Nanos};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// First pause between two connection attempts; doubled up to [`PAUSE_MAX`].
const PAUSE_FIRST: Nanos = Nanos::from_millis(1);
const PAUSE_MAX: Nanos = Nanos::from_millis(100);
/// Keep Alives in one Keep Alive timeout, so that a late one does no harm.
const KEEP_ALIVES_PER_TIMEOUT: u64 = 3;

/// The permission to repeat a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetryPolicy {
    /// The call is idempotent.
    Allowed,
    /// The call must not be repeated.
    Forbidden,
}

/// The numbers of I/O queues. They are allocated in turn, so that a number just released, which may still be in use at
/// the device, is not soon reused.
#[derive(Debug, Default)]
struct QueueNumbers {
    last: u16,
    used: BTreeSet<u16>,
}

impl QueueNumbers {
    fn take(&mut self, max: u16) -> Option<u16> {
        let mut turn = (self.last.saturating_add(1)..=max).chain(1..=self.last.min(max));
        let number = turn.find(|number| !self.used.contains(number))?;
        self.used.insert(number);
        self.last = number;
        Some(number)
    }
}

/// The session of one host with its controller, shared by its queues.
#[derive(Debug)]
pub(super) struct TcpSession {
    target: NvmeTcpTarget,
    /// `None` while reconnecting, and after reconnecting failed.
    control: Mutex<Option<AdminConnection>>,
    epoch: AtomicU64,
    numbers: Mutex<QueueNumbers>,
    /// The channel whose end stops the Keep Alive thread.
    _keep_alive_stop: Sender<()>,
}

impl TcpSession {
    /// Connects, without retrying.
    pub(super) fn open(target: NvmeTcpTarget) -> Result<Arc<Self>, IoError> {
        let control = AdminConnection::open(&target)?;
        let (alive, ended) = channel();
        let every = Nanos(target.keep_alive.0 / KEEP_ALIVES_PER_TIMEOUT);
        let session = Arc::new(Self {
            target,
            control: Mutex::new(Some(control)),
            epoch: AtomicU64::new(1),
            numbers: Mutex::default(),
            _keep_alive_stop: alive,
        });
        if every > Nanos::ZERO {
            let host = Arc::downgrade(&session);
            std::thread::spawn(move || {
                while ended.recv_timeout(every.to_duration()) == Err(RecvTimeoutError::Timeout) {
                    if let Some(session) = host.upgrade() {
                        session.send_keep_alive();
                    }
                }
            });
        }
        Ok(session)
    }

    /// Returns the number of controllers connected so far.
    #[inline]
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Calls `request` on the admin queue, and repeats it over a new connection if `again` permits.
    pub(super) fn call<T>(
        &self,
        again: RetryPolicy,
        mut request: impl FnMut(&mut AdminConnection) -> Result<T, IoError>,
    ) -> Result<T, IoError> {
        let epoch = self.epoch();
        let mut control = self.lock();
        let gone = || self.gone("it went away");
        let answer = control.as_mut().ok_or_else(gone).and_then(&mut request);
        match answer {
            Err(IoError::Gone { .. }) if again == RetryPolicy::Allowed => {
                self.reconnect(&mut control, epoch)?;
                control.as_mut().ok_or_else(gone).and_then(request)
            }
            other => other,
        }
    }

    /// Allocates the number of an I/O queue, until it is [released](Self::release_number).
    pub(super) fn allocate_number(&self) -> Result<u16, IoError> {
        let max = self.call(RetryPolicy::Allowed, |control| Ok(control.queues_max))?;
        let taken = self.numbers().take(max);
        let address = self.target.address;
        let reason =
            || format!("all {max} I/O queues that {address} grants this host are in use; drop one first");
        taken.ok_or_else(|| IoError::Limit { reason: reason() })
    }

    /// Releases the number of a queue that has ended.
    pub(super) fn release_number(&self, number: u16) {
        self.numbers().used.remove(&number);
    }

    fn numbers(&self) -> MutexGuard<'_, QueueNumbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects I/O queue `number` to the present controller. Returns the connection and the controller's epoch.
    pub(super) fn connect_queue(&self, number: u16, depth: u32) -> Result<(TcpLink, u64), IoError> {
        let control = self.lock();
        let control = control.as_ref().ok_or_else(|| self.gone("it went away"))?;
        open_link(&self.target, control, number, depth).map(|link| (link, self.epoch()))
    }

    /// Connects as [`connect_queue`](Self::connect_queue), to a later controller than that of `epoch`.
    pub(super) fn reconnect_queue(
        &self,
        mut epoch: u64,
        number: u16,
        depth: u32,
    ) -> Result<(TcpLink, u64), IoError> {
        let clock = Clock::start();
        let mut pause = PAUSE_FIRST;
        loop {
            self.reconnect(&mut self.lock(), epoch)?;
            match self.connect_queue(number, depth) {
                // The device went away again.
                Err(IoError::Gone { .. }) if clock.now() < self.target.retry_for => {
                    epoch = self.epoch();
                    Clock::sleep(pause);
                    pause = Nanos(pause.0 * 2).min(PAUSE_MAX);
                }
                other => return other,
            }
        }
    }

    /// Returns true if a queue may be ended by Disconnect. False during a reconnect, so that dropping a queue does not
    /// block.
    pub(super) fn may_disconnect(&self) -> bool {
        let control = self.control.try_lock();
        control.is_ok_and(|control| control.as_ref().is_some_and(|control| control.supports_disconnect))
    }

    /// Sends a Keep Alive, and reconnects if the controller does not answer.
    fn send_keep_alive(&self) {
        let epoch = self.epoch();
        let mut control = self.lock();
        if control.as_mut().is_some_and(|control| matches!(control.keep_alive(), Err(IoError::Gone { .. }))) {
            // The next call reports the error.
            let _ = self.reconnect(&mut control, epoch);
        }
    }

    /// Connects a new controller, unless another thread has done so since `epoch`.
    fn reconnect(&self, control: &mut Option<AdminConnection>, epoch: u64) -> Result<(), IoError> {
        if self.epoch() != epoch {
            return Ok(());
        }
        *control = None;
        let clock = Clock::start();
        let mut pause = PAUSE_FIRST;
        loop {
            match AdminConnection::open(&self.target) {
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

    /// Locks the controller. A thread that panicked in a call leaves at worst an old connection.
    fn lock(&self) -> MutexGuard<'_, Option<AdminConnection>> {
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
    fn queue_numbers_are_allocated_in_turn_and_never_twice() {
        let mut numbers = QueueNumbers::default();
        let all: Vec<u16> = (0..4).filter_map(|_| numbers.take(4)).collect();
        assert_eq!(all, [1, 2, 3, 4]);
        assert_eq!(numbers.take(4), None);
        numbers.used.remove(&2);
        numbers.used.remove(&3);
        assert_eq!((numbers.take(4), numbers.take(4), numbers.take(4)), (Some(2), Some(3), None));
        numbers.used.remove(&1);
        numbers.used.remove(&4);
        assert_eq!(numbers.take(4), Some(4), "the search starts after the last number");
        assert_eq!(numbers.take(2), Some(1), "a reconnected device may grant fewer queues");
    }
}
