//! A place in line as callers hold it: to be asked, to be waited for, or to be awaited.
//!
//! In: a request that makes sense. Out: its payload, once. Invariant: who drops it leaves the line, and what was granted
//! at that moment goes back and on to the next; nobody behind is kept waiting by one who left.

use super::depot::{Depot, Grant, Which};
use super::error::PoolError;
use super::line::{GaveUp, Place};
use super::request::Request;
use super::trial::finish;
use super::want::Want;
use super::{Nanos, Pool};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A place in line.
#[must_use = "a place in line that is dropped is given up"]
pub struct Waiter {
    depot: &'static Depot,
    place: Arc<Place<Want, Grant>>,
    since: Nanos,
    deadline: Option<Nanos>,
    /// The grant was taken, or the place was left.
    over: bool,
}

impl Waiter {
    pub(super) fn join(depot: &'static Depot, want: Want) -> Self {
        let since = depot.config.time.now();
        let place = depot.line.join(want);
        // From here on whatever comes back is put where `serve` finds it; what was cached before is taken now.
        depot.steal(Which::All);
        depot.serve();
        Self { depot, place, since, deadline: None, over: false }
    }

    /// The same with a moment, by the pool's clock, at which it gives up by itself.
    pub fn until(mut self, deadline: Nanos) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// The outcome, if there is one now: `None` means that the request is still in line, or that the outcome has been
    /// given before.
    pub fn poll(&mut self, now: Nanos) -> Option<Result<super::Payload, PoolError>> {
        if self.over {
            return None;
        }
        if let Some(grant) = self.place.take() {
            return Some(self.finish(grant));
        }
        if self.deadline.is_some_and(|deadline| now >= deadline) { Some(self.leave(now)) } else { None }
    }

    /// Waits on this thread, at most as long as `span`.
    pub(super) fn wait(mut self, span: Nanos) -> Result<super::Payload, PoolError> {
        let deadline = self.depot.config.time.now().after(span);
        loop {
            let now = self.depot.config.time.now();
            if now >= deadline {
                return match self.place.take() {
                    Some(grant) => self.finish(grant),
                    None => self.leave(now),
                };
            }
            if let Some(grant) = self.place.wait(deadline.since(now).to_duration()) {
                return self.finish(grant);
            }
        }
    }

    fn finish(&mut self, grant: Grant) -> Grant {
        self.over = true;
        let zeroed = self.place.request().zeroed;
        grant.map(|payload| finish(payload, zeroed))
    }

    /// Gives the place up; a grant that came at the last moment is taken all the same.
    fn leave(&mut self, now: Nanos) -> Grant {
        self.over = true;
        match self.depot.line.give_up(&self.place) {
            GaveUp::Granted(grant) => self.finish(grant),
            GaveUp::Left => {
                self.depot.serve();
                let bytes = self.place.request().bytes;
                Err(PoolError::Timeout { bytes, waited: now.since(self.since) })
            }
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if !self.over && self.depot.is_ours() {
            // What was granted goes back by being dropped here.
            drop(self.depot.line.give_up(&self.place));
            self.depot.serve();
        }
    }
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Waiter({} bytes)", self.place.request().bytes)
    }
}

/// Memory to come. Dropping it cancels the request, whatever has become of it.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is polled"]
pub struct Allocation {
    pool: Pool,
    request: Request,
    waiter: Option<Waiter>,
}

impl Allocation {
    pub(super) fn new(pool: Pool, request: Request) -> Self {
        Self { pool, request, waiter: None }
    }
}

impl Future for Allocation {
    type Output = Result<super::Payload, PoolError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.waiter.is_none() {
            match self.pool.allocate(&self.request) {
                Err(PoolError::WouldBlock { .. }) => {}
                other => return Poll::Ready(other),
            }
            match self.pool.enqueue(&self.request) {
                Ok(waiter) => self.waiter = Some(waiter),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        let Some(waiter) = &mut self.waiter else { return Poll::Pending };
        match waiter.place.take_or_wake(context.waker()) {
            Some(grant) => {
                let outcome = waiter.finish(grant);
                Poll::Ready(outcome)
            }
            None => Poll::Pending,
        }
    }
}
