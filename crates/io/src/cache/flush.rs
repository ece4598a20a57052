//! Flushes: all dirty pages are written to the device, then the device makes them durable.
//!
//! Input: flush requests. Output: their completions. Invariant: a flush succeeds if each page that was dirty at its
//! start was written, the device was flushed afterwards, and no earlier failure is unreported to its user. Flushes that
//! arrive while one is in progress are combined into the next.

use super::BlockCache;
use super::backing::{BackingDevice, BackingTransfer, TransferKind, TransferOrigin};
use super::frames::{FrameList, PageFlags};
use super::request::{PendingCacheRequest, SubmitResult};
use super::transfers::TransferPurpose;
use crate::command::WriteDurability;
use headwater_nvme::spec::status::Status;

/// The flushes in progress.
#[derive(Debug)]
pub(super) struct FlushState {
    waiting: Vec<u64>,
    active: Vec<u64>,
    phase: FlushPhase,
    /// The pages that the active flushes wait for.
    pub(super) marked: usize,
    /// The result of the active flushes.
    pub(super) status: Status,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlushPhase {
    Idle,
    Pages,
    Device,
}

impl Default for FlushState {
    fn default() -> Self {
        let (waiting, active) = (Vec::new(), Vec::new());
        Self { waiting, active, phase: FlushPhase::Idle, marked: 0, status: Status::SUCCESS }
    }
}

impl BlockCache {
    pub(super) fn begin_flush<L: BackingDevice>(
        &mut self,
        lower: &mut L,
        pending: PendingCacheRequest,
    ) -> SubmitResult {
        self.users.count_request(pending.owner);
        let key = self.requests.insert(pending);
        self.flushes.waiting.push(key);
        self.run_until_idle(lower);
        SubmitResult::Pending
    }

    pub(super) fn advance_flush(&mut self) {
        loop {
            match self.flushes.phase {
                FlushPhase::Idle if self.flushes.waiting.is_empty() => return,
                FlushPhase::Idle => {
                    self.flushes.active = std::mem::take(&mut self.flushes.waiting);
                    self.flushes.status = Status::SUCCESS;
                    self.flushes.phase = FlushPhase::Pages;
                    self.mark_dirty_pages();
                }
                FlushPhase::Pages if self.flushes.marked > 0 => return,
                FlushPhase::Pages if !self.flushes.status.is_success() => {
                    self.complete_flushes(self.flushes.status);
                }
                FlushPhase::Pages => {
                    self.flushes.phase = FlushPhase::Device;
                    let transfer = BackingTransfer {
                        kind: TransferKind::Flush,
                        offset: 0,
                        bytes: 0,
                        durable: WriteDurability::NamespaceDefault,
                        origin: self.flush_origin(),
                        segments: Vec::new(),
                    };
                    return self.queue_transfer(TransferPurpose::Flush, transfer);
                }
                FlushPhase::Device => return,
            }
        }
    }

    /// Returns the origin of the most urgent of the active flushes, which one flush of the device serves together.
    fn flush_origin(&self) -> TransferOrigin {
        let active = self.flushes.active.iter().filter_map(|&key| self.requests.get(key));
        active.map(PendingCacheRequest::origin).min_by_key(|origin| origin.class).unwrap_or_default()
    }

    /// Marks every page that is dirty now, including those being written, and starts writing the rest.
    fn mark_dirty_pages(&mut self) {
        let mut dirty: Vec<u32> = Vec::with_capacity(self.dirty);
        for list in [FrameList::Urgent, FrameList::Dirty, FrameList::Failed] {
            dirty.extend(self.frames.iter(list));
        }
        for (_, flight) in self.transfers.iter() {
            if let TransferPurpose::WriteBack(frames) = flight {
                dirty.extend(frames);
            }
        }
        for &frame in &dirty {
            self.frames.frame_mut(frame).flags.set(PageFlags::FLUSHED);
        }
        self.flushes.marked = dirty.len();
        self.mark_urgent(FrameList::Failed);
        self.mark_urgent(FrameList::Dirty);
    }

    pub(super) fn complete_flushes(&mut self, status: Status) {
        self.flushes.phase = FlushPhase::Idle;
        self.progressed = true;
        for key in std::mem::take(&mut self.flushes.active) {
            let Some(mut pending) = self.requests.take(key) else { continue };
            let is_news = self.users.report_failures(pending.owner);
            if !status.is_success() {
                pending.fail(status);
            } else if is_news {
                pending.fail(self.failure);
            }
            self.finish(key, pending);
        }
    }
}
