//! Time-based work of a pool: retires idle memory and adapts m to the load. Also changes of the cap, and statistics.
//!
//! Input: times. Output: chunks unpinned, caches emptied. Invariant: a chunk is retired only after every tick of a
//! whole idle time saw it empty; then each tick retires half of the chunks that are due, and all of them before twice
//! the idle time is over. The configured minimum of idle bytes stays.

use super::state::{CacheSelection, NodeState, PoolState};
use super::statistics::{NodeStatistics, PoolStatistics, ServeCounts};
use super::{DurationHistogram, PinTier};
use headwater_host::clock::Nanos;
use headwater_host::reservation::{Backing, PAGE_BYTES};
use headwater_host::sync::Ordering;
use headwater_host::width::to_usize;
use std::sync::PoisonError;

impl PoolState {
    /// Performs one tick.
    pub(super) fn tick(&'static self, now: Nanos) {
        let (in_use, own) = self.in_use();
        // A large request gets a chunk of its own size, whatever m is.
        let load = in_use.saturating_sub(own);
        let chunk = self.chunk_sizing.lock().unwrap_or_else(PoisonError::into_inner).sample(load);
        if let Some(chunk) = chunk {
            self.chunk_bytes.store(chunk, Ordering::Relaxed);
        }
        self.drain_caches(CacheSelection::Idle);
        let floor = self.config.min_idle / self.nodes.len();
        for node in &self.nodes {
            self.decay(node, now, floor);
        }
        self.serve_waiters();
    }

    fn decay(&self, node: &NodeState, now: Nanos, floor: usize) {
        let idle = self.config.idle;
        let overdue = Nanos(idle.0.saturating_add(idle.0 / 4 * 3));
        let due = self.with_arena(node, |arena| {
            arena.chunks.stamp_empty(now);
            let ages = arena.chunks.empty().filter_map(|(_, chunk)| chunk.empty_since);
            let (mut due, mut over) = (0_usize, 0);
            for age in ages.map(|since| now.since(since)) {
                due += usize::from(age >= idle);
                over += usize::from(age >= overdue);
            }
            let idle_pages = to_usize(arena.chunks.empty_pages());
            (due.div_ceil(2).max(over), idle_pages.saturating_mul(PAGE_BYTES))
        });
        let Some((mut count, idle_bytes)) = due else { return };
        let mut spare = idle_bytes.saturating_sub(floor);
        if count == 0 || spare == 0 {
            return;
        }
        self.retire(node, usize::MAX, |since, bytes| {
            let goes = count > 0 && bytes <= spare && since.is_some_and(|since| now.since(since) >= idle);
            if goes {
                count -= 1;
                spare -= bytes;
            }
            goes
        });
    }

    /// Empties the caches and unpins every empty chunk. Returns the decrease of the pinned bytes.
    pub(super) fn trim(&'static self) -> usize {
        let before = self.budget.pinned();
        self.drain_caches(CacheSelection::All);
        for node in &self.nodes {
            self.retire(node, usize::MAX, |_, _| true);
        }
        before.saturating_sub(self.budget.pinned())
    }

    /// Changes the cap, and unpins idle chunks as far as the cap is exceeded.
    pub(super) fn set_cap(&'static self, cap: usize) {
        self.budget.set_cap(cap);
        if self.budget.pinned() > cap {
            self.drain_caches(CacheSelection::All);
        }
        for node in &self.nodes {
            let over = self.budget.pinned().saturating_sub(cap);
            self.retire(node, over, |_, _| true);
        }
        self.serve_waiters();
    }

    /// Returns the current statistics.
    pub(super) fn statistics(&self) -> PoolStatistics {
        let (cached_bytes, hits) = self.cached();
        let mut steps = ServeCounts { cache: hits, ..ServeCounts::default() };
        let mut pinning = DurationHistogram::default();
        let (mut grown_chunks, mut retired_chunks, mut static_free_bytes) = (0, 0, 0);
        let mut tiers = self.cached_by_tier();
        tiers.imported = self.imported.load(Ordering::Relaxed);
        let nodes = self.nodes.iter().filter_map(|node| {
            self.with_arena(node, |arena| {
                steps.add(arena.steps);
                pinning.add(&arena.pinning);
                grown_chunks += arena.grown;
                retired_chunks += arena.retired;
                tiers.add(arena.tiers);
                static_free_bytes += arena.static_free_bytes();
                node_statistics(node, arena)
            })
        });
        let nodes = nodes.collect();
        steps.waited = self.waited.load(Ordering::Relaxed);
        PoolStatistics {
            cap_bytes: self.budget.cap() as u64,
            chunk_bytes: self.chunk_bytes.load(Ordering::Relaxed) as u64,
            tier_bytes: PinTier::ALL.map(|tier| self.budget.pinned_by(tier) as u64),
            tier_choice: self.routing.choice,
            tiers,
            static_free_bytes,
            in_use_bytes: self.in_use().0,
            cached_bytes,
            quarantined_bytes: self.quarantined_bytes.load(Ordering::Relaxed),
            quarantined_buffers: self.quarantined_buffers.load(Ordering::Relaxed),
            stuck_bytes: self.budget.lost() as u64,
            steps,
            refused: self.refused.load(Ordering::Relaxed),
            pinning,
            grown_chunks,
            retired_chunks,
            waiting: self.wait_queue.waiting(),
            cancelled: self.wait_queue.cancelled(),
            nodes,
        }
    }
}

fn node_statistics(node: &NodeState, arena: &super::arena::NodeArena) -> NodeStatistics {
    let bytes = |pages: u64| pages * PAGE_BYTES as u64;
    let largest = arena.buddy.free_runs().map(|run| run.pages).max().unwrap_or(0);
    NodeStatistics {
        node: node.id,
        chunks: arena.chunks.count(),
        pinned_bytes: bytes(arena.chunks.pages()),
        empty_bytes: bytes(arena.chunks.empty_pages()),
        free_bytes: bytes(u64::from(arena.buddy.free_pages())),
        largest_free_bytes: bytes(u64::from(largest)),
        backing_bytes: Backing::ALL.map(|backing| bytes(arena.chunks.pages_of(backing))),
    }
}
