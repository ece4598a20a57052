//! The state that all handles and buffers of a pool share: arenas, caches, the wait queue and the budget.
//!
//! Input: requests, returned spans. Output: payloads. The state is never freed, so a buffer refers to it without a
//! reference count; when its pool is closed it releases its memory, chunk by chunk as the last buffers return.
//!
//! Lock order: the wait queue, then a thread's cache, then an arena; one arena at a time. Code inside a cache visit
//! takes no lock.
//!
//! Allocation is in `allocate`, release in `release`.

use super::arena::{DeviceBindings, NodeArena};
use super::budget::{PinBudget, PinTier};
use super::cache::ThreadCache;
use super::cache_quota::CacheQuota;
use super::charge::CapCharge;
use super::chunk_sizing::ChunkSizing;
use super::config::PoolConfig;
use super::error::PoolError;
use super::placement::NodeId;
use super::request::PoolRequest;
use super::statistics::TierCounts;
use super::thread_caches::{ThreadSlot, with_cache};
use super::tier_routing::TierRouting;
use super::validated_request::{RequestLimits, ValidatedRequest};
use super::wait_queue::WaitQueue;
use crate::buffer::PoolAllocation;
use headwater_host::biased_lock::BiasedLock;
use headwater_host::fork::ProcessGeneration;
use headwater_host::reservation::{PAGE_BYTES, PageSpan, PageTable};
use headwater_host::sync::{AtomicU64, AtomicUsize, Mutex, MutexGuard};
use headwater_host::width::to_usize;
use std::sync::PoisonError;

/// The outcome that a waiter receives.
pub(super) type AllocationResult = Result<PoolAllocation, PoolError>;

/// A request in the wait queue.
#[derive(Clone, Copy, Debug)]
pub(super) enum WaitRequest {
    /// For memory.
    Memory(ValidatedRequest),
    /// For a part of the cap, of this many bytes, to pin the caller's memory in place.
    Charge(PinTier, usize),
}

impl WaitRequest {
    /// Returns the bytes that it is for.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Memory(request) => request.bytes,
            Self::Charge(_, bytes) => *bytes,
        }
    }
}

/// The grant of a request in the wait queue.
#[derive(Debug)]
pub(super) enum WaitGrant {
    /// Memory.
    Memory(PoolAllocation),
    /// A part of the cap.
    Charge(CapCharge),
}

/// The state of a pool on one node.
pub(super) struct NodeState {
    pub(super) id: NodeId,
    /// `None` once the pool is closed and the last buffer is back.
    pub(super) arena: Mutex<Option<NodeArena>>,
    pub(super) table: PageTable,
    pub(super) bindings: DeviceBindings,
    /// Node indices, the closest to this node first.
    pub(super) by_distance: Vec<usize>,
}

/// The shared state of a pool.
pub(super) struct PoolState {
    generation: ProcessGeneration,
    /// True if threads may have caches.
    pub(super) caches_enabled: bool,
    pub(super) config: PoolConfig,
    pub(super) routing: TierRouting,
    pub(super) nodes: Box<[NodeState]>,
    slots: Mutex<ThreadSlots>,
    pub(super) wait_queue: WaitQueue<WaitRequest, Result<WaitGrant, PoolError>>,
    pub(super) budget: PinBudget,
    /// The parts of the limit for all caches.
    pub(super) quota: CacheQuota,
    /// The size m of the next chunk.
    pub(super) chunk_bytes: AtomicUsize,
    pub(super) chunk_sizing: Mutex<ChunkSizing>,
    pub(super) quarantined_bytes: AtomicU64,
    pub(super) quarantined_buffers: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) waited: AtomicU64,
    pub(super) imported: AtomicU64,
}

#[derive(Default)]
struct ThreadSlots {
    all: Vec<&'static ThreadSlot>,
    /// Slots whose threads have ended.
    spare: Vec<&'static ThreadSlot>,
}

pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PoolState {
    pub(super) fn open(config: PoolConfig) -> Result<Self, PoolError> {
        config.check()?;
        let routing = TierRouting::of(&config)?;
        config.pinner.preflight(config.cap)?;
        let ids = config.placement.nodes();
        let nodes = ids.iter().map(|&id| {
            let (arena, table, bindings) = NodeArena::open(&config, id)?;
            let mut by_distance: Vec<usize> = (0..ids.len()).collect();
            by_distance.sort_by_key(|&other| config.placement.distance(id, ids[other]));
            Ok(NodeState { id, arena: Mutex::new(Some(arena)), table, bindings, by_distance })
        });
        Ok(Self {
            generation: ProcessGeneration::current(),
            caches_enabled: config.cache_per_mille > 0,
            nodes: nodes.collect::<Result<_, PoolError>>()?,
            slots: Mutex::new(ThreadSlots::default()),
            wait_queue: WaitQueue::new(),
            budget: PinBudget::new(config.cap),
            quota: CacheQuota::new(),
            chunk_bytes: AtomicUsize::new(config.chunk),
            chunk_sizing: Mutex::new(ChunkSizing::new(config.chunk_rule)),
            quarantined_bytes: AtomicU64::new(0),
            quarantined_buffers: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            waited: AtomicU64::new(0),
            imported: AtomicU64::new(0),
            routing,
            config,
        })
    }

    /// Returns true if the calling process may use the pool.
    #[inline]
    pub(super) fn is_current_process(&self) -> bool {
        self.generation.is_current()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.wait_queue.is_closed()
    }

    /// Validates a request: refuses one that could never be served.
    pub(super) fn validate(&self, request: &PoolRequest) -> Result<ValidatedRequest, PoolError> {
        if !self.is_current_process() {
            return Err(PoolError::Forked);
        }
        if self.is_closed() {
            return Err(PoolError::Closed);
        }
        let limits = RequestLimits {
            align_max: self.config.align_max(),
            bytes_max: self.budget.request_max(),
            routing: self.routing,
        };
        ValidatedRequest::validate(request, limits, |node| {
            self.nodes.iter().position(|known| known.id == node)
        })
    }

    pub(super) fn idle_bytes(&self, node: &NodeState) -> usize {
        let pages = self.with_arena(node, |arena| arena.chunks.empty_pages()).unwrap_or(0);
        to_usize(pages).saturating_mul(PAGE_BYTES)
    }

    /// Unpins empty chunks of a node that `choose` selects. Returns the bytes unpinned.
    pub(super) fn retire(
        &self,
        node: &NodeState,
        bytes_max: usize,
        choose: impl FnMut(Option<headwater_host::clock::Nanos>, usize) -> bool,
    ) -> usize {
        let mut guard = locked(&node.arena);
        guard.as_mut().map_or(0, |arena| arena.retire(bytes_max, &self.config, &self.budget, choose))
    }

    /// Runs `with_arena` on a node's arena, with deferred spans merged, if it still exists.
    pub(super) fn with_arena<R>(
        &self,
        node: &NodeState,
        look: impl FnOnce(&mut NodeArena) -> R,
    ) -> Option<R> {
        let mut guard = locked(&node.arena);
        let arena = guard.as_mut()?;
        arena.free_deferred();
        Some(look(arena))
    }

    /// Returns the index of the arena closest to the calling thread.
    pub(super) fn nearest_arena(&self) -> usize {
        if self.nodes.len() == 1 {
            return 0;
        }
        let node = self.config.placement.current();
        self.nodes.iter().position(|known| known.id == node).unwrap_or(0)
    }

    /// Takes the spans in the caches of all threads. Returns true if there were any.
    pub(super) fn drain_caches(&self, which: CacheSelection) -> bool {
        let mut any = false;
        let slots = locked(&self.slots).all.clone();
        for slot in slots {
            let mut spans = Vec::new();
            let visited = slot.0.with_value(|cache| {
                let arena = cache.arena();
                if which == CacheSelection::Idle && !cache.take_idle() {
                    return (arena, None);
                }
                (arena, cache.drain_all(arena, &mut spans))
            });
            // Where the kernel refuses the fence, only the owner thread can access its cache until it ends.
            let Ok((arena, quota)) = visited else { continue };
            self.quota.end(quota);
            any |= !spans.is_empty();
            self.release_without_serving(arena, spans);
        }
        any
    }

    /// Takes from every cache what it has above an equal share of the limit, if this cache has less than a share and
    /// the number of caches changed since it asked last.
    pub(super) fn level_caches(&'static self) {
        let share = with_cache(self, |cache| {
            let sharing = self.quota.sharing();
            let share = self.cache_limit() / sharing;
            (cache.quota() < share && cache.note_question(sharing)).then_some(share)
        });
        let Some(share) = share.flatten() else { return };
        let slots = locked(&self.slots).all.clone();
        for slot in slots {
            let mut spans = Vec::new();
            let visited = slot.0.with_value(|cache| (cache.arena(), cache.shrink_to(share, &mut spans)));
            // As in `drain_caches`.
            let Ok((arena, bytes)) = visited else { continue };
            self.quota.shrink(bytes);
            // A request may have begun to wait while these spans were in no cache and not free.
            self.release_spans(arena, spans);
        }
    }

    /// Returns the limit for all caches together, in bytes.
    pub(super) fn cache_limit(&self) -> usize {
        self.budget.cap() / 1_000 * self.config.cache_per_mille as usize
    }

    /// Returns a cache slot for a new thread.
    pub(super) fn acquire_slot(&self) -> &'static ThreadSlot {
        let here = self.nearest_arena();
        let mut slots = locked(&self.slots);
        slots.spare.pop().unwrap_or_else(|| {
            let slot: &'static ThreadSlot =
                Box::leak(Box::new(ThreadSlot(BiasedLock::new(ThreadCache::new(here)))));
            slots.all.push(slot);
            slot
        })
    }

    /// Takes back the slot of a thread that ends, and its spans.
    pub(super) fn release_slot(
        &'static self,
        slot: &'static ThreadSlot,
        arena: usize,
        quota: Option<usize>,
        spans: Vec<PageSpan>,
    ) {
        if !self.is_current_process() {
            return;
        }
        self.quota.end(quota);
        locked(&self.slots).spare.push(slot);
        self.release_spans(arena, spans);
    }

    /// Returns the bytes in caches and the requests served by them.
    pub(super) fn cached(&self) -> (u64, u64) {
        let slots = locked(&self.slots).all.clone();
        let of = |slot: &ThreadSlot| {
            slot.0.with_value(|cache| (cache.bytes() as u64, cache.hits())).unwrap_or((0, 0))
        };
        slots.into_iter().map(of).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// Returns the bytes in use, over all nodes: of all tiers, and of chunks of one owner alone.
    pub(super) fn in_use(&self) -> (u64, u64) {
        let claimed = |node: &NodeState| {
            self.with_arena(node, |arena| (u64::from(arena.reservation.claimed_pages()), arena.own_pages))
        };
        let sum = |sum: (u64, u64), one: (u64, u64)| (sum.0 + one.0, sum.1 + one.1);
        let (all, own) = self.nodes.iter().filter_map(claimed).fold((0, 0), sum);
        let page = PAGE_BYTES as u64;
        ((all * page).saturating_sub(self.cached().0), own * page)
    }

    /// Returns the requests that the caches of all threads served, by tier.
    pub(super) fn cached_by_tier(&self) -> TierCounts {
        let slots = locked(&self.slots).all.clone();
        let (mut small, mut all) = (0, 0);
        for slot in slots {
            let hits = slot.0.with_value(|cache| (cache.hits_up_to(self.routing.small_pages), cache.hits()));
            let (few, every) = hits.unwrap_or((0, 0));
            (small, all) = (small + few, all + every);
        }
        TierCounts { served: [small, all - small, 0], ..TierCounts::default() }
    }

    /// Closes the pool: waiters receive an error, and memory is released as soon as it is not in use.
    pub(super) fn close(&'static self) {
        if !self.is_current_process() {
            return;
        }
        self.wait_queue.close();
        self.drain_caches(CacheSelection::All);
        self.serve_waiters();
        self.release_memory();
    }

    pub(super) fn release_memory(&self) {
        for node in &self.nodes {
            let mut guard = locked(&node.arena);
            let Some(arena) = guard.as_mut() else { continue };
            arena.retire(usize::MAX, &self.config, &self.budget, |_, _| true);
            arena.retire_static(&self.config, &self.budget);
            if arena.chunks.count() == 0 {
                *guard = None;
            }
        }
    }

    /// Charges bytes of another tier against the cap, after retiring idle chunks if necessary. Returns false if the cap
    /// does not allow them.
    pub(super) fn charge(&'static self, tier: PinTier, bytes: usize) -> bool {
        if self.budget.reserve(tier, bytes) {
            return true;
        }
        self.drain_caches(CacheSelection::All);
        for node in &self.nodes {
            let missing = bytes.saturating_sub(self.budget.left());
            self.retire(node, missing, |_, _| true);
        }
        self.budget.reserve(tier, bytes)
    }
}

/// A selection of caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheSelection {
    /// All caches.
    All,
    /// Caches without a hit since the last check.
    Idle,
}
