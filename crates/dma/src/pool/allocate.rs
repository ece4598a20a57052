//! Allocation attempts: the order in which sources of memory are tried.
//!
//! Input: a [`ValidatedRequest`]. Output: a payload, or the reason why there is none now. The request's tier; then a free run,
//! several free runs, growth, growth after retiring idle chunks, the caches of other threads; node by node, the closest
//! first. Invariant: nothing here waits, and a node that refuses does not keep the next one from being tried.

use super::arena::{GrowError, NodeArena};
use super::budget::PinTier;
use super::cache::CacheClass;
use super::error::PoolError;
use super::release::ReleaseTarget;
use super::request::ZeroPolicy;
use super::state::{AllocationResult, CacheSelection, NodeState, PoolState, locked};
use super::thread_caches::{try_cache, with_cache};
use super::validated_request::{ChunkUse, ValidatedRequest};
use crate::buffer::{PoolAllocation, PoolBuffer, ScatteredBuffer};
use headwater_host::reservation::PageSpan;
use headwater_host::sync::Ordering;

/// Maximum number of extra spans that a miss takes for the cache.
const EXTRA_MAX: usize = 7;

impl PoolState {
    /// Takes a span for `bytes` bytes from the calling thread's cache, and returns it with its arena: the fast path.
    #[inline]
    pub(super) fn take_cached(&'static self, bytes: usize) -> Option<(PageSpan, usize)> {
        let class = CacheClass::serving(bytes)?;
        if !self.is_current_process() {
            return None;
        }
        try_cache(self, |cache| Some((cache.pop(class)?, cache.arena())))?
    }

    /// Takes a cached span for a request, also if this pool's cache is not the thread's last used one.
    pub(super) fn take_cached_for(&'static self, request: &ValidatedRequest) -> Option<(PageSpan, usize)> {
        let class = request.class.filter(|_| self.caches_enabled)?;
        with_cache(self, |cache| {
            let arena = cache.arena();
            if request.arena.is_some_and(|wanted| wanted != arena) {
                return None;
            }
            Some((cache.pop_near(class)?, arena))
        })?
    }

    /// Takes a free run of the closest arena for `bytes` bytes, if the pool has no caches and no request waits: only
    /// the first step of an allocation.
    pub(super) fn take_free_run(&'static self, bytes: usize) -> Option<(PageSpan, usize)> {
        let class = CacheClass::serving(bytes)?;
        if self.caches_enabled
            || self.wait_queue.pressure()
            || !self.is_current_process()
            || self.routing.tier(class.pages()) != PinTier::Pool
        {
            return None;
        }
        let here = self.nearest_arena();
        let mut guard = locked(&self.nodes[here].arena);
        let arena = guard.as_mut()?;
        let span = arena.contiguous(class.pages(), 1)?;
        arena.steps.contiguous += 1;
        arena.tiers.count(PinTier::Pool, PinTier::Pool);
        Some((span, here))
    }

    /// Serves a request without waiting and without regard to waiting requests.
    pub(super) fn attempt(&'static self, request: &ValidatedRequest) -> AllocationResult {
        let here = self.nearest_arena();
        let only = request.arena.unwrap_or(here);
        let order = match request.arena {
            Some(_) => std::slice::from_ref(&only),
            None => self.nodes[here].by_distance.as_slice(),
        };
        let (mut refusal, mut full) = (None, false);
        for round in 0..2 {
            for &index in order {
                match self.attempt_on_node(index, request) {
                    Ok(payload) => return Ok(payload),
                    Err(GrowError::Refused(error)) => refusal = Some(error),
                    Err(GrowError::Full) => full = true,
                }
            }
            if let Some(payload) = self.attempt_after_retiring(order, request) {
                return Ok(payload);
            }
            if round == 0 && !self.drain_caches(CacheSelection::All) {
                break;
            }
        }
        let waiting = self.wait_queue.waiting();
        // If at least one node is only full, waiting helps even if other nodes refuse.
        Err(refusal.filter(|_| !full).unwrap_or(PoolError::WouldBlock { bytes: request.bytes, waiting }))
    }

    fn attempt_on_node(
        &'static self,
        index: usize,
        request: &ValidatedRequest,
    ) -> Result<PoolAllocation, GrowError> {
        let class = request.class.filter(|_| self.caches_enabled);
        let room = class.map_or(0, |class| self.cache_room(class, index));
        let mut extra = Vec::with_capacity(room);
        let node = &self.nodes[index];
        let mut guard = locked(&node.arena);
        let arena = guard.as_mut().ok_or(GrowError::Refused(PoolError::Closed))?;
        let (served, by) = self.serve_on_node(node, arena, request)?;
        arena.tiers.count(request.tier(), by);
        if let Some(class) = class {
            let more = |arena: &mut NodeArena| match by {
                PinTier::Static => arena.more_static_slots(class),
                PinTier::Pool | PinTier::Dynamic => arena.contiguous(class.pages(), 1),
            };
            extra.extend((0..room).map_while(|_| more(arena)));
        }
        drop(guard);
        if let Some(class) = class {
            extra.into_iter().for_each(|span| self.cache_span(index, class, span));
        }
        Ok(self.payload(served, request.bytes, index))
    }

    /// Serves a request from one arena, with the tier that served it.
    fn serve_on_node(
        &self,
        node: &NodeState,
        arena: &mut NodeArena,
        request: &ValidatedRequest,
    ) -> Result<(ServedSpans, PinTier), GrowError> {
        let (config, budget) = (&self.config, &self.budget);
        let own = |arena: &mut NodeArena, tier| {
            let span = arena.own_chunk(request, tier, config, budget, &node.bindings)?;
            arena.steps.grown += 1;
            Ok((ServedSpans::Own(span), tier))
        };
        match request.chunk_use {
            ChunkUse::Own(tier) => return own(arena, tier),
            ChunkUse::OwnPreferred => {
                return own(arena, PinTier::Dynamic).or_else(|error| {
                    let served = arena.serve(request).ok_or(error)?;
                    Ok((served, PinTier::Pool))
                });
            }
            ChunkUse::StaticSlot => {
                if let Some(span) = arena.static_slot(request, config, budget, &node.bindings) {
                    arena.steps.contiguous += 1;
                    return Ok((ServedSpans::One(span), PinTier::Static));
                }
            }
            ChunkUse::Pooled => {}
        }
        if let Some(served) = arena.serve(request) {
            return Ok((served, PinTier::Pool));
        }
        let chunk = self.chunk_bytes.load(Ordering::Relaxed);
        arena.grow(request, chunk, config, budget, &node.bindings)?;
        arena.steps.grown += 1;
        // The chunk has at least the requested pages, contiguous.
        let served = arena.serve_grown(request).ok_or(GrowError::Full)?;
        Ok((served, PinTier::Pool))
    }

    /// Unpins idle chunks of any node if that makes room for the request, and grows.
    fn attempt_after_retiring(
        &'static self,
        order: &[usize],
        request: &ValidatedRequest,
    ) -> Option<PoolAllocation> {
        let bytes = request.pin_bytes(self.config.granule());
        let idle: usize = self.nodes.iter().map(|node| self.idle_bytes(node)).sum();
        let missing = bytes.saturating_sub(self.budget.left());
        if missing == 0 || missing > idle {
            return None;
        }
        let mut back = 0;
        for node in &self.nodes {
            back += self.retire(node, missing.saturating_sub(back), |_, _| true);
        }
        order.iter().find_map(|&index| self.attempt_on_node(index, request).ok())
    }

    fn payload(&'static self, served: ServedSpans, bytes: usize, arena: usize) -> PoolAllocation {
        let home = ReleaseTarget::new(self, arena);
        match served {
            ServedSpans::Own(span) => {
                PoolAllocation::Contiguous(PoolBuffer::new(span, bytes, home.of_own_chunk()))
            }
            ServedSpans::One(span) => PoolAllocation::Contiguous(PoolBuffer::new(span, bytes, home)),
            ServedSpans::Several(spans) => {
                PoolAllocation::Scattered(ScatteredBuffer::new(spans, bytes, home))
            }
        }
    }

    /// Returns the number of spans of a class that this thread's cache would keep beside one, at most a batch.
    fn cache_room(&'static self, class: CacheClass, arena: usize) -> usize {
        if self.wait_queue.pressure() {
            return 0;
        }
        let wanted = (class.batch() - 1).min(EXTRA_MAX);
        let bytes = wanted * class.bytes();
        let here = self.nearest_arena();
        let room = with_cache(self, |cache| {
            if cache.arena() != arena && arena == here {
                // The thread has moved to another node since its cache was created.
                cache.move_to_arena(arena);
            }
            if cache.arena() != arena {
                return 0;
            }
            if cache.room() < bytes {
                self.raise_quota(cache, bytes);
            }
            cache.room() / class.bytes()
        });
        room.unwrap_or(0).min(wanted)
    }
}

/// Spans allocated for a request.
#[derive(Debug)]
pub(super) enum ServedSpans {
    One(PageSpan),
    /// All pages of a chunk that serves nothing else.
    Own(PageSpan),
    Several(Vec<PageSpan>),
}

impl NodeArena {
    /// Allocates free memory in the requested shape.
    #[inline]
    fn serve(&mut self, request: &ValidatedRequest) -> Option<ServedSpans> {
        if let Some(span) = self.contiguous(request.class_pages(), request.align_pages) {
            self.steps.contiguous += 1;
            return Some(ServedSpans::One(span));
        }
        self.serve_slow(request)
    }

    #[cold]
    fn serve_slow(&mut self, request: &ValidatedRequest) -> Option<ServedSpans> {
        if self.free_deferred()
            && let Some(span) = self.contiguous(request.class_pages(), request.align_pages)
        {
            self.steps.contiguous += 1;
            return Some(ServedSpans::One(span));
        }
        if let Some(span) = self.contiguous_across_blocks(request.pages, request.align_pages) {
            self.steps.contiguous += 1;
            return Some(ServedSpans::One(span));
        }
        let spans = self.scattered(request)?;
        self.steps.scattered += 1;
        Some(ServedSpans::Several(spans))
    }

    /// Allocates from a chunk that has just been added; the caller counts it as growth.
    fn serve_grown(&mut self, request: &ValidatedRequest) -> Option<ServedSpans> {
        let span = self.contiguous(request.class_pages(), request.align_pages);
        span.or_else(|| self.contiguous_across_blocks(request.pages, request.align_pages))
            .map(ServedSpans::One)
    }
}

/// Fills the payload with zeroes if the request asked for them.
#[inline]
pub(super) fn zero_if_requested(mut payload: PoolAllocation, zeroed: ZeroPolicy) -> PoolAllocation {
    if zeroed == ZeroPolicy::Yes {
        payload.pieces_mut().for_each(|piece| piece.fill(0));
    }
    payload
}
