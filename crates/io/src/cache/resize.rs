//! Resizing of the cache.
//!
//! Input: a number of pages. Output: blocks of memory allocated, or released by dropping them. Invariant: a shrink
//! loses no dirty page and no frame under a transfer; the most valuable pages stay, moved to other frames if necessary.

use super::backing::BackingDevice;
use super::frames::{FrameList, FrameState, NO_FRAME, PageFlags};
use super::replacement::percentage_of;
use super::request::{CacheOperation, CacheUser, FinishedRequest, PendingCacheRequest, SubmitResult};
use super::shape::PAGE_BYTES;
use super::{BlockCache, PAGES_MIN};
use crate::buffer::Buffer;
use crate::error::CacheError;
use crate::error::IoError;
use headwater_host::width::narrow;
use headwater_nvme::spec::status::Status;

/// A shrink in progress.
#[derive(Debug)]
pub(super) struct ShrinkState {
    request: u64,
    blocks: usize,
    /// The frames that still hold a page.
    remaining: Vec<u32>,
    retired: usize,
    failure: Option<Status>,
}

impl ShrinkState {
    pub(super) fn retired(&self) -> usize {
        self.retired
    }
}

impl BlockCache {
    /// Changes the number of pages, rounded up to blocks. Growth is immediate. A shrink writes back dirty pages in the
    /// memory to release, and waits for transfers there; if a page cannot be written, the cache keeps its size and the
    /// status gives the reason.
    ///
    /// # Errors
    /// [`IoError::Cache`] for an invalid number, or while a shrink is in progress; the errors of `memory`.
    pub fn resize<L: BackingDevice>(
        &mut self,
        lower: &mut L,
        owner: CacheUser,
        (pages, token): (usize, u64),
        memory: &mut dyn FnMut(usize) -> Result<Buffer, IoError>,
    ) -> Result<SubmitResult, IoError> {
        super::CacheConfig { pages, ..self.config }.check()?;
        if let Some(status) = self.gone {
            return Err(CacheError::Gone(status).into());
        }
        if self.shrink.is_some() {
            return Err(CacheError::Shrinking.into());
        }
        if !self.users.is_joined(owner.0) {
            return Err(CacheError::Left.into());
        }
        let blocks = self.config.blocks(pages.max(PAGES_MIN));
        if blocks >= self.frames.blocks() {
            self.grow(blocks, memory)?;
            let finished = FinishedRequest { token, status: Status::SUCCESS, data: None };
            return Ok(SubmitResult::Done(finished));
        }
        self.users.count_request(owner.0);
        let request =
            self.requests.insert(PendingCacheRequest::without_bytes(owner, token, CacheOperation::Shrink));
        let kept = blocks * self.config.block_pages;
        self.retained_frames = narrow(kept);
        let left = (self.retained_frames..).take(self.frames.count() - kept).collect();
        self.shrink = Some(ShrinkState { request, blocks, remaining: left, retired: 0, failure: None });
        self.dirty_background = percentage_of(kept, self.config.dirty_background);
        self.dirty_max = percentage_of(kept, self.config.dirty_max);
        // Pages that failed before are retried before they decide.
        self.mark_urgent(FrameList::Failed);
        self.run_until_idle(lower);
        Ok(SubmitResult::Pending)
    }

    /// Allocates blocks of memory up to this number; all of them, or none.
    pub(super) fn grow(
        &mut self,
        blocks: usize,
        memory: &mut dyn FnMut(usize) -> Result<Buffer, IoError>,
    ) -> Result<(), IoError> {
        let needed = self.config.block_pages * PAGE_BYTES;
        let mut taken = Vec::new();
        for _ in self.frames.blocks()..blocks {
            let block = memory(needed)?;
            if block.bytes() < needed {
                return Err(CacheError::Memory { bytes: block.bytes(), needed }.into());
            }
            taken.push(block);
        }
        for block in taken {
            self.frames.add(block);
        }
        self.rebuild_tables();
        Ok(())
    }

    pub(super) fn advance_shrink(&mut self) {
        let Some(mut shrink) = self.shrink.take() else { return };
        let mut left = std::mem::take(&mut shrink.remaining);
        let before = left.len();
        left.retain(|&frame| !self.retire_frame(frame, &mut shrink));
        shrink.retired += before - left.len();
        shrink.remaining = left;
        if !shrink.remaining.is_empty() && shrink.failure.is_none() {
            self.shrink = Some(shrink);
            return;
        }
        let kept = std::mem::replace(&mut self.retained_frames, NO_FRAME);
        if shrink.remaining.is_empty() {
            self.frames.keep_blocks(shrink.blocks);
        } else {
            for frame in (kept..).take(self.frames.count() - kept as usize) {
                if self.frames.frame(frame).state == FrameState::Retired {
                    self.release_frame(frame);
                }
            }
        }
        self.rebuild_tables();
        if let Some(mut pending) = self.requests.take(shrink.request) {
            if let Some(status) = shrink.failure.filter(|_| !shrink.remaining.is_empty()) {
                pending.fail(status);
            }
            self.finish(shrink.request, pending);
        }
        self.progressed = true;
    }

    /// Empties a frame whose memory is to be released. Returns `false` if it is not yet empty.
    fn retire_frame(&mut self, frame: u32, shrink: &mut ShrinkState) -> bool {
        loop {
            let at = *self.frames.frame(frame);
            if self.is_read_by_job(frame) {
                return false;
            }
            match at.state {
                FrameState::Retired => return true,
                FrameState::Free => {
                    self.frames.unlink(frame);
                    self.frames.frame_mut(frame).state = FrameState::Retired;
                    return true;
                }
                FrameState::Filling | FrameState::Writing => return false,
                FrameState::Idle if at.flags.has(PageFlags::DIRTY) => {
                    match self.frames.list(frame) {
                        FrameList::Dirty => {
                            self.frames.unlink(frame);
                            self.frames.push_back(FrameList::Urgent, frame);
                        }
                        FrameList::Failed => shrink.failure = Some(self.failure),
                        _ => {}
                    }
                    return false;
                }
                FrameState::Idle => {}
            }
            // A clean page moves to another frame, freed by evicting the least valuable page, which may be this one.
            match self.frames.first(FrameList::Free) {
                Some(to) if to < self.retained_frames => {
                    self.frames.move_to(frame, to);
                    self.index.set(at.page, to);
                    self.frames.frame_mut(frame).state = FrameState::Retired;
                    return true;
                }
                Some(other) => {
                    // This frame's memory is also to be released.
                    self.frames.unlink(other);
                    self.frames.frame_mut(other).state = FrameState::Retired;
                }
                None => {
                    if self.evict().is_none() {
                        self.drop_page(frame);
                    }
                }
            }
        }
    }
}
