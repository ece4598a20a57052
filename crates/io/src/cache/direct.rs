//! Direct requests, which bypass the cache, and the coherence of cached pages with them.
//!
//! Input: direct reads and writes, zeroes, discards. Output: transfers from and to the caller's own buffer. Invariants:
//! a range is written directly only while none of its pages is under a transfer or a job of the cache, and none is started until
//! the write completes; when the write completes, cached pages hold what it wrote, or are dropped; overlapping direct
//! writes are executed one after another.

use super::BlockCache;
use super::backing::{BackingTransfer, TransferKind};
use super::frames::{FrameState, PageFlags};
use super::request::{CacheOperation, PendingCacheRequest};
use super::shape::{PAGE, pages_of, to_u64};
use super::transfers::TransferPurpose;
use headwater_host::width::to_usize;
use headwater_nvme::spec::status::Status;

/// An exclusive range of a direct write.
#[derive(Debug)]
pub(super) struct DirectWriteLock {
    request: u64,
    first: u64,
    end: u64,
    launched: bool,
}

impl DirectWriteLock {
    fn overlaps(&self, first: u64, end: u64) -> bool {
        self.first < end && first < self.end
    }
}

impl BlockCache {
    #[inline]
    pub(super) fn is_locked(&self, page: u64) -> bool {
        !self.locks.is_empty() && self.locks.iter().any(|lock| lock.overlaps(page, page + 1))
    }

    /// Returns true if cached pages are newer than the device: a direct read must then go through the cache.
    pub(super) fn has_dirty_pages(&self, pending: &PendingCacheRequest) -> bool {
        let is_dirty = |&frame: &u32| self.frames.frame(frame).flags.has(PageFlags::DIRTY);
        self.dirty > 0 && self.frames_of(pending.next, pending.end).iter().any(is_dirty)
    }

    pub(super) fn begin_direct(&mut self, kind: TransferKind, pending: PendingCacheRequest) {
        let (first, end) = (pending.next, pending.end);
        let request = self.requests.insert(pending);
        if kind == TransferKind::Read {
            self.launch_direct(request);
        } else {
            self.locks.push(DirectWriteLock { request, first, end, launched: false });
        }
    }

    /// Starts the direct writes whose ranges have no transfer in progress.
    pub(super) fn launch_directs(&mut self) {
        for at in 0..self.locks.len() {
            let DirectWriteLock { request, first, end, launched } = self.locks[at];
            let waits = self.locks[..at].iter().any(|earlier| earlier.overlaps(first, end));
            let rests = |&frame: &u32| {
                self.frames.frame(frame).state == FrameState::Idle && !self.is_read_by_job(frame)
            };
            if !launched && !waits && self.frames_of(first, end).iter().all(rests) {
                self.locks[at].launched = true;
                self.launch_direct(request);
            }
        }
    }

    fn launch_direct(&mut self, request: u64) {
        let Some(mut pending) = self.requests.take(request) else { return };
        let CacheOperation::Direct { kind, durable } = pending.operation else { return };
        let most = match kind {
            TransferKind::Read | TransferKind::Write => to_u64(self.transfer_pages()) * PAGE,
            _ => (self.limits.range_bytes_max / PAGE).max(1) * PAGE,
        };
        let (origin, mut done) = (pending.origin(), 0);
        while done < pending.bytes {
            let bytes = most.min(pending.bytes - done);
            let cut = |data: &crate::Buffer| match data.slice(to_usize(done), to_usize(bytes)) {
                Ok(segment) => segment,
                Err(_) => unreachable!("part of a request is outside its buffer"),
            };
            let segments = pending.data.iter().map(cut).collect();
            let transfer =
                BackingTransfer { kind, offset: pending.offset + done, bytes, durable, origin, segments };
            self.queue_transfer(TransferPurpose::Direct(request), transfer);
            pending.waiting += 1;
            done += bytes;
        }
        pending.next = pending.end;
        self.requests.put_back(request, pending);
    }

    pub(super) fn direct_completed(&mut self, request: u64, status: Status) {
        let Some(mut pending) = self.requests.take(request) else { return };
        pending.waiting -= 1;
        if !status.is_success() {
            pending.fail(status);
        }
        if pending.waiting == 0 {
            if let CacheOperation::Direct { kind, .. } = pending.operation
                && kind != TransferKind::Read
            {
                self.update_cached_pages(kind, &pending);
            }
            self.unlock(request);
        }
        self.store_or_finish(request, pending, false);
    }

    /// Releases the range of a direct write.
    pub(super) fn unlock(&mut self, request: u64) {
        self.locks.retain(|lock| lock.request != request);
    }

    /// Updates the cached pages of a range to the device's new contents.
    fn update_cached_pages(&mut self, kind: TransferKind, pending: &PendingCacheRequest) {
        let (first, end) = pages_of(pending.offset, pending.bytes);
        for frame in self.frames_of(first, end) {
            let page = self.frames.frame(frame).page;
            let part = pending.part(page);
            let is_dirty = self.frames.frame(frame).flags.has(PageFlags::DIRTY);
            // A request waits for this page to be written: it must be written, with its current contents.
            let is_awaited = self.waiters.contains_key(&frame);
            let is_whole = part.bytes == self.shape.page_bytes(page);
            if !pending.status.is_success() {
                // The device's contents are unknown.
                if !is_dirty {
                    self.drop_page(frame);
                }
            } else if kind == TransferKind::Discard {
                if !is_awaited && (is_whole || !is_dirty) {
                    self.drop_page(frame);
                }
            } else {
                self.copy_direct(frame, pending.data.as_ref(), part);
                if is_whole && is_dirty && !is_awaited {
                    self.frames.unlink(frame);
                    self.clear_dirty(frame);
                    self.list_clean(frame);
                }
            }
        }
    }
}
