//! The wait queue: first in, first out, with cancellation at any time.
//!
//! Input: requests that could not be served, and notice of released memory. Output: grants, in order of arrival.
//! Invariant: a slot either receives one grant or is cancelled, never both; a grant that arrives before a cancellation
//! goes to the caller that cancels, otherwise back to the pool. No request is served before the head, so a large
//! request is not starved.
//!
//! Wake-up protocol: the waiter first raises [`WaitQueue::pressure`] and then searches for memory under the locks; the
//! releasing thread first puts the memory under such a lock and then reads the pressure. At least one of the two sees
//! the other (`loom_` models beside this file).

use headwater_host::sync::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, PoisonError};
use std::task::Waker;

/// Added to the pressure when the pool is closed: spans no longer go into a cache.
const CLOSED: u64 = 1 << 63;

/// A FIFO queue of requests that wait for memory.
pub(super) struct WaitQueue<R, G> {
    pressure: AtomicU64,
    cancelled: AtomicU64,
    queue: Mutex<VecDeque<Arc<WaitSlot<R, G>>>>,
}

/// One slot of the wait queue, shared between the queue and the waiter.
pub(super) struct WaitSlot<R, G> {
    request: R,
    state: Mutex<WaitState<G>>,
    wakeup: Condvar,
}

enum WaitState<G> {
    Waiting(Option<Waker>),
    Granted(G),
    Cancelled,
}

/// The outcome of a cancellation.
pub(super) enum CancelOutcome<G> {
    /// The grant had arrived already.
    Granted(G),
    /// No grant had arrived. A later request may be served now.
    NotGranted,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<R, G> WaitQueue<R, G> {
    pub(super) fn new() -> Self {
        Self { pressure: AtomicU64::new(0), cancelled: AtomicU64::new(0), queue: Mutex::new(VecDeque::new()) }
    }

    /// Returns true if released memory must go to an arena, where waiters find it.
    #[inline]
    pub(super) fn pressure(&self) -> bool {
        self.pressure.load(Ordering::SeqCst) != 0
    }

    /// Returns true if the wait queue is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.pressure.load(Ordering::SeqCst) & CLOSED != 0
    }

    /// Returns the number of waiting requests.
    pub(super) fn waiting(&self) -> u64 {
        self.pressure.load(Ordering::SeqCst) & !CLOSED
    }

    /// Returns the number of cancelled requests.
    pub(super) fn cancelled(&self) -> u64 {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Closes the wait queue to new requests. Requests in it are served or refused by one more [`serve`](Self::serve).
    pub(super) fn close(&self) {
        self.pressure.fetch_or(CLOSED, Ordering::SeqCst);
    }

    /// Enqueues a request. The caller must then search for memory once more, by [`serve`](Self::serve).
    pub(super) fn enqueue(&self, request: R) -> Arc<WaitSlot<R, G>> {
        let place = Arc::new(WaitSlot {
            request,
            state: Mutex::new(WaitState::Waiting(None)),
            wakeup: Condvar::new(),
        });
        let mut queue = locked(&self.queue);
        self.pressure.fetch_add(1, Ordering::SeqCst);
        queue.push_back(Arc::clone(&place));
        place
    }

    /// Serves requests from the head until `grant` returns `None`.
    pub(super) fn serve(&self, mut grant: impl FnMut(&R) -> Option<G>) {
        // Wakers and payloads run the caller's code, which may re-enter this queue: not under the lock.
        let (mut wakers, mut unwanted) = (Vec::new(), Vec::new());
        let mut queue = locked(&self.queue);
        while let Some(head) = queue.front() {
            let Some(granted) = grant(&head.request) else { break };
            match head.deliver(granted) {
                Ok(waker) => wakers.extend(waker),
                Err(granted) => unwanted.push(granted),
            }
            queue.pop_front();
            self.count_removed();
        }
        drop(queue);
        wakers.into_iter().for_each(Waker::wake);
        drop(unwanted);
    }

    /// Cancels a waiting request.
    pub(super) fn cancel(&self, place: &Arc<WaitSlot<R, G>>) -> CancelOutcome<G> {
        let before = std::mem::replace(&mut *locked(&place.state), WaitState::Cancelled);
        match before {
            WaitState::Granted(granted) => return CancelOutcome::Granted(granted),
            WaitState::Cancelled => return CancelOutcome::NotGranted,
            WaitState::Waiting(_) => {}
        }
        self.cancelled.fetch_add(1, Ordering::Relaxed);
        let mut queue = locked(&self.queue);
        // If `serve` has removed it already, `serve` has also counted it.
        if let Some(at) = queue.iter().position(|other| Arc::ptr_eq(other, place)) {
            queue.remove(at);
            self.count_removed();
        }
        CancelOutcome::NotGranted
    }

    /// Counts one request fewer in the queue.
    fn count_removed(&self) {
        let before = self.pressure.fetch_sub(1, Ordering::SeqCst);
        assert!(before & !CLOSED > 0, "a request left the wait queue, which counted none");
    }
}

impl<R, G> WaitSlot<R, G> {
    /// Returns the waiting request.
    pub(super) fn request(&self) -> &R {
        &self.request
    }

    /// Takes the grant if it has arrived; once.
    pub(super) fn take(&self) -> Option<G> {
        take_from(&mut locked(&self.state))
    }

    /// Takes the grant, or registers `waker` to be called when it arrives.
    pub(super) fn take_or_wake(&self, waker: &Waker) -> Option<G> {
        let mut state = locked(&self.state);
        if let WaitState::Waiting(other) = &mut *state {
            *other = Some(waker.clone());
        }
        take_from(&mut state)
    }

    /// Waits on this thread for the grant, at most for `span`. May return early without one.
    #[cfg(not(loom))]
    pub(super) fn wait(&self, span: std::time::Duration) -> Option<G> {
        let mut state = locked(&self.state);
        if matches!(*state, WaitState::Waiting(_)) {
            state = self.wakeup.wait_timeout(state, span).unwrap_or_else(PoisonError::into_inner).0;
        }
        take_from(&mut state)
    }

    /// Waits for the grant without a timeout: in a model a grant that never arrives is a deadlock, which is reported.
    #[cfg(loom)]
    pub(super) fn wait(&self, _span: std::time::Duration) -> Option<G> {
        let mut state = locked(&self.state);
        while matches!(*state, WaitState::Waiting(_)) {
            state = self.wakeup.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        take_from(&mut state)
    }

    fn deliver(&self, granted: G) -> Result<Option<Waker>, G> {
        let mut state = locked(&self.state);
        match &mut *state {
            WaitState::Waiting(waker) => {
                let waker = waker.take();
                *state = WaitState::Granted(granted);
                self.wakeup.notify_one();
                Ok(waker)
            }
            WaitState::Cancelled => Err(granted),
            WaitState::Granted(_) => unreachable!("a request that has its grant is still in the wait queue"),
        }
    }
}

fn take_from<G>(state: &mut WaitState<G>) -> Option<G> {
    if !matches!(state, WaitState::Granted(_)) {
        return None;
    }
    match std::mem::replace(state, WaitState::Cancelled) {
        WaitState::Granted(granted) => Some(granted),
        WaitState::Waiting(_) | WaitState::Cancelled => None,
    }
}

impl<R, G> fmt::Debug for WaitQueue<R, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WaitQueue({} waiting)", self.waiting())
    }
}

impl<R, G> fmt::Debug for WaitSlot<R, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WaitSlot")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn no_request_is_served_before_the_head() {
        let line: WaitQueue<u32, u32> = WaitQueue::new();
        let (large, small) = (line.enqueue(10), line.enqueue(1));
        let free = Cell::new(5_u32);
        let grant = |&wanted: &u32| {
            let left = free.get().checked_sub(wanted)?;
            free.set(left);
            Some(wanted)
        };
        line.serve(grant);
        assert_eq!((large.take(), small.take(), line.waiting()), (None, None, 2));
        free.set(11);
        line.serve(grant);
        assert_eq!((large.take(), small.take(), free.get()), (Some(10), Some(1), 0));
        assert!(!line.pressure());
        assert_eq!(large.take(), None, "a grant is taken once");
    }

    #[test]
    fn a_cancellation_returns_a_grant_not_yet_taken() {
        let line: WaitQueue<u32, u32> = WaitQueue::new();
        let (first, second) = (line.enqueue(1), line.enqueue(2));
        line.serve(|&wanted| (wanted == 1).then_some(7));
        assert!(matches!(line.cancel(&first), CancelOutcome::Granted(7)));
        assert!(matches!(line.cancel(&second), CancelOutcome::NotGranted));
        assert!(matches!(line.cancel(&second), CancelOutcome::NotGranted));
        assert_eq!((line.waiting(), line.cancelled()), (0, 1));
        line.serve(|_| Some(1));
        assert_eq!(second.take(), None);
    }
}
