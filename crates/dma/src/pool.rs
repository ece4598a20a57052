//! The pool: memory that is pinned once and reused many times, in three tiers by the length of a request (uDMA,
//! section 4).
//!
//! Input: [`PoolRequest`]s. Output: [`PoolAllocation`]s, which return to the pool when they are dropped. Invariants: no byte is in
//! two buffers; the pinned bytes never exceed the cap; the wait queue is served in order, whatever the tier; a buffer may
//! outlive the pool that made it.
//!
//! Tiers: a small request gets a slot of blocks that stay pinned as long as the pool is open (static tier); a medium one
//! memory of the pool's chunks; a large one a chunk of its own, pinned and unpinned with it (dynamic tier). The limits
//! are [`TierThresholds`]; [`PoolStatistics::tiers`] counts. A small request without a free slot, and a large one for
//! which the cap has no room, is served by the pool's chunks.
//!
//! Allocation attempts, in order: the thread's cache, the tier of the request, a free run, several free runs if the
//! request allows them, growth, growth after retiring idle chunks, the caches of other threads; then
//! [`PoolError::WouldBlock`] or the wait queue.
//!
//! # What this does not do
//! It starts no transfer, and reads only the clock it is configured with.

pub use budget::PinTier;
pub use charge::CapCharge;
pub use config::{
    CAP_MAX, CHUNK_MAX, CHUNK_MIN, ChunkRule, ConfigError, PAPER_BLOCKS, PaperBlocks, PoolConfig,
    PoolSharing, STATIC_BYTES_DEFAULT, TierSetting, TierThresholds,
};
pub use dynamic::{DynamicError, ImportFuture, PinnableMemory, PinnedMemory};
pub use error::PoolError;
pub use lookup::{AddressLookup, PageState};
#[cfg(not(loom))]
pub use pinner::GpuPinner;
pub use pinner::{
    MemoryPinner, MlockPinner, NoPinning, NodeRange, PinError, PinToken, PoolClock, SharedPinner,
    SharedRange, SimulatedCosts, SimulatedPinner, UnpinFailure, UringPinner, VfioPinner,
};
pub use placement::{
    AdmitError, MachineNodes, NodeError, NodeId, NodePlacement, OneNode, default_placement, placement_on,
};
pub use process::PROCESS_POOL_CAP;
pub use release::ReleaseTarget;
pub use request::{PoolRequest, RequestShape, ZeroPolicy};
pub use statistics::{BUCKETS, DurationHistogram, NodeStatistics, PoolStatistics, ServeCounts, TierCounts};
pub use ticker::PoolTicker;
pub use waiter::{AllocationFuture, PoolWaiter};

#[cfg(all(test, loom))]
mod models;

use crate::buffer::{DeviceSegment, PoolAllocation, PoolBuffer};
use allocate::zero_if_requested;
use calibration::TierChoice;
use headwater_host::clock::Nanos;
use headwater_host::reservation::{PAGE_BYTES, PageSpan};
use headwater_host::sync::Ordering;
use headwater_host::width::narrow;
use state::PoolState;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use validated_request::ValidatedRequest;

pub mod calibration;
pub mod dynamic;

mod allocate;
mod arena;
mod arena_tiers;
mod budget;
mod cache;
mod cache_quota;
mod charge;
mod chunk_sizing;
mod chunks;
mod config;
mod deferred;
mod error;
mod lookup;
mod maintenance;
mod pinner;
mod placement;
mod planner;
mod process;
mod release;
mod request;
mod state;
mod statistics;
mod thread_caches;
mod ticker;
mod tier_routing;
mod validated_request;
mod wait_queue;
mod waiter;

#[cfg(test)]
#[cfg(not(loom))]
mod tiers_tests;

/// A handle to a pool. Clones are handles to the same pool; dropping the last closes it: waiters receive an error, and
/// memory is released as the buffers return.
#[derive(Clone)]
pub struct Pool {
    state: &'static PoolState,
    _open: Arc<OpenGuard>,
}

/// A guard that closes the pool when the last handle is dropped.
struct OpenGuard(&'static PoolState);

impl Drop for OpenGuard {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Pool {
    /// Opens a pool. Nothing is pinned before the first request.
    ///
    /// # Errors
    /// An inconsistent configuration, a pinner whose preflight refuses the cap, or no address space.
    pub fn open(config: PoolConfig) -> Result<Self, PoolError> {
        // Never freed, so that buffers hold it without a reference count: a few hundred bytes and the threads' caches.
        let state: &'static PoolState = Box::leak(Box::new(PoolState::open(config)?));
        Ok(Self { state, _open: Arc::new(OpenGuard(state)) })
    }

    /// Returns the configuration the pool was opened with. The cap and m may have changed since: see
    /// [`statistics`](Self::statistics).
    #[must_use]
    pub fn config(&self) -> &PoolConfig {
        &self.state.config
    }

    /// Allocates memory for a request without waiting.
    ///
    /// # Errors
    /// [`PoolError::WouldBlock`] if it can be served later; any other error says what to change.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "a buffer that is returned through memory costs as much as finding it"
    )]
    pub fn allocate(&self, request: &PoolRequest) -> Result<PoolAllocation, PoolError> {
        if request.is_plain()
            && let Some((span, arena)) = self.state.take_cached(request.bytes)
        {
            return Ok(PoolAllocation::Contiguous(PoolBuffer::new(
                span,
                request.bytes,
                ReleaseTarget::new(self.state, arena),
            )));
        }
        self.allocate_shared(request)
    }

    /// Allocates `bytes` contiguous bytes, page-aligned: [`allocate`](Self::allocate) without a [`PoolRequest`].
    ///
    /// # Errors
    /// As for [`allocate`](Self::allocate).
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "a buffer that is returned through memory costs as much as finding it"
    )]
    pub fn buffer(&self, bytes: usize) -> Result<PoolBuffer, PoolError> {
        let (span, arena) = match self.state.take_cached(bytes) {
            Some(found) => found,
            None => self.allocate_span_shared(bytes)?,
        };
        Ok(PoolBuffer::new(span, bytes, ReleaseTarget::new(self.state, arena)))
    }

    #[cold]
    #[inline(never)]
    fn allocate_span_shared(&self, bytes: usize) -> Result<(PageSpan, usize), PoolError> {
        if let Some(found) = self.state.take_free_run(bytes) {
            return Ok(found);
        }
        match self.allocate_shared(&PoolRequest::bytes(bytes))? {
            PoolAllocation::Contiguous(buffer) => Ok(buffer.into_parts()),
            PoolAllocation::Scattered(_) => unreachable!("scatter/gather was not allowed"),
        }
    }

    #[cold]
    #[inline(never)]
    fn allocate_shared(&self, request: &PoolRequest) -> Result<PoolAllocation, PoolError> {
        let request = self.state.validate(request)?;
        if let Some((span, arena)) = self.state.take_cached_for(&request) {
            let buffer = PoolBuffer::new(span, request.bytes, ReleaseTarget::new(self.state, arena));
            return Ok(zero_if_requested(PoolAllocation::Contiguous(buffer), request.zeroed));
        }
        self.attempt_in_turn(&request)
    }

    /// Allocates for a request unless earlier ones wait for memory, and counts a refusal.
    fn attempt_in_turn(&self, request: &ValidatedRequest) -> Result<PoolAllocation, PoolError> {
        let waiting = self.state.wait_queue.waiting();
        let result = if waiting > 0 {
            Err(PoolError::WouldBlock { bytes: request.bytes, waiting })
        } else {
            self.state.attempt(request)
        };
        if result.is_err() {
            self.state.refused.fetch_add(1, Ordering::Relaxed);
        }
        Ok(zero_if_requested(result?, request.zeroed))
    }

    /// Allocates contiguous memory in a chunk of its own, whatever the length: pinned with it, unpinned when it returns, and
    /// charged to a tier. The static tier's users hold such memory as long as they exist.
    ///
    /// # Errors
    /// As for [`allocate`](Self::allocate).
    pub fn allocate_in(&self, tier: PinTier, request: &PoolRequest) -> Result<PoolBuffer, PoolError> {
        let contiguous = PoolRequest { shape: RequestShape::Contiguous, ..*request };
        let request = self.state.validate(&contiguous)?.in_own_chunk(tier);
        match self.attempt_in_turn(&request)? {
            PoolAllocation::Contiguous(buffer) => Ok(buffer),
            PoolAllocation::Scattered(_) => unreachable!("a chunk is contiguous"),
        }
    }

    /// Allocates `bytes` bytes in the dynamic tier, whatever the limits: pinned for one request.
    ///
    /// # Errors
    /// As for [`allocate`](Self::allocate).
    pub fn pin_for_request(&self, bytes: usize) -> Result<PoolBuffer, PoolError> {
        self.allocate_in(PinTier::Dynamic, &PoolRequest::bytes(bytes))
    }

    /// Returns the tier that serves a request of `bytes` bytes, if it has room.
    #[must_use]
    pub fn tier(&self, bytes: usize) -> PinTier {
        self.state.routing.tier(narrow(bytes.div_ceil(PAGE_BYTES).min(u32::MAX as usize)))
    }

    /// Returns the limits of the tiers, and their origin.
    #[must_use]
    pub fn tier_choice(&self) -> TierChoice {
        self.state.routing.choice
    }

    /// Allocates memory for a request; blocks this thread in the wait queue for at most `span`.
    ///
    /// # Errors
    /// [`PoolError::Timeout`] if it was not served in time; any other error says what to change.
    pub fn allocate_within(&self, request: &PoolRequest, span: Nanos) -> Result<PoolAllocation, PoolError> {
        match self.allocate(request) {
            Err(PoolError::WouldBlock { .. }) => self.enqueue(request)?.wait(span),
            other => other,
        }
    }

    /// Returns a future for the memory of a request. Dropping it cancels the request.
    pub fn allocate_async(&self, request: &PoolRequest) -> AllocationFuture {
        AllocationFuture::new(self.clone(), *request)
    }

    /// Enqueues a request in the wait queue and returns its waiter, to be polled. Dropping the waiter cancels the
    /// request.
    ///
    /// # Errors
    /// The request could never be served, or the pool is closed.
    pub fn enqueue(&self, request: &PoolRequest) -> Result<PoolWaiter, PoolError> {
        Ok(PoolWaiter::join(self.state, self.state.validate(request)?))
    }

    /// Changes the cap. If it is lowered, idle chunks are retired at once, the rest as their buffers return.
    ///
    /// # Errors
    /// More than the reserved address space, less than one granule, or more than may be pinned.
    pub fn set_cap(&self, cap: usize) -> Result<(), PoolError> {
        if !self.state.is_current_process() {
            return Err(PoolError::Forked);
        }
        let (least, most) = (self.config().granule(), self.config().cap_limit());
        if cap > most {
            return Err(PoolError::CapTooHigh { cap, max: most });
        }
        if cap < least {
            return Err(ConfigError::Cap { cap, min: least, max: most }.into());
        }
        self.config().pinner.preflight(cap)?;
        self.state.set_cap(cap);
        Ok(())
    }

    /// Charges memory pinned outside the pool's chunks against the cap for as long as the value lives.
    ///
    /// # Errors
    /// [`PoolError::WouldBlock`] if that would exceed the cap even without idle chunks; or more than the cap.
    pub fn charge(&self, tier: PinTier, bytes: usize) -> Result<CapCharge, PoolError> {
        CapCharge::take(self.state, tier, bytes)
    }

    /// Performs the time-based work: retires chunks idle for too long, empties unused caches, adapts m to the load.
    /// Call it a few times per idle time, from any thread; or see [`ticker`](Self::ticker).
    pub fn tick(&self, now: Nanos) {
        if self.state.is_current_process() {
            self.state.tick(now);
        }
    }

    /// Empties the threads' caches and retires every chunk without a buffer, regardless of its idle time: for callers
    /// under memory pressure. Returns the decrease of the pinned bytes.
    pub fn trim(&self) -> usize {
        if self.state.is_current_process() { self.state.trim() } else { 0 }
    }

    /// Starts a thread that ticks by the pool's clock, sixteen times per idle time, until the value is dropped.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn ticker(&self) -> std::io::Result<PoolTicker> {
        PoolTicker::start(self.clone())
    }

    /// Finds the node, chunk and buffer of an address. Returns `None` for memory outside the pool.
    #[must_use]
    pub fn lookup(&self, address: *const u8) -> Option<AddressLookup> {
        lookup::find(self.state, address)
    }

    /// Returns the device segment from an address to the end of its buffer. `None` for memory that is in no buffer of
    /// this pool. For callers that hold only addresses; a caller that holds a [`PoolBuffer`] lends it instead.
    #[must_use]
    pub fn segment(&self, address: *const u8) -> Option<DeviceSegment> {
        lookup::segment(self.state, address)
    }

    /// Returns the buffer [leaked](PoolBuffer::leak) at this address, with a length of all its pages.
    ///
    /// # Errors
    /// The address is outside the pool, inside a buffer, already freed, or of a buffer that was not leaked.
    pub fn adopt(&self, address: *const u8) -> Result<PoolBuffer, PoolError> {
        lookup::adopt(self.state, address)
    }

    /// Performs [`allocate`](Self::allocate) and [`leak`](PoolBuffer::leak) in one step, for callers that hold only
    /// addresses. The memory is contiguous, whatever the shape of the request.
    ///
    /// # Errors
    /// As for [`allocate`](Self::allocate).
    #[inline]
    pub fn allocate_raw(&self, request: &PoolRequest) -> Result<NonNull<u8>, PoolError> {
        if request.is_plain()
            && let Some((span, arena)) = self.state.take_cached(request.bytes)
        {
            return Ok(self.state.nodes[arena].table.leak(span));
        }
        self.allocate_raw_slow(request)
    }

    #[cold]
    fn allocate_raw_slow(&self, request: &PoolRequest) -> Result<NonNull<u8>, PoolError> {
        match self.allocate(&PoolRequest { shape: RequestShape::Contiguous, ..*request })? {
            PoolAllocation::Contiguous(buffer) => Ok(buffer.leak()),
            PoolAllocation::Scattered(_) => unreachable!("scatter/gather was not allowed"),
        }
    }

    /// Performs [`adopt`](Self::adopt) and drop in one step.
    ///
    /// # Errors
    /// As for [`adopt`](Self::adopt).
    #[inline]
    pub fn free_raw(&self, address: *const u8) -> Result<(), PoolError> {
        let (arena, span) = lookup::take(self.state, address)?;
        self.state.release(arena, span);
        Ok(())
    }

    /// Closes the pool, also if other handles exist: for callers that cannot drop theirs. Further requests are refused,
    /// waiters receive an error, and memory is released as its buffers return. Closing it again does nothing.
    pub fn close(&self) {
        self.state.close();
    }

    /// Returns the current statistics.
    #[must_use]
    pub fn statistics(&self) -> PoolStatistics {
        self.state.statistics()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} of {} bytes pinned)", self.state.budget.pinned(), self.state.budget.cap())
    }
}
