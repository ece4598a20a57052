//! Write-back of dirty pages: their selection, their time, and their completion.
//!
//! Input: dirty pages, time, completions. Output: transfers of adjacent pages. Invariants: a page does not change while
//! it is being written; a page whose write was acknowledged stays dirty until the device has it; pages of a failed
//! transfer are retried one by one.

use super::BlockCache;
use super::backing::{BackingTransfer, TransferKind};
use super::frames::{FrameList, FrameState, PageFlags};
use super::shape::{PAGE, to_u64};
use super::transfers::TransferPurpose;
use crate::command::WriteDurability;
use headwater_nvme::spec::status::Status;
use std::collections::VecDeque;

impl BlockCache {
    /// Starts the write-backs that are due.
    pub(super) fn write_back(&mut self) {
        while self.write_backs < self.config.write_backs {
            let Some(frame) = self.next_to_write() else { return };
            self.start_write(self.adjacent_dirty(frame));
        }
    }

    fn next_to_write(&self) -> Option<u32> {
        // A page that a job of the mover writes is on its list, and not idle.
        let is_free = |&frame: &u32| {
            let at = self.frames.frame(frame);
            at.state == FrameState::Idle && !self.is_locked(at.page)
        };
        if let Some(frame) = self.frames.iter(FrameList::Urgent).find(is_free) {
            return Some(frame);
        }
        let oldest = self.frames.first(FrameList::Dirty)?;
        let is_old = self.frames.frame(oldest).dirty_since.after(self.config.dirty_age) <= self.now;
        let is_much = self.frames.len(FrameList::Dirty) > self.dirty_background;
        // Parked requests may wait for free frames.
        let is_due = is_old || is_much || !self.parked.is_empty();
        self.frames.iter(FrameList::Dirty).find(|frame| is_due && is_free(frame))
    }

    /// Returns the dirty pages adjacent to a page that can be written in one transfer with it, in order: pages that the
    /// same user wrote in the same class.
    fn adjacent_dirty(&self, frame: u32) -> Vec<u32> {
        let Self { frames, limits, .. } = self;
        let mut run = VecDeque::from([frame]);
        if frames.frame(frame).flags.has(PageFlags::ALONE) {
            return run.into();
        }
        let origin = frames.frame(frame).origin;
        let goes_too = |page: u64| {
            let frame = self.index.find(page)?;
            let at = frames.frame(frame);
            let is_fit = matches!(frames.list(frame), FrameList::Dirty | FrameList::Urgent)
                && at.state == FrameState::Idle;
            let is_fit = is_fit && at.origin == origin;
            (is_fit && !at.flags.has(PageFlags::ALONE) && !self.is_locked(page)).then_some(frame)
        };
        let (mut first, mut end) = (frames.frame(frame).page, frames.frame(frame).page + 1);
        let (most, mut segments) = (self.transfer_pages(), 1);
        while run.len() < most && first > 0 {
            let Some(frame) = goes_too(first - 1) else { break };
            segments += usize::from(!frames.are_contiguous(frame, run[0]));
            if segments > limits.segments_max {
                break;
            }
            run.push_front(frame);
            first -= 1;
        }
        while run.len() < most {
            let Some(frame) = goes_too(end) else { break };
            segments += usize::from(!frames.are_contiguous(run[run.len() - 1], frame));
            if segments > limits.segments_max {
                break;
            }
            run.push_back(frame);
            end += 1;
        }
        run.into()
    }

    fn start_write(&mut self, run: Vec<u32>) {
        let page = self.frames.frame(run[0]).page;
        let bytes = self.shape.run_bytes(page, run.len());
        let segments = self.frames.segments(&run, bytes);
        let mut durable = WriteDurability::NamespaceDefault;
        for &frame in &run {
            self.frames.unlink(frame);
            let at = self.frames.frame_mut(frame);
            at.state = FrameState::Writing;
            if at.flags.has(PageFlags::DURABLE) {
                durable = WriteDurability::Immediate;
            }
        }
        self.write_backs += 1;
        self.statistics.write_backs += 1;
        let (kind, origin) = (TransferKind::Write, self.frames.frame(run[0]).origin);
        let transfer = BackingTransfer { kind, offset: page * PAGE, bytes, durable, origin, segments };
        self.queue_transfer(TransferPurpose::WriteBack(run), transfer);
    }

    pub(super) fn write_completed(&mut self, frames: &[u32], status: Status) {
        self.write_backs -= 1;
        if status.is_success() {
            self.statistics.pages_written += to_u64(frames.len());
        }
        for &frame in frames {
            self.frames.frame_mut(frame).state = FrameState::Idle;
            if status.is_success() {
                self.complete_waiters(frame, status, |waiter| waiter.written);
                self.clear_dirty(frame);
                self.list_clean(frame);
                self.serve_waiters(frame);
            } else if frames.len() > 1 {
                self.frames.frame_mut(frame).flags.set(PageFlags::ALONE);
                self.frames.push_back(FrameList::Urgent, frame);
                self.serve_waiters(frame);
            } else {
                self.write_failed(frame, status);
            }
        }
    }

    /// Processes a page that could not be written.
    fn write_failed(&mut self, frame: u32, status: Status) {
        self.statistics.write_failures += 1;
        self.failure = status;
        let now = self.now;
        let at = self.frames.frame_mut(frame);
        if at.flags.has(PageFlags::FLUSHED) {
            at.flags.clear(PageFlags::FLUSHED);
            self.flushes.marked -= 1;
            self.flushes.status = status;
        }
        if at.flags.has(PageFlags::ACKNOWLEDGED) {
            at.dirty_since = now;
            self.users.record_failure();
            self.frames.push_back(FrameList::Failed, frame);
            self.complete_waiters(frame, status, |waiter| waiter.written);
            return self.serve_waiters(frame);
        }
        // This write was not acknowledged, so the device's contents are valid and nothing is lost.
        self.complete_waiters(frame, status, |waiter| waiter.written);
        if self.is_read_by_job(frame) {
            // The page keeps its bytes for the job, as a failed one that is retried.
            self.frames.frame_mut(frame).dirty_since = now;
            self.frames.push_back(FrameList::Failed, frame);
        } else if self.waiters.contains_key(&frame) {
            self.clear_dirty(frame);
            self.frames.frame_mut(frame).state = FrameState::Filling;
            self.read_frames(vec![frame]);
        } else {
            self.drop_page(frame);
        }
    }

    /// Moves every page of a list to the urgent list.
    pub(super) fn mark_urgent(&mut self, list: FrameList) {
        while let Some(frame) = self.frames.first(list) {
            self.frames.unlink(frame);
            self.frames.push_back(FrameList::Urgent, frame);
        }
    }

    /// Retries pages whose failure is old enough.
    pub(super) fn retry_failed(&mut self) {
        while let Some(frame) = self.frames.first(FrameList::Failed) {
            if self.frames.frame(frame).dirty_since.after(self.config.dirty_age) > self.now {
                return;
            }
            self.frames.unlink(frame);
            self.frames.push_back(FrameList::Urgent, frame);
        }
    }
}
