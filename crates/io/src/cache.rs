//! A block cache: pages of a device in registered memory.
//!
//! Input: requests in bytes, completions of a [`BackingDevice`]. Output: [`FinishedRequest`] requests, transfers of whole pages.
//! Invariants: a read returns what was written last, cached or direct; an acknowledged page that is not yet on the
//! device stays until it is; after a successful flush everything written before is durable on the device.
//!
//! Transfers carry the [`TransferOrigin`] of the request that causes them: its user and its class, by which the backing
//! device schedules them.
//!
//! It is a state machine without clock, thread or queue of its own. The caller
//! - tries [`read_hit`](BlockCache::read_hit) and [`write_hit`](BlockCache::write_hit) with slices, which never wait, or
//! - [`submit`](BlockCache::submit)s a [`CacheRequest`] with a token of its choice: [`SubmitResult::Done`] at once, or later;
//! - calls [`poll`](BlockCache::poll) with the time whenever the device may have completed transfers, and at
//!   [`next_deadline`](BlockCache::next_deadline);
//! - then [`take_finished`](BlockCache::take_finished)s finished requests.
//!
//! The [`BackingDevice`] is passed with each call and must be the same each time; the cache chooses the tickets. All requests
//! for the device's bytes must pass through the cache, direct ones too, so that both paths are coherent. Flush a cache
//! before dropping it, or its dirty pages are lost.
//!
//! Several threads use one cache as a [`SharedCache`], which may have a thread of its own. Two caches over the same bytes are not coherent.

pub use backing::{
    BackingDevice, BackingLimits, BackingTransfer, SHARED_PATH, TransferCompletion, TransferKind,
    TransferOrigin, TransferRefusal,
};
pub use config::{BackgroundWork, CacheConfig, PAGES_MIN, WritePolicy};
pub use handle_backing::{DISCARD_LISTS_BYTES, HandleBacking};
pub use request::{CacheRequest, CacheUser, FinishedRequest, RefusedCacheRequest, RequestTag, SubmitResult};
pub use shape::{DeviceShape, PAGE_BYTES};
pub use shared::{CLOSE_WAIT_MAX, CacheMember, SharedCache};
pub use statistics::CacheStatistics;

use crate::buffer::Buffer;
use crate::error::{CacheError, IoError};
use crate::scheduler::RequestClass;
use direct::DirectWriteLock;
use flush::FlushState;
use frames::{FrameList, FrameState, FrameTable, NO_FRAME, PageFlags};
use headwater_host::clock::Nanos;
use headwater_nvme::spec::status::Status;
use index::FrameIndex;
use page_mover::PageMover;
use replacement::{ReplacementPolicy, percentage_of};
use request::{CacheOperation, PendingCacheRequest};
use resize::ShrinkState;
use shape::{PAGE, PagePart, pages_of, to_u64};
use slot_map::SlotMap;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use transfers::{TransferOutbox, TransferPurpose};
use user::CacheUsers;

mod awaiting;
mod background;
mod backing;
mod config;
mod direct;
mod flush;
mod frames;
mod handle_backing;
mod index;
mod page_mover;
mod page_moves;
mod replacement;
mod request;
mod resize;
mod shape;
mod shared;
mod slot_map;
mod statistics;
mod streams;
mod transfer;
mod transfers;
mod user;
mod write_back;

/// A request that waits for a page.
#[derive(Clone, Copy, Debug)]
struct FrameWaiter {
    request: u64,
    /// True if the request waits until the page is on the device, false if it waits for the page's bytes.
    written: bool,
}

/// A block cache.
#[derive(Debug)]
pub struct BlockCache {
    shape: DeviceShape,
    config: CacheConfig,
    limits: BackingLimits,
    now: Nanos,
    frames: FrameTable,
    index: FrameIndex,
    replacement: ReplacementPolicy,
    users: CacheUsers,
    requests: SlotMap<PendingCacheRequest>,
    /// The requests that wait for each frame.
    waiters: BTreeMap<u32, Vec<FrameWaiter>>,
    /// The requests that wait for free frames or a locked page.
    parked: VecDeque<u64>,
    /// The ranges of direct writes, in the order of arrival.
    locks: Vec<DirectWriteLock>,
    transfers: SlotMap<TransferPurpose>,
    /// The mover of long copies; `None` if every page is copied by itself.
    page_mover: Option<Box<PageMover>>,
    /// Transfers in the order in which they arose, before they are assigned to paths.
    queued: Vec<(usize, u64, BackingTransfer)>,
    outbox: TransferOutbox,
    write_backs: u32,
    dirty: usize,
    /// The dirty pages whose writes were acknowledged: no request waits for their write-back.
    acknowledged: usize,
    dirty_background: usize,
    dirty_max: usize,
    prefetches: Vec<(Range<u64>, TransferOrigin)>,
    flushes: FlushState,
    failure: Status,
    shrink: Option<ShrinkState>,
    /// The first frame whose memory is released by a shrink in progress.
    retained_frames: u32,
    /// True after an event that may let waiting requests continue.
    progressed: bool,
    gone: Option<Status>,
    statistics: CacheStatistics,
}

impl BlockCache {
    /// Creates a cache of memory that `memory` allocates in page-aligned blocks, registered with the device.
    ///
    /// # Errors
    /// [`IoError::Cache`] for an invalid configuration, and the errors of `memory`.
    pub fn new(
        shape: DeviceShape,
        config: CacheConfig,
        memory: &mut dyn FnMut(usize) -> Result<Buffer, IoError>,
    ) -> Result<Self, IoError> {
        shape.check()?;
        config.check()?;
        let limits = BackingLimits { transfer_bytes_max: PAGE_BYTES, segments_max: 1, range_bytes_max: PAGE };
        let mut cache = Self {
            shape,
            config,
            limits,
            now: Nanos::ZERO,
            frames: FrameTable::new(config.block_pages),
            index: FrameIndex::with_room(0),
            replacement: ReplacementPolicy::for_frames(0),
            users: CacheUsers::default(),
            requests: SlotMap::new(),
            waiters: BTreeMap::new(),
            parked: VecDeque::new(),
            locks: Vec::new(),
            transfers: SlotMap::new(),
            page_mover: None,
            queued: Vec::new(),
            outbox: TransferOutbox::default(),
            write_backs: 0,
            dirty: 0,
            acknowledged: 0,
            dirty_background: 0,
            dirty_max: 0,
            prefetches: Vec::new(),
            flushes: FlushState::default(),
            failure: Status::INTERNAL_ERROR,
            shrink: None,
            retained_frames: NO_FRAME,
            progressed: false,
            gone: None,
            statistics: CacheStatistics::default(),
        };
        cache.grow(config.blocks(config.pages), memory)?;
        Ok(cache)
    }

    /// Returns the shape of the cached device.
    #[must_use]
    pub fn shape(&self) -> DeviceShape {
        self.shape
    }

    /// Returns the configuration.
    #[must_use]
    pub fn config(&self) -> &CacheConfig {
        &self.config
    }

    /// Adds a user with its own finished requests, read streams and reports of failed writes.
    pub fn join(&mut self) -> CacheUser {
        self.users.join()
    }

    /// Removes a user. Its requests continue, and their results are discarded.
    pub fn leave(&mut self, owner: CacheUser) {
        self.users.leave(owner);
    }

    /// Copies bytes that are all cached. Returns `false` if nothing was copied: use [`submit`](Self::submit).
    #[inline]
    pub fn read_hit(&mut self, owner: CacheUser, offset: u64, into: &mut [u8]) -> bool {
        let bytes = to_u64(into.len());
        if !self.is_cached(offset, bytes, FrameState::Writing) {
            return false;
        }
        let (first, end) = pages_of(offset, bytes);
        for page in first..end {
            let part = PagePart::of(page, offset, bytes);
            if let Some(frame) = self.index.find(page) {
                self.frames.read(
                    frame,
                    part.page_offset,
                    &mut into[part.request_offset..part.request_offset + part.bytes],
                );
                self.record_use(owner.0, page, frame);
            }
        }
        self.record_read((first, end), TransferOrigin::of(owner.0, self.users.class(owner.0)), owner.0);
        true
    }

    /// Copies bytes to pages that are all cached, to be written back. Returns `false` if nothing was copied: use
    /// [`submit`](Self::submit).
    #[inline]
    pub fn write_hit(&mut self, owner: CacheUser, offset: u64, from: &[u8]) -> bool {
        let bytes = to_u64(from.len());
        let back = self.config.policy == WritePolicy::Back && !self.users.has_news(owner.0);
        if !back || !self.is_cached(offset, bytes, FrameState::Idle) {
            return false;
        }
        let (first, end) = pages_of(offset, bytes);
        if to_u64(self.dirty_max.saturating_sub(self.dirty)) < end - first {
            return false;
        }
        let origin = TransferOrigin::of(owner.0, self.users.class(owner.0));
        for page in first..end {
            let part = PagePart::of(page, offset, bytes);
            if let Some(frame) = self.index.find(page) {
                self.frames.write(
                    frame,
                    part.page_offset,
                    &from[part.request_offset..part.request_offset + part.bytes],
                );
                self.record_use(owner.0, page, frame);
                self.mark_dirty(frame, false, origin);
            }
        }
        true
    }

    /// Returns true if every page of a range is cached, and is idle or in the state `busiest`. If that is idle too, the pages are
    /// to be written, and a page that a job of the mover reads does not count.
    #[inline]
    fn is_cached(&self, offset: u64, bytes: u64, busiest: FrameState) -> bool {
        if self.shape.check_range(offset, bytes).is_err() || !self.locks.is_empty() || self.gone.is_some() {
            return false;
        }
        let (first, end) = pages_of(offset, bytes);
        (first..end).all(|page| {
            self.index.find(page).is_some_and(|frame| {
                let state = self.frames.frame(frame).state;
                // A request that needs idle pages writes them.
                let is_kept = busiest == FrameState::Idle && self.is_read_by_job(frame);
                (state == FrameState::Idle || state == busiest) && !is_kept
            })
        })
    }

    /// Sets the class of the transfers that [`read_hit`](Self::read_hit) and [`write_hit`](Self::write_hit) of a user cause.
    pub fn set_class(&mut self, owner: CacheUser, class: RequestClass) {
        self.users.set_class(owner.0, class);
    }

    /// Returns the status of a failed write-back that was not reported to the user, once.
    pub fn take_failure(&mut self, owner: CacheUser) -> Option<Status> {
        (self.users.is_joined(owner.0) && self.users.report_failures(owner.0)).then_some(self.failure)
    }

    /// Accepts a request. The tag is a token, or a token with the class of the transfers that the request causes. After
    /// [`SubmitResult::Pending`] exactly one [`FinishedRequest`] with the token follows.
    ///
    /// # Errors
    /// [`RefusedCacheRequest`] for a range beyond the end, direct I/O that is not whole blocks, or a device that is gone.
    pub fn submit<L: BackingDevice>(
        &mut self,
        lower: &mut L,
        owner: CacheUser,
        request: CacheRequest,
        tag: impl Into<RequestTag>,
    ) -> Result<SubmitResult, RefusedCacheRequest> {
        if let Err(error) = self.admit_request(owner, &request) {
            return Err(RefusedCacheRequest { request, error });
        }
        let mut pending = PendingCacheRequest::new(owner, tag.into(), request);
        if self.config.policy == WritePolicy::Through
            && let CacheOperation::Write { through, .. } = &mut pending.operation
        {
            *through = true;
        }
        if pending.bytes == 0 && pending.operation != CacheOperation::Flush {
            return Ok(SubmitResult::Done(pending.into_finished()));
        }
        self.limits = lower.limits();
        match pending.operation {
            CacheOperation::Flush => return Ok(self.begin_flush(lower, pending)),
            CacheOperation::Direct { kind, .. }
                if kind != TransferKind::Read || !self.has_dirty_pages(&pending) =>
            {
                self.users.count_request(owner.0);
                self.begin_direct(kind, pending);
            }
            _ => {
                if matches!(pending.operation, CacheOperation::Direct { .. }) {
                    pending.operation = CacheOperation::Read;
                }
                if !matches!(pending.operation, CacheOperation::Write { .. }) {
                    self.record_read((pending.next, pending.end), pending.origin(), owner.0);
                }
                let is_gathered = self.is_gathered(&pending);
                if !is_gathered && self.execute_if_cached(&mut pending) {
                    self.run_due_work(lower);
                    return Ok(SubmitResult::Done(pending.into_finished()));
                }
                self.users.count_request(owner.0);
                let key = self.requests.insert(pending);
                self.advance_request(key);
                // The request ended last, if it ended.
                if is_gathered
                    && self.requests.get(key).is_none()
                    && let Some(finished) = self.users.take_last(owner.0)
                {
                    self.run_due_work(lower);
                    return Ok(SubmitResult::Done(finished));
                }
            }
        }
        self.run_until_idle(lower);
        Ok(SubmitResult::Pending)
    }

    fn admit_request(&self, owner: CacheUser, request: &CacheRequest) -> Result<(), CacheError> {
        if let Some(status) = self.gone {
            return Err(CacheError::Gone(status));
        }
        if !self.users.is_joined(owner.0) {
            return Err(CacheError::Left);
        }
        let (offset, bytes) = request.range();
        self.shape.check_range(offset, bytes)?;
        if request.is_direct() { self.shape.check_blocks(offset, bytes) } else { Ok(()) }
    }

    /// Processes available completions, and does the work that is due at this time.
    pub fn poll<L: BackingDevice>(&mut self, lower: &mut L, now: Nanos) {
        self.now = self.now.max(now);
        self.reap_moves();
        if self.gone.is_none() {
            self.reap_transfers(lower);
        }
        self.retry_failed();
        self.run_until_idle(lower);
    }

    /// Returns the next finished request of a user.
    #[inline]
    pub fn take_finished(&mut self, owner: CacheUser) -> Option<FinishedRequest> {
        self.users.take(owner.0)
    }

    /// Returns the number of requests and transfers in progress: at 0, only the age of dirty pages causes work.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.requests.len() + self.transfers.len()
    }

    /// Returns true if [`poll`](Self::poll) has work to start after hits that bypassed [`submit`](Self::submit).
    #[must_use]
    #[inline]
    pub fn is_work_due(&self) -> bool {
        let back = self.frames.len(FrameList::Dirty) > self.dirty_background
            && self.write_backs < self.config.write_backs;
        !self.prefetches.is_empty() || self.frames.len(FrameList::Urgent) > 0 || back
    }

    /// Returns the time at which the next dirty page exceeds its age limit.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let oldest = |list| self.frames.first(list).map(|frame| self.frames.frame(frame).dirty_since);
        let first = oldest(FrameList::Dirty).into_iter().chain(oldest(FrameList::Failed)).min()?;
        Some(first.after(self.config.dirty_age))
    }

    /// Sets the write policy. After a change to [`WritePolicy::Through`], dirty pages are written back soon; a flush
    /// waits for them.
    pub fn set_policy<L: BackingDevice>(&mut self, lower: &mut L, policy: WritePolicy) {
        self.config.policy = policy;
        if policy == WritePolicy::Through {
            self.mark_urgent(FrameList::Dirty);
            self.run_until_idle(lower);
        }
    }

    /// Returns the counters and the current state.
    #[must_use]
    pub fn statistics(&self) -> CacheStatistics {
        let pages = |count: usize| to_u64(count) * PAGE;
        let retired = self.shrink.as_ref().map_or(0, ShrinkState::retired);
        let resident = self.frames.count() - self.frames.len(FrameList::Free) - retired;
        CacheStatistics {
            dirty_bytes: pages(self.dirty),
            resident_bytes: pages(resident),
            capacity_bytes: pages(self.frames.count()),
            ..self.statistics
        }
    }

    /// Starts work that became due through hits, if there is any.
    #[inline]
    pub fn run_due_work<L: BackingDevice>(&mut self, lower: &mut L) {
        if self.is_work_due() {
            self.run_until_idle(lower);
        }
    }

    /// Does all work that is possible now.
    fn run_until_idle<L: BackingDevice>(&mut self, lower: &mut L) {
        self.limits = lower.limits();
        while self.gone.is_none() {
            self.progressed = false;
            self.advance_parked();
            self.launch_directs();
            self.advance_shrink();
            self.advance_flush();
            self.prefetch();
            self.write_back();
            self.submit_transfers(lower);
            if !self.progressed && !self.fail_parked() {
                break;
            }
        }
    }

    /// Notes a use of a cached page.
    #[inline]
    fn record_use(&mut self, owner: u32, page: u64, frame: u32) {
        self.statistics.hits += 1;
        let again = self.users.replace_last_page(owner, page);
        let at = self.frames.frame_mut(frame);
        if at.flags.has(PageFlags::PREFETCHED) {
            // The first use of a prefetched page is expected, and does not count.
            at.flags.clear(PageFlags::PREFETCHED);
            self.statistics.prefetch_used += 1;
        } else if !again && at.uses < replacement::USES_MAX {
            at.uses += 1;
        }
    }

    /// Notes a read for the detection of sequential streams.
    #[inline]
    fn record_read(&mut self, (first, end): (u64, u64), origin: TransferOrigin, owner: u32) {
        if self.config.prefetch_pages == 0 {
            return;
        }
        if let Some(pages) = self.users.record_read(owner, first, end, self.config.prefetch_pages) {
            self.prefetches.push((pages, origin));
        }
    }

    fn rebuild_tables(&mut self) {
        let frames = self.frames.count();
        self.index = FrameIndex::with_room(frames);
        for (frame, page) in self.frames.in_use() {
            self.index.set(page, frame);
        }
        self.replacement = ReplacementPolicy::for_frames(frames);
        self.dirty_background = percentage_of(frames, self.config.dirty_background);
        self.dirty_max = percentage_of(frames, self.config.dirty_max);
        self.config.pages = frames;
    }
}
