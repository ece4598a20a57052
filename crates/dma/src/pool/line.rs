//! The line of those who wait: first come, first served, with cancellation at any moment.
//!
//! In: requests that could not be served, and the news that something came back. Out: grants, in the order of arrival.
//! Invariant: a place in line gets one grant or is given up, never both; what was granted to a place that was given up goes
//! to whoever gave it up, or back. Nobody behind the first is served before it, so a large request is not starved.
//!
//! Who frees and who waits meet like this: the waiter first raises [`Line::pressure`] and then looks for memory under the
//! locks; whoever frees first puts the memory under such a lock and then looks at the pressure. One of the two sees the
//! other (`loom_` models beside this file).

use headwater_host::sync::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, PoisonError};
use std::task::Waker;

/// Added to the pressure when the pool is closed: nothing goes into a cache any more.
const CLOSED: u64 = 1 << 63;

/// The line.
pub(super) struct Line<R, G> {
    pressure: AtomicU64,
    gave_up: AtomicU64,
    queue: Mutex<VecDeque<Arc<Place<R, G>>>>,
}

/// One place in the line, shared between the line and who waits.
pub(super) struct Place<R, G> {
    request: R,
    state: Mutex<State<G>>,
    bell: Condvar,
}

enum State<G> {
    Waiting(Option<Waker>),
    Granted(G),
    Gone,
}

/// What giving up came to.
pub(super) enum GaveUp<G> {
    /// The grant had come already.
    Granted(G),
    /// Nothing had come. Somebody behind may be served now.
    Left,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<R, G> Line<R, G> {
    pub(super) fn new() -> Self {
        Self { pressure: AtomicU64::new(0), gave_up: AtomicU64::new(0), queue: Mutex::new(VecDeque::new()) }
    }

    /// Whether memory that comes back must go where those who wait can see it.
    #[inline]
    pub(super) fn pressure(&self) -> bool {
        self.pressure.load(Ordering::SeqCst) != 0
    }

    /// Whether the line is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.pressure.load(Ordering::SeqCst) & CLOSED != 0
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> u64 {
        self.pressure.load(Ordering::SeqCst) & !CLOSED
    }

    /// How many gave up.
    pub(super) fn gave_up(&self) -> u64 {
        self.gave_up.load(Ordering::Relaxed)
    }

    /// Closes the line for newcomers. Who is in it is served, or told, by one more [`serve`](Self::serve).
    pub(super) fn close(&self) {
        self.pressure.fetch_or(CLOSED, Ordering::SeqCst);
    }

    /// Queues up. The caller must look for memory once more afterwards, by [`serve`](Self::serve).
    pub(super) fn join(&self, request: R) -> Arc<Place<R, G>> {
        let place =
            Arc::new(Place { request, state: Mutex::new(State::Waiting(None)), bell: Condvar::new() });
        let mut queue = locked(&self.queue);
        self.pressure.fetch_add(1, Ordering::SeqCst);
        queue.push_back(Arc::clone(&place));
        place
    }

    /// Serves the line from its head until `grant` has nothing for the head.
    pub(super) fn serve(&self, mut grant: impl FnMut(&R) -> Option<G>) {
        // Wakers and payloads run foreign code, which may come back here: not under the lock.
        let (mut wakers, mut unwanted) = (Vec::new(), Vec::new());
        let mut queue = locked(&self.queue);
        while let Some(head) = queue.front() {
            let Some(granted) = grant(&head.request) else { break };
            match head.deliver(granted) {
                Ok(waker) => wakers.extend(waker),
                Err(granted) => unwanted.push(granted),
            }
            queue.pop_front();
            self.pressure.fetch_sub(1, Ordering::SeqCst);
        }
        drop(queue);
        wakers.into_iter().for_each(Waker::wake);
        drop(unwanted);
    }

    /// Leaves the line.
    pub(super) fn give_up(&self, place: &Arc<Place<R, G>>) -> GaveUp<G> {
        let before = std::mem::replace(&mut *locked(&place.state), State::Gone);
        match before {
            State::Granted(granted) => return GaveUp::Granted(granted),
            State::Gone => return GaveUp::Left,
            State::Waiting(_) => {}
        }
        self.gave_up.fetch_add(1, Ordering::Relaxed);
        let mut queue = locked(&self.queue);
        // If `serve` has taken it out meanwhile, it has counted it, too.
        if let Some(at) = queue.iter().position(|other| Arc::ptr_eq(other, place)) {
            queue.remove(at);
            self.pressure.fetch_sub(1, Ordering::SeqCst);
        }
        GaveUp::Left
    }
}

impl<R, G> Place<R, G> {
    /// The request that waits here.
    pub(super) fn request(&self) -> &R {
        &self.request
    }

    /// The grant, if it has come; once.
    pub(super) fn take(&self) -> Option<G> {
        take_from(&mut locked(&self.state))
    }

    /// The grant, or `waker` is called when it comes.
    pub(super) fn take_or_wake(&self, waker: &Waker) -> Option<G> {
        let mut state = locked(&self.state);
        if let State::Waiting(other) = &mut *state {
            *other = Some(waker.clone());
        }
        take_from(&mut state)
    }

    /// Waits for the grant, on this thread, at most as long as `span`. May return early without one.
    #[cfg(not(loom))]
    pub(super) fn wait(&self, span: std::time::Duration) -> Option<G> {
        let mut state = locked(&self.state);
        if matches!(*state, State::Waiting(_)) {
            state = self.bell.wait_timeout(state, span).unwrap_or_else(PoisonError::into_inner).0;
        }
        take_from(&mut state)
    }

    /// Waits for the grant, without end: in a model a grant that never comes is a deadlock, which is reported.
    #[cfg(loom)]
    pub(super) fn wait(&self, _span: std::time::Duration) -> Option<G> {
        let mut state = locked(&self.state);
        while matches!(*state, State::Waiting(_)) {
            state = self.bell.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        take_from(&mut state)
    }

    fn deliver(&self, granted: G) -> Result<Option<Waker>, G> {
        let mut state = locked(&self.state);
        match &mut *state {
            State::Waiting(waker) => {
                let waker = waker.take();
                *state = State::Granted(granted);
                self.bell.notify_one();
                Ok(waker)
            }
            State::Granted(_) | State::Gone => Err(granted),
        }
    }
}

fn take_from<G>(state: &mut State<G>) -> Option<G> {
    if !matches!(state, State::Granted(_)) {
        return None;
    }
    match std::mem::replace(state, State::Gone) {
        State::Granted(granted) => Some(granted),
        State::Waiting(_) | State::Gone => None,
    }
}

impl<R, G> fmt::Debug for Line<R, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Line({} waiting)", self.waiting())
    }
}

impl<R, G> fmt::Debug for Place<R, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Place")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn nobody_is_served_before_the_head() {
        let line: Line<u32, u32> = Line::new();
        let (large, small) = (line.join(10), line.join(1));
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
    fn a_grant_that_was_not_taken_goes_to_whoever_gives_up() {
        let line: Line<u32, u32> = Line::new();
        let (first, second) = (line.join(1), line.join(2));
        line.serve(|&wanted| (wanted == 1).then_some(7));
        assert!(matches!(line.give_up(&first), GaveUp::Granted(7)));
        assert!(matches!(line.give_up(&second), GaveUp::Left));
        assert!(matches!(line.give_up(&second), GaveUp::Left));
        assert_eq!((line.waiting(), line.gave_up()), (0, 1));
        line.serve(|_| Some(1));
        assert_eq!(second.take(), None);
    }
}
