//! A waiting request as the caller holds it: polled, blocked on, or awaited.
//!
//! Input: a validated request. Output: its payload, once. Invariant: dropping it leaves the wait queue, and a grant
//! that arrived by then returns to the pool and is offered to the next request; a cancelled request never delays later
//! ones.

use super::allocate::zero_if_requested;
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
    state: &'static PoolState,
    slot: Arc<WaitSlot<ValidatedRequest, AllocationResult>>,
    since: Nanos,
    deadline: Option<Nanos>,
    /// True once the grant was taken or the request cancelled.
    finished: bool,
}

impl PoolWaiter {
    pub(super) fn join(state: &'static PoolState, request: ValidatedRequest) -> Self {
        let since = state.config.clock.now();
        let slot = state.wait_queue.enqueue(request);
        // From here on, released spans go where `serve_waiters` finds them; spans cached earlier are drained now.
        state.drain_caches(CacheSelection::All);
        state.serve_waiters();
        Self { state, slot, since, deadline: None, finished: false }
    }

    /// Returns the waiter with a deadline, by the pool's clock, after which a poll cancels the request.
    pub fn with_deadline(mut self, deadline: Nanos) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Returns the outcome if there is one now: `None` means that the request is still waiting, or that the outcome was
    /// already returned.
    pub fn poll(&mut self, now: Nanos) -> Option<Result<super::PoolAllocation, PoolError>> {
        if self.finished {
            return None;
        }
        if let Some(grant) = self.slot.take() {
            return Some(self.finish(grant));
        }
        if self.deadline.is_some_and(|deadline| now >= deadline) { Some(self.cancel(now)) } else { None }
    }

    /// Waits on this thread for the outcome, at most for `span`.
    pub(super) fn wait(mut self, span: Nanos) -> Result<super::PoolAllocation, PoolError> {
        let deadline = self.state.config.clock.now().after(span);
        loop {
            let now = self.state.config.clock.now();
            if now >= deadline {
                return match self.slot.take() {
                    Some(grant) => self.finish(grant),
                    None => self.cancel(now),
                };
            }
            if let Some(grant) = self.slot.wait(deadline.since(now).to_duration()) {
                return self.finish(grant);
            }
        }
    }

    fn finish(&mut self, grant: AllocationResult) -> AllocationResult {
        self.finished = true;
        let zeroed = self.slot.request().zeroed;
        grant.map(|payload| zero_if_requested(payload, zeroed))
    }

    /// Cancels the request; a grant that arrived just before is still taken.
    fn cancel(&mut self, now: Nanos) -> AllocationResult {
        self.finished = true;
        match self.state.wait_queue.cancel(&self.slot) {
            CancelOutcome::Granted(grant) => self.finish(grant),
            CancelOutcome::NotGranted => {
                self.state.serve_waiters();
                let bytes = self.slot.request().bytes;
                Err(PoolError::Timeout { bytes, waited: now.since(self.since) })
            }
        }
    }
}

impl Drop for PoolWaiter {
    fn drop(&mut self) {
        if !self.finished && self.state.is_current_process() {
            // Dropping a grant returns its memory to the pool.
            drop(self.state.wait_queue.cancel(&self.slot));
            self.state.serve_waiters();
        }
    }
}

impl fmt::Debug for PoolWaiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PoolWaiter({} bytes)", self.slot.request().bytes)
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
        match waiter.slot.take_or_wake(context.waker()) {
            Some(grant) => {
                let outcome = waiter.finish(grant);
                Poll::Ready(outcome)
            }
            None => Poll::Pending,
        }
    }
}
