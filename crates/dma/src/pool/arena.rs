//! The memory of one node: its address space, the chunks in it, and one buddy allocator over all of it.
//!
//! Input: page requests, returned spans. Output: spans. Pages outside any chunk are in use for the buddy, so free runs
//! of adjacent chunks merge automatically. Invariant: a page is free in the buddy exactly when it is committed, pinned
//! and not claimed. Deferred spans count as claimed.
//!
//! # What this does not do
//! It decides nothing about caches, waiters or other nodes, and takes no lock itself.

use super::arena_tiers::StaticState;
use super::budget::{PinBudget, PinTier};
use super::cache::CacheClass;
use super::chunks::{ChunkId, ChunkTable, PinnedChunk};
use super::config::{PoolConfig, PoolSharing};
use super::deferred::DeferredSpans;
use super::error::PoolError;
use super::pinner::{NodeRange, PinToken};
use super::placement::NodeId;
use super::planner;
use super::statistics::{DurationHistogram, ServeCounts, TierCounts};
use super::validated_request::ValidatedRequest;
use crate::buddy::{BuddyAllocator, PageRun};
use headwater_host::clock::Nanos;
use headwater_host::reservation::{
    Backing, BackingOrder, CommitError, PAGE_BYTES, PageSpan, PageTable, Reservation,
};
use headwater_host::sync::{AtomicU64, Ordering};
use headwater_host::width::narrow;

/// Device addresses of each granule. Written before the first buffer of a chunk is handed out and read by the holder of
/// such a buffer, so the lock of the arena orders the two.
#[derive(Debug)]
pub(super) struct DeviceBindings {
    granule_pages: u32,
    /// Device address of the granule plus one; 0 for none.
    iova: Box<[AtomicU64]>,
    /// Upper half: the chunk's registered buffer number plus one; lower half: index of the granule in the chunk; 0 for
    /// none.
    slot: Box<[AtomicU64]>,
}

impl DeviceBindings {
    fn new(granules: u32, granule_pages: u32) -> Self {
        let zeroes = || (0..granules).map(|_| AtomicU64::new(0)).collect();
        Self { granule_pages, iova: zeroes(), slot: zeroes() }
    }

    /// Returns the device address of a page.
    pub(super) fn iova(&self, page: u32) -> Option<u64> {
        let base = self.iova.get((page / self.granule_pages) as usize)?.load(Ordering::Relaxed);
        let within = u64::from(page % self.granule_pages) * PAGE_BYTES as u64;
        base.checked_sub(1).map(|base| base + within)
    }

    /// Returns the registered buffer number of a page's range, and the byte offset of the page in it.
    pub(super) fn slot(&self, page: u32) -> Option<(u32, usize)> {
        let word = self.slot.get((page / self.granule_pages) as usize)?.load(Ordering::Relaxed);
        let slot = u32::try_from(word >> 32).ok()?.checked_sub(1)?;
        let granule = u32::try_from(word & u64::from(u32::MAX)).ok()?;
        let pages = granule as usize * self.granule_pages as usize + (page % self.granule_pages) as usize;
        Some((slot, pages * PAGE_BYTES))
    }

    fn bind_chunk(&self, chunk: PageRun, iova: Option<u64>, slot: Option<u32>) {
        let first = chunk.first / self.granule_pages;
        for granule in 0..chunk.pages.div_ceil(self.granule_pages) {
            let at = (first + granule) as usize;
            let offset = u64::from(granule) * u64::from(self.granule_pages) * PAGE_BYTES as u64;
            let iova = iova.map_or(0, |iova| iova + offset + 1);
            let slot = slot.map_or(0, |slot| (u64::from(slot) + 1) << 32 | u64::from(granule));
            self.iova[at].store(iova, Ordering::Relaxed);
            self.slot[at].store(slot, Ordering::Relaxed);
        }
    }
}

/// The reason why an arena did not grow.
#[derive(Clone, Copy, Debug)]
pub(super) enum GrowError {
    /// The cap, or the address space of this node, is used up.
    Full,
    /// The kernel or the device refused.
    Refused(PoolError),
}

/// The state of an arena, protected by its lock.
#[derive(Debug)]
pub(super) struct NodeArena {
    node: NodeId,
    pub(super) reservation: Reservation,
    pub(super) buddy: BuddyAllocator<Vec<u64>>,
    pub(super) chunks: ChunkTable,
    pub(super) static_state: StaticState,
    /// Chunks of one owner whose span has returned, to be unpinned.
    pub(super) unused: Vec<ChunkId>,
    /// Pages of chunks of one owner.
    pub(super) own_pages: u64,
    deferred: DeferredSpans,
    /// Granules without a chunk.
    free_granules: BuddyAllocator<Vec<u64>>,
    granule_pages: u32,
    /// Granules left empty after each chunk, where chunks must not be merged.
    gap: u32,
    pub(super) steps: ServeCounts,
    pub(super) tiers: TierCounts,
    pub(super) pinning: DurationHistogram,
    /// Chunks pinned and chunks unpinned since the pool was opened.
    pub(super) grown: u64,
    pub(super) retired: u64,
}

impl NodeArena {
    /// Opens an arena. Reserves twice the largest possible cap, so that fragmentation of the address space does not
    /// matter.
    pub(super) fn open(
        config: &PoolConfig,
        node: NodeId,
    ) -> Result<(Self, PageTable, DeviceBindings), PoolError> {
        let granule = config.granule();
        let bytes = config.cap_limit().saturating_mul(2).next_multiple_of(granule).next_power_of_two();
        let mut reservation = match config.sharing {
            PoolSharing::Private => Reservation::new(bytes)?,
            PoolSharing::Shared => Reservation::shared(bytes)?,
        };
        if config.placement.binds() {
            reservation.bind(node)?;
        }
        let (address, descriptor) = (reservation.address(), reservation.descriptor());
        config.pinner.prepare_node(NodeRange { node, address, bytes, descriptor })?;
        let table = reservation.table().clone();
        let granule_pages = page_count(granule);
        let granules = reservation.pages() / granule_pages;
        let mut places = BuddyAllocator::new(granules);
        // There is at least one granule, and none is free yet.
        let _ = places.free(PageRun { first: 0, pages: granules });
        let buddy = BuddyAllocator::new(reservation.pages());
        let arena = Self {
            node,
            reservation,
            buddy,
            chunks: ChunkTable::new(granules, granule_pages),
            static_state: StaticState::Unpinned,
            unused: Vec::new(),
            own_pages: 0,
            deferred: DeferredSpans::new(),
            free_granules: places,
            granule_pages,
            gap: u32::from(!config.pinner.can_merge()),
            steps: ServeCounts::default(),
            tiers: TierCounts::default(),
            pinning: DurationHistogram::default(),
            grown: 0,
            retired: 0,
        };
        Ok((arena, table, DeviceBindings::new(granules, granule_pages)))
    }

    /// Allocates a contiguous run.
    #[inline]
    pub(super) fn contiguous(&mut self, pages: u32, align_pages: u32) -> Option<PageSpan> {
        if align_pages == 1
            && let Some(class) = CacheClass::exactly(pages)
            && let Some(span) = self.deferred.take(class)
        {
            return Some(span);
        }
        self.allocate_run(pages, align_pages)
    }

    /// Takes the deferred span of a class.
    pub(super) fn take_deferred(&mut self, class: CacheClass) -> Option<PageSpan> {
        self.deferred.take(class)
    }

    fn allocate_run(&mut self, pages: u32, align_pages: u32) -> Option<PageSpan> {
        let run = self.buddy.allocate_aligned(pages, align_pages)?;
        Some(self.claim(run))
    }

    /// Allocates a contiguous run across buddy blocks, by scanning every free run.
    pub(super) fn contiguous_across_blocks(&mut self, pages: u32, align_pages: u32) -> Option<PageSpan> {
        let run = self.buddy.allocate_across_blocks(pages, align_pages)?;
        Some(self.claim(run))
    }

    /// Allocates several runs that have the requested pages in total.
    pub(super) fn scattered(&mut self, request: &ValidatedRequest) -> Option<Vec<PageSpan>> {
        if request.segments_max < 2 || self.buddy.free_pages() < request.pages {
            return None;
        }
        let plan =
            planner::plan(self.buddy.free_runs(), request.pages, request.align_pages, request.segments_max)?;
        let planned: u32 = plan.iter().map(|run| run.pages).sum();
        assert!(
            planned == request.pages,
            "the planner chose {planned} pages, requested are {}",
            request.pages
        );
        let taken = plan.into_iter().map(|run| {
            let free = self.buddy.take(run);
            assert!(free.is_ok(), "the planner returns only free runs");
            self.claim(run)
        });
        Some(taken.collect())
    }

    /// Takes a span back, and keeps it unmerged while its class has few of them.
    #[inline]
    pub(super) fn defer_span(&mut self, span: PageSpan) {
        let class = CacheClass::exactly(span.pages()).filter(|_| {
            // A chunk of one owner is unpinned at once.
            let is_own = |chunk: &PinnedChunk| chunk.tier != PinTier::Pool && chunk.run.pages == span.pages();
            self.own_pages == 0 || !self.chunks.at(span.first()).is_some_and(is_own)
        });
        let other = match class {
            Some(class) => self.deferred.keep(class, span),
            None => Some(span),
        };
        if let Some(span) = other {
            self.free_span(span);
        }
    }

    /// Frees the deferred spans. Returns true if there were any.
    pub(super) fn free_deferred(&mut self) -> bool {
        let mut any = false;
        while let Some(span) = self.deferred.pop() {
            self.free_span(span);
            any = true;
        }
        any
    }

    /// Returns true if a span may lie in a chunk that is not the pool's.
    #[inline]
    fn has_other_tiers(&self) -> bool {
        self.own_pages > 0 || matches!(self.static_state, StaticState::Pinned(_))
    }

    fn free_span(&mut self, span: PageSpan) {
        let run = self.reservation.release(span);
        if self.has_other_tiers() && self.free_in_tier(run) {
            return;
        }
        let freed = self.buddy.free(run);
        assert!(freed.is_ok(), "a span is returned once");
        self.chunks.mark_free(run);
    }

    /// Pins a new chunk of `chunk` bytes, or of just the requested size if that is larger, or if the cap leaves no
    /// more.
    pub(super) fn grow(
        &mut self,
        request: &ValidatedRequest,
        chunk: usize,
        config: &PoolConfig,
        budget: &PinBudget,
        bindings: &DeviceBindings,
    ) -> Result<(), GrowError> {
        let least = request.pages.next_multiple_of(self.granule_pages);
        let usual = page_count(chunk).max(least);
        let mut last = GrowError::Full;
        for pages in [Some(usual), Some(least).filter(|&least| least < usual)].into_iter().flatten() {
            let bytes = pages as usize * PAGE_BYTES;
            if !budget.reserve(PinTier::Pool, bytes) {
                continue;
            }
            match self.add_chunk(pages, request.align_pages, PinTier::Pool, config, bindings) {
                Ok(run) => {
                    let freed = self.buddy.free(run);
                    assert!(freed.is_ok(), "a granule belongs to one chunk");
                    return Ok(());
                }
                Err(error) => {
                    budget.release(PinTier::Pool, bytes);
                    last = if matches!(error, GrowError::Full) { last } else { error };
                }
            }
        }
        Err(last)
    }

    /// Commits and pins a chunk for a tier, whose bytes are reserved. Its pages are in use for the buddy allocator.
    pub(super) fn add_chunk(
        &mut self,
        pages: u32,
        align_pages: u32,
        tier: PinTier,
        config: &PoolConfig,
        bindings: &DeviceBindings,
    ) -> Result<PageRun, GrowError> {
        let granules = pages.div_ceil(self.granule_pages) + self.gap;
        let align = (align_pages / self.granule_pages).max(1);
        let place = self.free_granules.allocate_aligned(granules, align);
        let place = place
            .or_else(|| self.free_granules.allocate_across_blocks(granules, align))
            .ok_or(GrowError::Full)?;
        let run = PageRun { first: place.first * self.granule_pages, pages };
        let address = self.reservation.address() + run.first as usize * PAGE_BYTES;
        let made = self.commit_and_pin(run, address, config);
        let (token, backing) = match made {
            Ok(made) => made,
            Err(error) => {
                self.release_granules(run);
                return Err(GrowError::Refused(error));
            }
        };
        bindings.bind_chunk(run, token.iova, token.slot);
        self.chunks.add(PinnedChunk::unused(run, token, backing, tier));
        self.grown += 1;
        Ok(run)
    }

    fn commit_and_pin(
        &mut self,
        run: PageRun,
        address: usize,
        config: &PoolConfig,
    ) -> Result<(PinToken, Backing), PoolError> {
        let backing = self.commit(run, config)?;
        let start = config.clock.now();
        let pinned = config.pinner.pin(address, run.bytes());
        self.pinning.record(config.clock.now().since(start));
        match pinned {
            Ok(token) => Ok((token, backing)),
            Err(error) => {
                // A range that the kernel does not decommit stays committed, and its granules are never reused.
                let _ = self.reservation.decommit(run);
                Err(error.into())
            }
        }
    }

    /// Commits a run with the first kind of pages that its node admits and the kernel provides.
    fn commit(&mut self, run: PageRun, config: &PoolConfig) -> Result<Backing, PoolError> {
        let mut refusal = None;
        for backing in config.backing.kinds() {
            let admitted = config.placement.admit(self.node, run.bytes(), backing).map_err(PoolError::from);
            let request = BackingOrder::only(backing);
            match admitted.and_then(|()| Ok(self.reservation.commit(run, request)?)) {
                Ok(backing) => return Ok(backing),
                // A misalignment for huge pages is less informative than the earlier refusal.
                Err(PoolError::Commit(CommitError::Misaligned { .. })) if refusal.is_some() => {}
                Err(error) => refusal = Some(error),
            }
        }
        Err(refusal.unwrap_or(CommitError::Misaligned { run }.into()))
    }

    /// Unpins empty chunks that `choose` selects by stamp and length, until `bytes_max` bytes are released. Returns the
    /// bytes released.
    pub(super) fn retire(
        &mut self,
        bytes_max: usize,
        config: &PoolConfig,
        budget: &PinBudget,
        mut choose: impl FnMut(Option<Nanos>, usize) -> bool,
    ) -> usize {
        self.free_deferred();
        let mut chosen: Vec<(ChunkId, PageRun, Option<Nanos>)> =
            self.chunks.empty().map(|(id, chunk)| (id, chunk.run, chunk.empty_since)).collect();
        // The longest empty first; among unstamped chunks the highest first, so that low addresses fill up.
        chosen.sort_by_key(|(_, run, since)| (since.is_none(), *since, std::cmp::Reverse(run.first)));
        let mut back = 0;
        for (id, run, since) in chosen {
            if back >= bytes_max {
                break;
            }
            if choose(since, run.bytes()) {
                let taken = self.buddy.take(run);
                assert!(taken.is_ok(), "all pages of an empty chunk are free");
                back += self.remove_chunk(id, run, config, budget);
            }
        }
        self.retire_unused(config, budget);
        back
    }

    /// Unpins one unused chunk, whose pages are in use for the buddy allocator. Returns the bytes released: 0 if the
    /// device or the kernel did not release it.
    pub(super) fn remove_chunk(
        &mut self,
        id: ChunkId,
        run: PageRun,
        config: &PoolConfig,
        budget: &PinBudget,
    ) -> usize {
        let Some(chunk) = self.chunks.remove(id) else { return 0 };
        let unpinned = config.pinner.unpin(chunk.token).is_ok();
        if !unpinned || self.reservation.decommit(run).is_err() {
            // A device may still access it: its granules, its memory and its share of the cap stay taken.
            budget.add_lost(run.bytes());
            return 0;
        }
        self.release_granules(run);
        budget.release(chunk.tier, run.bytes());
        self.retired += 1;
        run.bytes()
    }

    fn release_granules(&mut self, run: PageRun) {
        if self.reservation.backing(run.first).is_some() {
            return;
        }
        let pages = run.pages.div_ceil(self.granule_pages) + self.gap;
        let freed = self.free_granules.free(PageRun { first: run.first / self.granule_pages, pages });
        assert!(freed.is_ok(), "granules are returned once");
    }

    #[inline]
    pub(super) fn claim(&mut self, run: PageRun) -> PageSpan {
        self.chunks.mark_used(run);
        match self.reservation.claim(run) {
            Ok(span) => span,
            Err(error) => unreachable!("a run allocated by the buddy is unclaimed: {error}"),
        }
    }
}

/// Converts bytes to whole pages; sizes of a configuration are below [`super::config::CAP_MAX`], so they fit.
fn page_count(bytes: usize) -> u32 {
    narrow(bytes.div_ceil(PAGE_BYTES))
}
