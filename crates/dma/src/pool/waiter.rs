//! A waiting request as the caller holds it: polled, blocked on, or awaited.
//!
//! Input: a validated request. Output: its payload, once. Invariant: dropping it leaves the wait queue, and a grant
//! that arrived by then returns to the pool and is offered to the next request; a cancelled request never delays later
//! ones.

use super::allocate::zero_if_requested;
use super::budget::PinTier;
use super::charge::CapCharge;
use super::error::PoolError;
use super::request::PoolRequest;
use super::state::{AllocationResult, CacheSelection, PoolState, WaitGrant, WaitRequest};
use super::validated_request::ValidatedRequest;
use super::wait_queue::{CancelOutcome, WaitSlot};
use super::{Nanos, Pool};
use crate::buffer::PoolAllocation;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A request in the wait queue, for memory or for a part of the cap.
pub(super) struct QueuedRequest {
    state: &'static PoolState,
    slot: Arc<WaitSlot<WaitRequest, Result<WaitGrant, PoolError>>>,
    since: Nanos,
    /// True once the grant was taken or the request cancelled.
    finished: bool,
}

impl QueuedRequest {
    pub(super) fn join(state: &'static PoolState, request: WaitRequest) -> Self {
        let since = state.config.clock.now();
        let slot = state.wait_queue.enqueue(request);
        // From here on, released spans go where `serve_waiters` finds them; spans cached earlier are drained now.
        state.drain_caches(CacheSelection::All);
        state.serve_waiters();
        Self { state, slot, since, finished: false }
    }

    /// Returns the grant if it has arrived, and cancels the request if the deadline is over.
    fn poll(&mut self, now: Nanos, deadline: Option<Nanos>) -> Option<Result<WaitGrant, PoolError>> {
        if self.finished {
            return None;
        }
        if let Some(grant) = self.slot.take() {
            return Some(self.finish(grant));
        }
        if deadline.is_some_and(|deadline| now >= deadline) { Some(self.cancel(now)) } else { None }
    }

    /// Returns the grant if it has arrived, or registers the waker.
    fn poll_wake(&mut self, context: &Context<'_>) -> Poll<Result<WaitGrant, PoolError>> {
        match self.slot.take_or_wake(context.waker()) {
            Some(grant) => Poll::Ready(self.finish(grant)),
            None => Poll::Pending,
        }
    }

    /// Waits on this thread for the grant, at most for `span`.
    pub(super) fn wait(mut self, span: Nanos) -> Result<WaitGrant, PoolError> {
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

    fn finish(&mut self, grant: Result<WaitGrant, PoolError>) -> Result<WaitGrant, PoolError> {
        self.finished = true;
        match (grant?, self.slot.request()) {
            (WaitGrant::Memory(payload), WaitRequest::Memory(request)) => {
                Ok(WaitGrant::Memory(zero_if_requested(payload, request.zeroed)))
            }
            (grant, _) => Ok(grant),
        }
    }

    /// Cancels the request; a grant that arrived just before is still taken.
    fn cancel(&mut self, now: Nanos) -> Result<WaitGrant, PoolError> {
        self.finished = true;
        match self.state.wait_queue.cancel(&self.slot) {
            CancelOutcome::Granted(grant) => self.finish(grant),
            CancelOutcome::NotGranted => {
                self.state.serve_waiters();
                Err(PoolError::Timeout { bytes: self.slot.request().bytes(), waited: now.since(self.since) })
            }
        }
    }
}

impl Drop for QueuedRequest {
    fn drop(&mut self) {
        if !self.finished && self.state.is_current_process() {
            // Dropping a grant returns its memory to the pool.
            drop(self.state.wait_queue.cancel(&self.slot));
            self.state.serve_waiters();
        }
    }
}

fn into_memory(grant: WaitGrant) -> PoolAllocation {
    match grant {
        WaitGrant::Memory(payload) => payload,
        WaitGrant::Charge(_) => unreachable!("a request for memory is granted memory"),
    }
}

fn into_charge(grant: WaitGrant) -> CapCharge {
    match grant {
        WaitGrant::Charge(charge) => charge,
        WaitGrant::Memory(_) => unreachable!("a request for a charge is granted a charge"),
    }
}

/// A waiting request for memory.
#[must_use = "dropping a waiter cancels its request"]
pub struct PoolWaiter {
    queued: QueuedRequest,
    deadline: Option<Nanos>,
}

impl PoolWaiter {
    pub(super) fn join(state: &'static PoolState, request: ValidatedRequest) -> Self {
        Self { queued: QueuedRequest::join(state, WaitRequest::Memory(request)), deadline: None }
    }

    /// Returns the waiter with a deadline, by the pool's clock, after which a poll cancels the request.
    pub fn with_deadline(mut self, deadline: Nanos) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Returns the outcome if there is one now: `None` means that the request is still waiting, or that the outcome was
    /// already returned.
    pub fn poll(&mut self, now: Nanos) -> Option<Result<PoolAllocation, PoolError>> {
        let outcome = self.queued.poll(now, self.deadline)?;
        Some(outcome.map(into_memory))
    }

    /// Waits on this thread for the outcome, at most for `span`.
    pub(super) fn wait(self, span: Nanos) -> AllocationResult {
        self.queued.wait(span).map(into_memory)
    }
}

impl fmt::Debug for PoolWaiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PoolWaiter({} bytes)", self.queued.slot.request().bytes())
    }
}

/// A waiting request for a part of the cap, to pin memory in place.
#[must_use = "dropping a waiter cancels its request"]
pub(super) struct ChargeWaiter(QueuedRequest);

impl ChargeWaiter {
    pub(super) fn join(state: &'static PoolState, tier: PinTier, bytes: usize) -> Self {
        Self(QueuedRequest::join(state, WaitRequest::Charge(tier, bytes)))
    }

    /// Waits on this thread for the charge, at most for `span`.
    pub(super) fn wait(self, span: Nanos) -> Result<CapCharge, PoolError> {
        self.0.wait(span).map(into_charge)
    }

    /// Returns the charge, or registers the waker.
    pub(super) fn poll_wake(&mut self, context: &Context<'_>) -> Poll<Result<CapCharge, PoolError>> {
        self.0.poll_wake(context).map(|grant| grant.map(into_charge))
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
    type Output = Result<PoolAllocation, PoolError>;

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
        waiter.queued.poll_wake(context).map(|grant| grant.map(into_memory))
    }
}
