//! The static and the dynamic tier of an arena: a block of slots for small requests, and chunks of one owner each.
//!
//! Input: requests that are small or large. Output: spans. Invariant: the block is pinned with its first slot and stays
//! pinned as long as the pool is open; a chunk of one owner is pinned with its only span, and unpinned when that
//! returns.

use super::arena::{DeviceBindings, GrowError, NodeArena};
use super::budget::{PinBudget, PinTier};
use super::cache::CacheClass;
use super::config::PoolConfig;
use super::validated_request::ValidatedRequest;
use crate::buddy::{BuddyAllocator, PageRun};
use headwater_host::reservation::{PAGE_BYTES, PageSpan};
use headwater_host::width::narrow;

/// The slots of the static tier.
#[derive(Debug)]
pub(super) struct StaticBlock {
    run: PageRun,
    /// Free pages, by their distance from the first.
    buddy: BuddyAllocator<Vec<u64>>,
}

impl StaticBlock {
    fn new(run: PageRun) -> Self {
        let mut buddy = BuddyAllocator::new(run.pages);
        let freed = buddy.free(PageRun { first: 0, pages: run.pages });
        assert!(freed.is_ok(), "the pages of a new block are in use until they are freed");
        Self { run, buddy }
    }

    fn allocate(&mut self, pages: u32, align_pages: u32) -> Option<PageRun> {
        let run = self.buddy.allocate_aligned(pages, align_pages)?;
        Some(PageRun { first: self.run.first + run.first, pages: run.pages })
    }

    fn free(&mut self, run: PageRun) {
        let freed = self.buddy.free(PageRun { first: run.first - self.run.first, pages: run.pages });
        assert!(freed.is_ok(), "a slot is returned once");
    }
}

/// The state of the static tier on a node.
#[derive(Debug)]
pub(super) enum StaticState {
    /// No small request was made yet, or the cap had no room for the block.
    Unpinned,
    /// The block could not be pinned. Small requests are served as medium ones.
    Refused,
    /// The block is pinned.
    Pinned(StaticBlock),
}

impl NodeArena {
    /// Allocates a slot of the static tier. Returns `None` if no slot is free, or the block cannot be pinned.
    pub(super) fn static_slot(
        &mut self,
        request: &ValidatedRequest,
        config: &PoolConfig,
        budget: &PinBudget,
        bindings: &DeviceBindings,
    ) -> Option<PageSpan> {
        if matches!(self.static_state, StaticState::Unpinned) {
            self.pin_static_block(config, budget, bindings);
        }
        if request.align_pages == 1
            && let Some(class) = request.class
            && let Some(span) = self.take_deferred(class)
        {
            if self.has_static_slot(span.first()) {
                return Some(span);
            }
            // A small request that found no slot left pages of the pool here.
            self.defer_span(span);
        }
        let (pages, align) = (request.class_pages(), request.align_pages);
        self.static_run(pages, align).or_else(|| {
            let any = self.free_deferred();
            if any { self.static_run(pages, align) } else { None }
        })
    }

    /// Returns true if a page lies in the block of the static tier.
    fn has_static_slot(&self, page: u32) -> bool {
        match &self.static_state {
            StaticState::Pinned(block) => {
                (block.run.first..block.run.first + block.run.pages).contains(&page)
            }
            StaticState::Unpinned | StaticState::Refused => false,
        }
    }

    /// Allocates further slots of a class for a thread's cache.
    pub(super) fn more_static_slots(&mut self, class: CacheClass) -> Option<PageSpan> {
        self.static_run(class.pages(), 1)
    }

    fn static_run(&mut self, pages: u32, align_pages: u32) -> Option<PageSpan> {
        let StaticState::Pinned(block) = &mut self.static_state else { return None };
        let run = block.allocate(pages, align_pages)?;
        Some(self.claim(run))
    }

    fn pin_static_block(&mut self, config: &PoolConfig, budget: &PinBudget, bindings: &DeviceBindings) {
        let bytes = config.static_bytes;
        if !budget.reserve(PinTier::Static, bytes) {
            return;
        }
        let pages = narrow(bytes / PAGE_BYTES);
        self.static_state = match self.add_chunk(pages, 1, PinTier::Static, config, bindings) {
            Ok(run) => StaticState::Pinned(StaticBlock::new(run)),
            Err(error) => {
                budget.release(PinTier::Static, bytes);
                if matches!(error, GrowError::Full) { StaticState::Unpinned } else { StaticState::Refused }
            }
        };
    }

    /// Pins a chunk for one request alone, exactly as long as its pages.
    pub(super) fn own_chunk(
        &mut self,
        request: &ValidatedRequest,
        tier: PinTier,
        config: &PoolConfig,
        budget: &PinBudget,
        bindings: &DeviceBindings,
    ) -> Result<PageSpan, GrowError> {
        let bytes = request.pages as usize * PAGE_BYTES;
        if !budget.reserve(tier, bytes) {
            return Err(GrowError::Full);
        }
        match self.add_chunk(request.pages, request.align_pages, tier, config, bindings) {
            Ok(run) => {
                self.own_pages += u64::from(run.pages);
                Ok(self.claim(run))
            }
            Err(error) => {
                budget.release(tier, bytes);
                Err(error)
            }
        }
    }

    /// Frees a run of a chunk that is not the pool's. Returns false if it is.
    pub(super) fn free_in_tier(&mut self, run: PageRun) -> bool {
        let Some(tier) = self.chunks.at(run.first).map(|chunk| chunk.tier) else { return false };
        match (tier, &mut self.static_state) {
            (PinTier::Pool, _) => return false,
            (PinTier::Static, StaticState::Pinned(block))
                if block.run.first <= run.first && run.end() <= block.run.end() =>
            {
                block.free(run);
            }
            (PinTier::Static | PinTier::Dynamic, _) => self.unused.extend(self.chunks.id_at(run.first)),
        }
        self.chunks.mark_free(run);
        true
    }

    /// Unpins the chunks whose only span has returned.
    pub(super) fn retire_unused(&mut self, config: &PoolConfig, budget: &PinBudget) {
        while let Some(id) = self.unused.pop() {
            let Some(run) = self.chunks.run_of(id) else { continue };
            self.own_pages -= u64::from(run.pages);
            self.remove_chunk(id, run, config, budget);
        }
    }

    /// Returns the bytes of free slots of the static tier.
    pub(super) fn static_free_bytes(&self) -> u64 {
        match &self.static_state {
            StaticState::Pinned(block) => u64::from(block.buddy.free_pages()) * PAGE_BYTES as u64,
            StaticState::Unpinned | StaticState::Refused => 0,
        }
    }

    /// Unpins the block of the static tier if none of its slots is in use: the pool is closed.
    pub(super) fn retire_static(&mut self, config: &PoolConfig, budget: &PinBudget) {
        let StaticState::Pinned(block) = &self.static_state else { return };
        let run = block.run;
        if block.buddy.free_pages() == run.pages
            && let Some(id) = self.chunks.id_at(run.first)
        {
            self.static_state = StaticState::Refused;
            self.remove_chunk(id, run, config, budget);
        }
    }
}
