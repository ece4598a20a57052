//! The thread that does the work of a state which no call causes.
//!
//! Input: a state behind a lock, whose work arises from calls and with time. Output: the same state, with its work done,
//! and wakers called. Invariant: the thread decides under the lock to sleep, and a caller that leaves work behind under the
//! same lock notifies it, so that no work waits for a thread that sleeps without a limit. No waker is called, and the
//! thread never sleeps, while the lock is held.
//!
//! ```text
//!   run due work --> call wakers --> more work? --no--> sleep: a span, or until notified --> run due work ...
//!                                                stopping --> last turns, until done or too late --> end
//! ```

use headwater_host::sync::{Condvar, Mutex, MutexGuard, thread};
use std::sync::PoisonError;
use std::task::Waker;
use std::time::Duration;

/// The sleep of the thread until its next turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadSleep {
    /// None: it takes the next turn as soon as other threads had the lock.
    None,
    /// For a span.
    For(Duration),
    /// Until a caller leaves work behind.
    UntilNotified,
}

/// A state with work for a thread.
pub(crate) trait BackgroundWork {
    /// Does the work that is due, and returns how long the thread may sleep.
    fn run_due(&mut self) -> ThreadSleep;

    /// Returns true if there is work for which a thread in this sleep has to be notified.
    fn needs_thread(&self, sleep: ThreadSleep) -> bool;

    /// Takes the wakers that the thread has to call without the lock.
    fn take_wakers(&mut self) -> Vec<Waker>;

    /// Does the last work before the thread ends. Returns the sleep before the next such turn, or none when it is done.
    fn run_last(&mut self) -> Option<Duration>;
}

#[derive(Debug)]
struct BackgroundInner<S> {
    work: S,
    /// The sleep that the thread is in; none while it runs, and while there is no thread.
    asleep: Option<ThreadSleep>,
    stopping: bool,
}

/// A state that calls and a thread share.
#[derive(Debug)]
pub(crate) struct BackgroundState<S> {
    inner: Mutex<BackgroundInner<S>>,
    work: Condvar,
}

impl<S: BackgroundWork> BackgroundState<S> {
    pub(crate) fn new(work: S) -> Self {
        let inner = BackgroundInner { work, asleep: None, stopping: false };
        Self { inner: Mutex::new(inner), work: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, BackgroundInner<S>> {
        // A panic under the lock is a defect of this crate; the state machine checks its own invariants.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a call under the lock, and notifies the thread if the call left work behind.
    #[inline]
    pub(crate) fn with<R>(&self, call: impl FnOnce(&mut S) -> R) -> R {
        let mut inner = self.lock();
        let result = call(&mut inner.work);
        if let Some(sleep) = inner.asleep
            && inner.work.needs_thread(sleep)
        {
            inner.asleep = None;
            drop(inner);
            self.work.notify_one();
        }
        result
    }

    pub(crate) fn into_inner(self) -> S {
        self.inner.into_inner().unwrap_or_else(PoisonError::into_inner).work
    }

    /// Signals the thread to end.
    pub(crate) fn stop(&self) {
        self.lock().stopping = true;
        self.work.notify_one();
    }

    /// Runs the thread until it is stopped.
    pub(crate) fn run(&self) {
        let mut inner = self.lock();
        while !inner.stopping {
            let sleep = inner.work.run_due();
            let wakers = inner.work.take_wakers();
            if !wakers.is_empty() || sleep == ThreadSleep::None {
                drop(inner);
                wakers.into_iter().for_each(Waker::wake);
                thread::yield_now();
                inner = self.lock();
            }
            if sleep == ThreadSleep::None || inner.stopping || inner.work.needs_thread(sleep) {
                continue;
            }
            inner.asleep = Some(sleep);
            inner = match sleep {
                ThreadSleep::For(span) => {
                    self.work.wait_timeout(inner, span).unwrap_or_else(PoisonError::into_inner).0
                }
                _ => self.work.wait(inner).unwrap_or_else(PoisonError::into_inner),
            };
            inner.asleep = None;
        }
        while let Some(span) = inner.work.run_last() {
            // A notification is not expected: the state has no other user.
            inner = self.work.wait_timeout(inner, span).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(all(test, loom))]
#[path = "background_models.rs"]
mod models;
