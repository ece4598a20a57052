//! A waiting request as the caller holds it: polled, blocked on, or awaited.
//!
//! Input: a validated request. Output: its payload, once. Invariant: dropping it leaves the wait queue, and a grant
//! that arrived by then returns to the pool and is offered to the next request; a cancelled request never delays later
//! ones.

use super::allocate::finish;
use super::error::PoolError;
use super::request::PoolRequest;
use super::state::{AllocationResult, CacheSelection, PoolState};
use super::validated_request::ValidatedRequest;
use super::wait_queue::{CancelOutcome, WaitSlot};
use super::{Nanos, Pool};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A waiting request.
#[must_use = "dropping a waiter cancels its request"]
pub struct PoolWaiter {
    depot: &'static PoolState,
    place: Arc<WaitSlot<ValidatedRequest, AllocationResult>>,
    since: Nanos,
    deadline: Option<Nanos>,
    /// True once the grant was taken or the request cancelled.
    over: bool,
}

impl PoolWaiter {
    pub(super) fn join(depot: &'static PoolState, want: ValidatedRequest) -> Self {
        let since = depot.config.time.now();
        let place = depot.line.join(want);
        // From here on, released spans go where `serve` finds them; spans cached earlier are drained now.
        depot.steal(CacheSelection::All);
        depot.serve();
        Self { depot, place, since, deadline: None, over: false }
    }

    /// Returns the waiter with a deadline, by the pool's clock, after which a poll cancels the request.
    pub fn until(mut self, deadline: Nanos) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Returns the outcome if there is one now: `None` means that the request is still waiting, or that the outcome was
    /// already returned.
    pub fn poll(&mut self, now: Nanos) -> Option<Result<super::PoolAllocation, PoolError>> {
        if self.over {
            return None;
        }
        if let Some(grant) = self.place.take() {
            return Some(self.finish(grant));
        }
        if self.deadline.is_some_and(|deadline| now >= deadline) { Some(self.leave(now)) } else { None }
    }

    /// Waits on this thread for the outcome, at most for `span`.
    pub(super) fn wait(mut self, span: Nanos) -> Result<super::PoolAllocation, PoolError> {
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

    fn finish(&mut self, grant: AllocationResult) -> AllocationResult {
        self.over = true;
        let zeroed = self.place.request().zeroed;
        grant.map(|payload| finish(payload, zeroed))
    }

    /// Cancels the request; a grant that arrived just before is still taken.
    fn leave(&mut self, now: Nanos) -> AllocationResult {
        self.over = true;
        match self.depot.line.give_up(&self.place) {
            CancelOutcome::Granted(grant) => self.finish(grant),
            CancelOutcome::Left => {
                self.depot.serve();
                let bytes = self.place.request().bytes;
                Err(PoolError::Timeout { bytes, waited: now.since(self.since) })
            }
        }
    }
}

impl Drop for PoolWaiter {
    fn drop(&mut self) {
        if !self.over && self.depot.is_ours() {
            // Dropping a grant returns its memory to the pool.
            drop(self.depot.line.give_up(&self.place));
            self.depot.serve();
        }
    }
}

impl fmt::Debug for PoolWaiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Waiter({} bytes)", self.place.request().bytes)
    }
}

/// A future for the memory of a request. Dropping it cancels the request in any state.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is polled"]
pub struct AllocationFuture {
    pool: Pool,
    request: PoolRequest,
    waiter: Option<PoolWaiter>,
}

impl AllocationFuture {
    pub(super) fn new(pool: Pool, request: PoolRequest) -> Self {
        Self { pool, request, waiter: None }
    }
}

impl Future for AllocationFuture {
    type Output = Result<super::PoolAllocation, PoolError>;

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
