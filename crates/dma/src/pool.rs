//! The pool: memory that is pinned once and used many times.
//!
//! In: [`Request`]s. Out: [`Payload`]s, which go back by being dropped. Invariants: no byte is in two buffers; what is
//! pinned never passes the cap; nobody in line is overtaken; a buffer outlives the pool that made it.
//!
//! The order of trial: the thread's cache, a free run, several free runs if the request allows them, growth, growth in the
//! place of idle chunks, what the caches of other threads hold; then [`PoolError::WouldBlock`] or the line.
//!
//! # What this does not do
//! It starts no transfer, and reads no clock but the one it is configured with.

pub use budget::Tier;
pub use charge::Charge;
pub use config::{
    CAP_MAX, CHUNK_MAX, CHUNK_MIN, ChunkRule, ConfigError, PAPER_BLOCKS, PaperBlocks, PoolConfig, Sharing,
    TierBorders,
};
pub use error::PoolError;
pub use home::Home;
pub use lookup::{Lookup, PageState};
pub use pinner::{
    Grounds, Mlock, PinError, PinToken, Pinner, SharedRange, SharedRegion, SimulatedCosts, SimulatedPinner,
    Stuck, Time, Unpinned, UringBuffers, VfioType1,
};
pub use placement::{MachineNodes, NodeId, OneNode, PlaceError, Placement, usual_placement};
pub use process::PROCESS_CAP;
pub use request::{Request, Shape, Zeroed};
pub use statistics::{BUCKETS, Histogram, NodeStatistics, Statistics, Steps};
pub use ticker::Ticker;
pub use waiter::{Allocation, Waiter};

#[cfg(all(test, loom))]
mod models;

use crate::buffer::{Buffer, DeviceSegment, Payload};
use depot::Depot;
use headwater_host::clock::Nanos;
use headwater_host::reservation::Span;
use headwater_host::sync::Ordering;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use trial::finish;

pub mod calibration;
pub mod door;
pub mod dynamic;
pub mod staging;

mod arena;
mod aside;
mod budget;
mod cache;
mod charge;
mod chunks;
mod config;
mod decay;
mod depot;
mod error;
mod home;
mod line;
mod lookup;
mod pinner;
mod placement;
mod planner;
mod process;
mod request;
mod rule;
mod statistics;
mod threads;
mod ticker;
mod trial;
mod waiter;
mod want;

#[cfg(test)]
#[cfg(not(loom))]
mod door_tests;

/// A handle to a pool. Clones are handles to the same one; when the last is dropped the pool is closed: its memory goes as
/// its buffers come back, and who waits in line is told.
#[derive(Clone)]
pub struct Pool {
    depot: &'static Depot,
    _open: Arc<Open>,
}

/// Closes the pool when the last handle is gone.
struct Open(&'static Depot);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Pool {
    /// Opens a pool. Nothing is pinned before something is asked for.
    ///
    /// # Errors
    /// A configuration that contradicts itself, a pinner whose preflight finds the cap too high, or no addresses.
    pub fn open(config: PoolConfig) -> Result<Self, PoolError> {
        // Never freed, so that buffers need not count references to it: a few hundred bytes and the caches of threads.
        let depot: &'static Depot = Box::leak(Box::new(Depot::open(config)?));
        Ok(Self { depot, _open: Arc::new(Open(depot)) })
    }

    /// What the pool was opened with. The cap and m may have changed since: see [`statistics`](Self::statistics).
    #[must_use]
    pub fn config(&self) -> &PoolConfig {
        &self.depot.config
    }

    /// Memory for a request, now or not at all.
    ///
    /// # Errors
    /// [`PoolError::WouldBlock`] when it could be served later; any other error says what to change.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "a buffer that is returned through memory costs as much as finding it"
    )]
    pub fn allocate(&self, request: &Request) -> Result<Payload, PoolError> {
        if request.is_plain()
            && let Some((span, arena)) = self.depot.take_cached(request.bytes)
        {
            return Ok(Payload::Contiguous(Buffer::new(span, request.bytes, Home::new(self.depot, arena))));
        }
        self.allocate_shared(request)
    }

    /// `bytes` bytes in one piece, on a page: [`allocate`](Self::allocate) without the words.
    ///
    /// # Errors
    /// As for [`allocate`](Self::allocate).
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "a buffer that is returned through memory costs as much as finding it"
    )]
    pub fn buffer(&self, bytes: usize) -> Result<Buffer, PoolError> {
        let (span, arena) = match self.depot.take_cached(bytes) {
            Some(found) => found,
            None => self.span_shared(bytes)?,
        };
        Ok(Buffer::new(span, bytes, Home::new(self.depot, arena)))
    }

    #[cold]
    #[inline(never)]
    fn span_shared(&self, bytes: usize) -> Result<(Span, usize), PoolError> {
        if let Some(found) = self.depot.take_free_run(bytes) {
            return Ok(found);
        }
        match self.allocate_shared(&Request::bytes(bytes))? {
            Payload::Contiguous(buffer) => Ok(buffer.into_parts()),
            Payload::Scattered(_) => unreachable!("scatter/gather was not allowed"),
        }
    }

    #[cold]
    #[inline(never)]
    fn allocate_shared(&self, request: &Request) -> Result<Payload, PoolError> {
        let want = self.depot.judge(request)?;
        if let Some((span, arena)) = self.depot.take_cached_for(&want) {
            let buffer = Buffer::new(span, want.bytes, Home::new(self.depot, arena));
            return Ok(finish(Payload::Contiguous(buffer), want.zeroed));
        }
        let waiting = self.depot.line.waiting();
        let result = if waiting > 0 {
            Err(PoolError::WouldBlock { bytes: request.bytes, waiting })
        } else {
            self.depot.attempt(&want)
        };
        if result.is_err() {
            self.depot.refused.fetch_add(1, Ordering::Relaxed);
        }
        Ok(finish(result?, want.zeroed))
    }

    /// Memory for a request, on this thread, after waiting in line for at most `span`.
    ///
    /// # Errors
    /// [`PoolError::Timeout`] when the line did not move in time; any other error says what to change.
    pub fn allocate_within(&self, request: &Request, span: Nanos) -> Result<Payload, PoolError> {
        match self.allocate(request) {
            Err(PoolError::WouldBlock { .. }) => self.enqueue(request)?.wait(span),
            other => other,
        }
    }

    /// Memory for a request, as a future. Dropping it cancels the request.
    pub fn allocate_async(&self, request: &Request) -> Allocation {
        Allocation::new(self.clone(), *request)
    }

    /// A place in line for a request, to be asked now and then. Dropping it gives the place up.
    ///
    /// # Errors
    /// The request could never be served, or the pool is closed.
    pub fn enqueue(&self, request: &Request) -> Result<Waiter, PoolError> {
        Ok(Waiter::join(self.depot, self.depot.judge(request)?))
    }

    /// Changes the cap. A lower one takes effect as buffers come back; idle chunks go at once.
    ///
    /// # Errors
    /// More than addresses were reserved for, less than one granule of a chunk, or more than may be pinned.
    pub fn set_cap(&self, cap: usize) -> Result<(), PoolError> {
        if !self.depot.is_ours() {
            return Err(PoolError::Forked);
        }
        let (least, most) = (self.config().granule(), self.config().ceiling());
        if cap > most {
            return Err(PoolError::CapTooHigh { cap, most });
        }
        if cap < least {
            return Err(ConfigError::Cap { cap, least, most }.into());
        }
        self.config().pinner.preflight(cap)?;
        self.depot.recap(cap);
        Ok(())
    }

    /// Leave to pin memory outside of the pool's chunks, counted against the cap as long as the value lives.
    ///
    /// # Errors
    /// [`PoolError::WouldBlock`] when that would pass the cap, even without idle chunks; or more than the cap.
    pub fn charge(&self, tier: Tier, bytes: usize) -> Result<Charge, PoolError> {
        Charge::take(self.depot, tier, bytes)
    }

    /// Lets time have its effect: chunks that were idle for long are given back, caches that nobody uses are emptied, m
    /// follows the load. To be called a few times in each idle time, by anybody; or see [`ticker`](Self::ticker).
    pub fn tick(&self, now: Nanos) {
        if self.depot.is_ours() {
            self.depot.tick(now);
        }
    }

    /// Gives back every chunk in which no buffer is, the caches of threads emptied, however short it was idle: for owners
    /// that somebody else keeps short. Returns how many bytes are pinned less.
    pub fn trim(&self) -> usize {
        if self.depot.is_ours() { self.depot.trim() } else { 0 }
    }

    /// A thread that ticks by the pool's clock, sixteen times in each idle time, until the value is dropped.
    ///
    /// # Errors
    /// The system has no thread to give.
    pub fn ticker(&self) -> std::io::Result<Ticker> {
        Ticker::start(self.clone())
    }

    /// What an address is to the pool: the way from a pointer to its buffer. `None` for foreign memory.
    #[must_use]
    pub fn lookup(&self, address: *const u8) -> Option<Lookup> {
        lookup::find(self.depot, address)
    }

    /// Where a device finds the bytes from an address to the end of the buffer that it lies in. `None` for memory that is in no
    /// buffer of this pool's. For callers that know addresses only: whoever has a [`Buffer`] lends it.
    #[must_use]
    pub fn segment(&self, address: *const u8) -> Option<DeviceSegment> {
        lookup::segment(self.depot, address)
    }

    /// The buffer that was [given up](Buffer::leak) for this address, as long as its pages are.
    ///
    /// # Errors
    /// The address is foreign, inside of a buffer, freed before, or that of a buffer that was not given up.
    pub fn adopt(&self, address: *const u8) -> Result<Buffer, PoolError> {
        lookup::adopt(self.depot, address)
    }

    /// [`allocate`](Self::allocate) and [`leak`](Buffer::leak) in one step, for callers that know addresses only. One piece,
    /// whatever the request says of its shape.
    ///
    /// # Errors
    /// As for [`allocate`](Self::allocate).
    #[inline]
    pub fn allocate_raw(&self, request: &Request) -> Result<NonNull<u8>, PoolError> {
        if request.is_plain()
            && let Some((span, arena)) = self.depot.take_cached(request.bytes)
        {
            return Ok(self.depot.nodes[arena].table.leak(span));
        }
        self.allocate_raw_slowly(request)
    }

    #[cold]
    fn allocate_raw_slowly(&self, request: &Request) -> Result<NonNull<u8>, PoolError> {
        match self.allocate(&Request { shape: Shape::Contiguous, ..*request })? {
            Payload::Contiguous(buffer) => Ok(buffer.leak()),
            Payload::Scattered(_) => unreachable!("scatter/gather was not allowed"),
        }
    }

    /// [`adopt`](Self::adopt) and drop in one step.
    ///
    /// # Errors
    /// As for [`adopt`](Self::adopt).
    #[inline]
    pub fn free_raw(&self, address: *const u8) -> Result<(), PoolError> {
        let (arena, span) = lookup::take(self.depot, address)?;
        self.depot.give_back(arena, span);
        Ok(())
    }

    /// Closes the pool, whatever handles there are: for callers that cannot drop theirs. Nothing is allocated any more, who
    /// waits in line is told, and memory goes as its buffers come back. Closing it again does nothing.
    pub fn close(&self) {
        self.depot.close();
    }

    /// Numbers of this moment.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.depot.statistics()
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} of {} bytes pinned)", self.depot.budget.pinned(), self.depot.budget.cap())
    }
}
