//! Requests through the cache, page by page.
//!
//! Input: requests, pages that were read. Output: copies in both directions, and reads of missing pages. Invariant: a
//! request holds no page: its bytes are copied as soon as a page is available, so that no request waits for a page
//! while keeping another. Only a job of the mover holds pages, and it waits for nothing.

use super::backing::TransferOrigin;
use super::frames::{FrameList, FrameState, PageFlags};
use super::request::{CacheOperation, CacheUser, PendingCacheRequest};
use super::shape::{PAGE_BYTES, PagePart, to_u64};
use super::{BlockCache, FrameWaiter};
use crate::buffer::Buffer;
use crate::command::WriteDurability;
use headwater_host::width::to_usize;
use headwater_nvme::spec::status::Status;

impl BlockCache {
    /// Executes a request at once if all of its pages are cached.
    pub(super) fn execute_if_cached(&mut self, pending: &mut PendingCacheRequest) -> bool {
        let writes = match pending.operation {
            CacheOperation::Write { through: true, .. } => return false,
            CacheOperation::Write { .. } => true,
            _ => false,
        };
        let busiest = if writes { FrameState::Idle } else { FrameState::Writing };
        if !self.is_cached(pending.offset, pending.bytes, busiest) {
            return false;
        }
        if writes && to_u64(self.dirty_max.saturating_sub(self.dirty)) < pending.end - pending.next {
            return false;
        }
        for page in pending.next..pending.end {
            if let Some(frame) = self.index.find(page) {
                self.record_use(pending.owner, page, frame);
                if writes {
                    self.copy_in(frame, pending);
                    self.mark_dirty(frame, false, pending.origin());
                } else {
                    self.copy_out(frame, pending);
                }
            }
        }
        pending.next = pending.end;
        true
    }

    /// Continues a request as far as possible.
    pub(super) fn advance_request(&mut self, key: u64) {
        let Some(mut pending) = self.requests.take(key) else { return };
        let stalled = match pending.operation {
            CacheOperation::Write { .. } => self.advance_write(key, &mut pending),
            _ => self.advance_read(key, &mut pending),
        };
        self.store_or_finish(key, pending, stalled);
    }

    /// Continues every request that waited for free frames or for a lock.
    pub(super) fn advance_parked(&mut self) {
        for key in std::mem::take(&mut self.parked) {
            self.advance_request(key);
        }
    }

    /// Cancels a request of a user: it finishes with [`Status::ABORT_REQUESTED`], or with an earlier failure of its
    /// own, and its buffer is returned, at once or when the jobs of the mover that use it have ended. Its effects so far
    /// and those of such jobs remain; it has no further ones. Returns `false` when there is none, or the device uses its
    /// buffer: it then finishes normally.
    pub fn cancel(&mut self, owner: CacheUser, token: u64) -> bool {
        let is_it = |pending: &PendingCacheRequest| pending.owner == owner.0 && pending.token == token;
        let Some(key) = self.requests.iter().find(|(_, pending)| is_it(pending)).map(|(key, _)| key) else {
            return false;
        };
        let Some(mut pending) = self.requests.take(key) else { return false };
        let is_direct = matches!(pending.operation, CacheOperation::Direct { .. });
        if (is_direct && pending.waiting > 0) || pending.operation == CacheOperation::Shrink {
            self.requests.put_back(key, pending);
            return false;
        }
        self.unlock(key);
        pending.fail(Status::ABORT_REQUESTED);
        self.finish_after_moves(key, pending);
        // Requests that waited for its lock continue with the next turn.
        self.progressed = true;
        true
    }

    /// Stores a request that continues, or finishes it.
    pub(super) fn store_or_finish(&mut self, key: u64, pending: PendingCacheRequest, stalled: bool) {
        if pending.is_finished() {
            return self.finish(key, pending);
        }
        if stalled {
            self.parked.push_back(key);
        }
        self.requests.put_back(key, pending);
    }

    pub(super) fn finish(&mut self, key: u64, pending: PendingCacheRequest) {
        self.requests.remove(key);
        let owner = pending.owner;
        self.users.finish(owner, pending.into_finished());
    }

    fn advance_read(&mut self, key: u64, pending: &mut PendingCacheRequest) -> bool {
        let mut gathered = self.is_gathered(pending).then(Vec::new);
        let stalled = self.read_pages(key, pending, &mut gathered);
        self.move_gathered(key, pending, gathered.unwrap_or_default());
        stalled
    }

    fn read_pages(
        &mut self,
        key: u64,
        pending: &mut PendingCacheRequest,
        gathered: &mut Option<Vec<u32>>,
    ) -> bool {
        while pending.next < pending.end {
            let page = pending.next;
            if self.is_locked(page) {
                return true;
            }
            match self.index.find(page) {
                Some(frame) if self.frames.frame(frame).state == FrameState::Filling => {
                    self.wait_for_frame(frame, key, pending);
                }
                Some(frame) => {
                    self.record_use(pending.owner, page, frame);
                    if !self.gather_read(frame, gathered.as_mut()) {
                        self.copy_out(frame, pending);
                    }
                }
                None => {
                    let frames = self.read_missing(page, pending.end, PageFlags::default(), pending.origin());
                    if frames.is_empty() {
                        return true;
                    }
                    for &frame in &frames {
                        self.wait_for_frame(frame, key, pending);
                    }
                    pending.next += to_u64(frames.len()) - 1;
                }
            }
            pending.next += 1;
        }
        false
    }

    fn advance_write(&mut self, key: u64, pending: &mut PendingCacheRequest) -> bool {
        let mut gathered = self.is_gathered(pending).then(Vec::new);
        let stalled = self.write_pages(key, pending, &mut gathered);
        self.move_gathered(key, pending, gathered.unwrap_or_default());
        stalled
    }

    fn write_pages(
        &mut self,
        key: u64,
        pending: &mut PendingCacheRequest,
        gathered: &mut Option<Vec<u32>>,
    ) -> bool {
        while pending.next < pending.end {
            let page = pending.next;
            let found = self.index.find(page);
            let is_dirty = found.is_some_and(|frame| self.frames.frame(frame).flags.has(PageFlags::DIRTY));
            if self.is_locked(page) || (!is_dirty && self.dirty >= self.dirty_max) {
                return true;
            }
            let is_whole = pending.part(page).bytes == self.shape.page_bytes(page);
            let is_free = found.is_some_and(|frame| {
                self.frames.frame(frame).state == FrameState::Idle && !self.is_read_by_job(frame)
            });
            match found {
                Some(frame) if is_free => {
                    self.record_use(pending.owner, page, frame);
                    self.write_or_gather(frame, key, pending, gathered);
                }
                Some(frame) => self.wait_for_frame(frame, key, pending),
                None if is_whole => {
                    let Some(frame) = self.take_frame() else { return true };
                    self.statistics.misses += 1;
                    self.assign_page(frame, page, FrameState::Idle, PageFlags::default());
                    if self.replacement.was_evicted_recently(page) {
                        self.frames.frame_mut(frame).flags.set(PageFlags::PROVEN);
                    }
                    self.write_or_gather(frame, key, pending, gathered);
                }
                None => {
                    let frames = self.read_missing(page, page + 1, PageFlags::default(), pending.origin());
                    let Some(&frame) = frames.first() else { return true };
                    self.wait_for_frame(frame, key, pending);
                }
            }
            pending.next += 1;
        }
        false
    }

    /// Assigns a page to a frame.
    fn assign_page(&mut self, frame: u32, page: u64, state: FrameState, marks: PageFlags) {
        let at = self.frames.frame_mut(frame);
        (at.page, at.state, at.flags) = (page, state, marks);
        self.index.set(page, frame);
    }

    /// Starts to read missing pages of `[page, end)`, as far as there are frames and one transfer allows.
    fn read_missing(&mut self, page: u64, end: u64, marks: PageFlags, origin: TransferOrigin) -> Vec<u32> {
        let most = to_u64(self.transfer_pages()).min(end - page);
        let mut frames: Vec<u32> = Vec::new();
        let mut segments = 0;
        for page in page..page + most {
            if self.is_locked(page) || self.index.find(page).is_some() {
                break;
            }
            let Some(frame) = self.take_frame() else { break };
            let joined = frames.last().is_some_and(|&last| self.frames.are_contiguous(last, frame));
            segments += usize::from(!joined);
            if segments > self.limits.segments_max && !frames.is_empty() {
                self.frames.push_front(FrameList::Free, frame);
                break;
            }
            self.assign_page(frame, page, FrameState::Filling, marks);
            self.frames.frame_mut(frame).origin = origin;
            frames.push(frame);
        }
        if !frames.is_empty() {
            self.read_frames(frames.clone());
        }
        frames
    }

    /// Returns the most pages of a transfer.
    pub(super) fn transfer_pages(&self) -> usize {
        (self.limits.transfer_bytes_max / PAGE_BYTES).max(1)
    }

    /// Prefetches the ranges that were detected.
    pub(super) fn prefetch(&mut self) {
        for (pages, origin) in std::mem::take(&mut self.prefetches) {
            // A prefetch must not evict its own pages.
            let most = to_u64(self.frames.count() / 4);
            let end = pages.end.min(self.shape.pages()).min(pages.start + most);
            let mut page = pages.start;
            while page < end {
                if self.index.find(page).is_some() {
                    page += 1;
                    continue;
                }
                let frames = self.read_missing(page, end, PageFlags::PREFETCHED, origin);
                if frames.is_empty() {
                    break;
                }
                self.statistics.prefetched += to_u64(frames.len());
                page += to_u64(frames.len());
            }
        }
    }

    /// Makes a request wait for a frame's page.
    fn wait_for_frame(&mut self, frame: u32, key: u64, pending: &mut PendingCacheRequest) {
        self.statistics.misses += 1;
        let marks = &mut self.frames.frame_mut(frame).flags;
        if marks.has(PageFlags::PREFETCHED) {
            marks.clear(PageFlags::PREFETCHED);
            self.statistics.prefetch_used += 1;
        }
        pending.waiting += 1;
        self.waiters.entry(frame).or_default().push(FrameWaiter { request: key, written: false });
    }

    /// Copies for the requests that waited for a page that is now idle. A write waits on while a job of the mover reads it. A
    /// request that was cancelled, and waits for its jobs, gets and writes nothing more: the page stays as it is.
    pub(super) fn serve_waiters(&mut self, frame: u32) {
        let Some(waiters) = self.waiters.remove(&frame) else { return };
        for waiter in waiters {
            if waiter.written || (self.is_read_by_job(frame) && self.is_write(waiter.request)) {
                self.waiters.entry(frame).or_default().push(waiter);
                continue;
            }
            let Some(mut pending) = self.requests.take(waiter.request) else { continue };
            pending.waiting -= 1;
            match pending.operation {
                _ if pending.is_cancelled => {}
                CacheOperation::Write { .. } => self.write_page(frame, waiter.request, &mut pending),
                _ => self.copy_out(frame, &mut pending),
            }
            self.store_or_finish(waiter.request, pending, false);
        }
    }

    fn is_write(&self, request: u64) -> bool {
        let pending = self.requests.get(request);
        pending.is_some_and(|pending| matches!(pending.operation, CacheOperation::Write { .. }))
    }

    /// Writes a request's bytes to an idle page, or gathers the page: it is filling until it has them.
    fn write_or_gather(
        &mut self,
        frame: u32,
        key: u64,
        pending: &mut PendingCacheRequest,
        gathered: &mut Option<Vec<u32>>,
    ) {
        let Some(gathered) = gathered else { return self.write_page(frame, key, pending) };
        self.note_write(frame, key, pending);
        self.frames.frame_mut(frame).state = FrameState::Filling;
        gathered.push(frame);
    }

    /// Writes a request's bytes to an idle page.
    fn write_page(&mut self, frame: u32, key: u64, pending: &mut PendingCacheRequest) {
        self.copy_in(frame, pending);
        self.note_write(frame, key, pending);
    }

    /// Makes a page dirty for a write, which waits for its write-back if it writes through.
    fn note_write(&mut self, frame: u32, key: u64, pending: &mut PendingCacheRequest) {
        let CacheOperation::Write { through, durable } = pending.operation else { return };
        self.mark_dirty(frame, through, pending.origin());
        if through {
            if durable == WriteDurability::Immediate {
                self.frames.frame_mut(frame).flags.set(PageFlags::DURABLE);
            }
            pending.waiting += 1;
            self.waiters.entry(frame).or_default().push(FrameWaiter { request: key, written: true });
        }
    }

    /// Marks a page as dirty; `urgent` if it is to be written at once. It is written for the origin of its last write; a
    /// page that a request or a flush waits for keeps its origin, unless the write is urgent too.
    #[inline]
    pub(super) fn mark_dirty(&mut self, frame: u32, urgent: bool, origin: TransferOrigin) {
        let now = self.now;
        let list = self.frames.list(frame);
        let at = self.frames.frame_mut(frame);
        let was_dirty = at.flags.has(PageFlags::DIRTY);
        if urgent || !was_dirty || list != FrameList::Urgent {
            at.origin = origin;
        }
        if !urgent && !at.flags.has(PageFlags::ACKNOWLEDGED) {
            at.flags.set(PageFlags::ACKNOWLEDGED);
            self.acknowledged += 1;
        }
        if was_dirty && !urgent {
            return;
        }
        if !was_dirty {
            at.flags.set(PageFlags::DIRTY);
            at.dirty_since = now;
            self.dirty += 1;
        }
        if list != FrameList::Urgent {
            self.frames.unlink(frame);
            self.frames.push_back(if urgent { FrameList::Urgent } else { FrameList::Dirty }, frame);
        }
    }

    /// Copies a request's part of a page into the page, directly from its buffer if there is no other handle to it.
    pub(super) fn copy_in(&self, frame: u32, pending: &mut PendingCacheRequest) {
        let part = pending.part(self.frames.frame(frame).page);
        let whole = pending.data.as_mut().and_then(Buffer::bytes_mut);
        if let Some(bytes) =
            whole.and_then(|bytes| bytes.get(part.request_offset..part.request_offset + part.bytes))
        {
            return self.frames.write(frame, part.page_offset, bytes);
        }
        let mut bytes = [0; PAGE_BYTES];
        read_part(pending.data.as_ref(), part, &mut bytes);
        self.frames.write(frame, part.page_offset, &bytes[..part.bytes]);
    }

    /// Copies a request's part of a page into its buffer, or compares the two.
    pub(super) fn copy_out(&self, frame: u32, pending: &mut PendingCacheRequest) {
        let part = pending.part(self.frames.frame(frame).page);
        if pending.operation == CacheOperation::Compare {
            return self.compare(frame, pending, part);
        }
        let whole = pending.data.as_mut().and_then(Buffer::bytes_mut);
        if let Some(bytes) =
            whole.and_then(|bytes| bytes.get_mut(part.request_offset..part.request_offset + part.bytes))
        {
            return self.frames.read(frame, part.page_offset, bytes);
        }
        let mut bytes = [0; PAGE_BYTES];
        self.frames.read(frame, part.page_offset, &mut bytes[..part.bytes]);
        if let Some(data) = &pending.data {
            let copied = data.write(part.request_offset, &bytes[..part.bytes]);
            assert!(copied.is_ok(), "part of a request is outside its buffer");
        }
    }

    fn compare(&self, frame: u32, pending: &mut PendingCacheRequest, part: PagePart) {
        let (mut bytes, mut wanted) = ([0; PAGE_BYTES], [0; PAGE_BYTES]);
        self.frames.read(frame, part.page_offset, &mut bytes[..part.bytes]);
        read_part(pending.data.as_ref(), part, &mut wanted);
        if bytes[..part.bytes] != wanted[..part.bytes] {
            pending.fail(Status::COMPARE_FAILURE);
        }
    }

    /// Fails requests that wait for free frames when no work in progress can free any: every page is dirty and failed.
    pub(super) fn fail_parked(&mut self) -> bool {
        let dirty = self.frames.len(FrameList::Urgent) + self.frames.len(FrameList::Dirty);
        let moving = self.transfers.len() + self.moves_in_flight() + dirty;
        if self.parked.is_empty() || moving > 0 || !self.locks.is_empty() {
            return false;
        }
        for key in std::mem::take(&mut self.parked) {
            if let Some(mut pending) = self.requests.take(key) {
                pending.fail(self.failure);
                self.store_or_finish(key, pending, false);
            }
        }
        true
    }

    /// Copies `part` of a direct write's buffer into a page.
    pub(super) fn copy_direct(&self, frame: u32, data: Option<&Buffer>, part: PagePart) {
        let mut bytes = [0; PAGE_BYTES];
        read_part(data, part, &mut bytes);
        self.frames.write(frame, part.page_offset, &bytes[..part.bytes]);
    }

    /// Returns the cached frames of a range, by iterating over its pages or over the frames, whichever are fewer.
    pub(super) fn frames_of(&self, first: u64, end: u64) -> Vec<u32> {
        if to_usize(end - first) <= self.frames.count() {
            return (first..end).filter_map(|page| self.index.find(page)).collect();
        }
        self.frames.in_use().filter(|(_, page)| (first..end).contains(page)).map(|(frame, _)| frame).collect()
    }
}

/// Reads the bytes of a part of a request; does nothing without a buffer.
fn read_part(data: Option<&Buffer>, part: PagePart, into: &mut [u8; PAGE_BYTES]) {
    if let Some(data) = data {
        let copied = data.read(part.request_offset, &mut into[..part.bytes]);
        assert!(copied.is_ok(), "part of a request is outside its buffer");
    }
}
