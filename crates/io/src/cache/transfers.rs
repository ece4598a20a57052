//! Transfers: their submission, and the effects of their completions.
//!
//! Input: frames to fill and to write, completions. Output: transfers for the device, requests that continue.
//! Invariant: a frame under a transfer is not touched before completion; a completion counts once.

use super::backing::{BackingDevice, BackingTransfer, TransferKind, TransferRefusal};
use super::frames::{FrameList, FrameState, PageFlags};
use super::shape::PAGE;
use super::{BlockCache, FrameWaiter};
use crate::command::WriteDurability;
use headwater_nvme::spec::status::Status;
use std::collections::VecDeque;

/// The purpose of a transfer in flight.
#[derive(Debug)]
pub(super) enum TransferPurpose {
    /// A read of the pages of these frames.
    Fill(Vec<u32>),
    /// A write of the pages of these frames.
    WriteBack(Vec<u32>),
    /// A part of a direct request.
    Direct(u64),
    /// A flush of the device.
    Flush,
}

/// The transfers that are not yet submitted, by the path that carries them, so that a path without room holds up no
/// other.
#[derive(Debug, Default)]
pub(super) struct TransferOutbox {
    paths: Vec<(u16, PathOutbox)>,
}

impl TransferOutbox {
    fn path(&mut self, path: u16) -> &mut PathOutbox {
        let found = self.paths.iter().position(|(number, _)| *number == path);
        let at = found.unwrap_or_else(|| {
            self.paths.push((path, PathOutbox::default()));
            self.paths.len() - 1
        });
        &mut self.paths[at].1
    }
}

/// The transfers for one path. Write-backs alternate with other transfers, so that neither waits for all of the other.
#[derive(Debug, Default)]
struct PathOutbox {
    queues: [VecDeque<(u64, BackingTransfer)>; 2],
    turn: usize,
}

impl PathOutbox {
    fn push(&mut self, queue: usize, ticket: u64, transfer: BackingTransfer) {
        self.queues[queue].push_back((ticket, transfer));
    }

    fn next(&mut self) -> Option<(u64, BackingTransfer)> {
        let other = 1 - self.turn;
        if !self.queues[other].is_empty() {
            self.turn = other;
        }
        self.queues[self.turn].pop_front()
    }

    fn put_back(&mut self, ticket: u64, transfer: BackingTransfer) {
        self.queues[self.turn].push_front((ticket, transfer));
    }
}

impl BlockCache {
    /// Appends a transfer to the outbox.
    pub(super) fn queue_transfer(&mut self, flight: TransferPurpose, transfer: BackingTransfer) {
        let queue = usize::from(matches!(flight, TransferPurpose::WriteBack(_)));
        let ticket = self.transfers.insert(flight);
        self.queued.push((queue, ticket, transfer));
    }

    /// Submits queued transfers while the device accepts them.
    pub(super) fn submit_transfers<L: BackingDevice>(&mut self, lower: &mut L) {
        for (queue, ticket, transfer) in self.queued.drain(..) {
            self.outbox.path(lower.path_of(transfer.origin)).push(queue, ticket, transfer);
        }
        for path in 0..self.outbox.paths.len() {
            self.submit_path(lower, path);
        }
    }

    fn submit_path<L: BackingDevice>(&mut self, lower: &mut L, path: usize) {
        while let Some((ticket, transfer)) = self.outbox.paths[path].1.next() {
            match lower.submit(transfer, ticket) {
                Ok(()) => {}
                Err(TransferRefusal::Full(transfer)) => {
                    return self.outbox.paths[path].1.put_back(ticket, transfer);
                }
                Err(TransferRefusal::Failed(status)) => self.complete_transfer(ticket, status),
            }
        }
    }

    /// Processes every available completion.
    pub(super) fn reap_transfers<L: BackingDevice>(&mut self, lower: &mut L) {
        loop {
            match lower.poll() {
                Ok(Some(done)) => self.complete_transfer(done.ticket, done.status),
                Ok(None) => return,
                Err(status) => return self.handle_device_loss(status),
            }
        }
    }

    fn complete_transfer(&mut self, ticket: u64, status: Status) {
        self.progressed = true;
        match self.transfers.remove(ticket) {
            Some(TransferPurpose::Fill(frames)) => self.fill_completed(&frames, status),
            Some(TransferPurpose::WriteBack(frames)) => self.write_completed(&frames, status),
            Some(TransferPurpose::Direct(request)) => self.direct_completed(request, status),
            Some(TransferPurpose::Flush) => self.complete_flushes(status),
            None => self.statistics.unmatched_completions += 1,
        }
    }

    /// Starts to read frames with consecutive pages.
    pub(super) fn read_frames(&mut self, frames: Vec<u32>) {
        let page = self.frames.frame(frames[0]).page;
        let bytes = self.shape.run_bytes(page, frames.len());
        let segments = self.frames.segments(&frames, bytes);
        let durable = WriteDurability::NamespaceDefault;
        let (kind, origin) = (TransferKind::Read, self.frames.frame(frames[0]).origin);
        let transfer = BackingTransfer { kind, offset: page * PAGE, bytes, durable, origin, segments };
        self.queue_transfer(TransferPurpose::Fill(frames), transfer);
    }

    fn fill_completed(&mut self, frames: &[u32], status: Status) {
        if status.is_success() {
            frames.iter().for_each(|&frame| self.page_filled(frame));
            self.move_filled(frames);
            return frames.iter().for_each(|&frame| self.serve_waiters(frame));
        }
        for &frame in frames {
            if frames.len() > 1 && self.waiters.contains_key(&frame) {
                // The failure may be in another page of the transfer.
                self.read_frames(vec![frame]);
            } else {
                self.statistics.read_failures += 1;
                self.complete_waiters(frame, status, |_| true);
                self.drop_page(frame);
            }
        }
    }

    /// Makes a page that was read valid.
    fn page_filled(&mut self, frame: u32) {
        let page = self.frames.frame(frame).page;
        let proven = self.replacement.was_evicted_recently(page);
        let at = self.frames.frame_mut(frame);
        at.state = FrameState::Idle;
        if proven {
            at.flags.set(PageFlags::PROVEN);
        }
        self.list_clean(frame);
    }

    /// Puts a clean page on its list.
    pub(super) fn list_clean(&mut self, frame: u32) {
        let proven = self.frames.frame(frame).flags.has(PageFlags::PROVEN);
        self.frames.push_front(if proven { FrameList::Main } else { FrameList::Small }, frame);
    }

    /// Ends the waits for a frame that match `which`.
    pub(super) fn complete_waiters(
        &mut self,
        frame: u32,
        status: Status,
        which: impl Fn(&FrameWaiter) -> bool,
    ) {
        let Some(waiters) = self.waiters.remove(&frame) else { return };
        let (done, rest): (Vec<FrameWaiter>, Vec<FrameWaiter>) = waiters.into_iter().partition(which);
        if !rest.is_empty() {
            self.waiters.insert(frame, rest);
        }
        for waiter in done {
            if let Some(mut pending) = self.requests.take(waiter.request) {
                pending.waiting -= 1;
                if !status.is_success() {
                    pending.fail(status);
                }
                self.store_or_finish(waiter.request, pending, false);
            }
        }
    }

    /// Drops a page, clean or dirty; no request waits for it.
    pub(super) fn drop_page(&mut self, frame: u32) {
        self.frames.unlink(frame);
        self.clear_dirty(frame);
        self.index.remove(self.frames.frame(frame).page);
        self.release_frame(frame);
    }

    /// Clears the dirty state of a page.
    pub(super) fn clear_dirty(&mut self, frame: u32) {
        let at = self.frames.frame_mut(frame);
        if at.flags.has(PageFlags::DIRTY) {
            self.dirty -= 1;
        }
        if at.flags.has(PageFlags::ACKNOWLEDGED) {
            self.acknowledged -= 1;
        }
        if at.flags.has(PageFlags::FLUSHED) {
            self.flushes.marked -= 1;
        }
        for mark in [
            PageFlags::DIRTY,
            PageFlags::ACKNOWLEDGED,
            PageFlags::FLUSHED,
            PageFlags::ALONE,
            PageFlags::DURABLE,
        ] {
            at.flags.clear(mark);
        }
    }

    /// Releases an empty frame that is on no list.
    pub(super) fn release_frame(&mut self, frame: u32) {
        self.statistics.prefetch_wasted +=
            u64::from(self.frames.frame(frame).flags.has(PageFlags::PREFETCHED));
        self.frames.reset(frame);
        if frame < self.retained_frames {
            self.frames.push_back(FrameList::Free, frame);
        } else {
            self.frames.frame_mut(frame).state = FrameState::Retired;
        }
    }

    /// Takes a free frame, evicting a page if necessary; it is on no list.
    pub(super) fn take_frame(&mut self) -> Option<u32> {
        while self.frames.first(FrameList::Free).is_none() {
            self.evict()?;
        }
        let frame = self.frames.first(FrameList::Free)?;
        self.frames.unlink(frame);
        Some(frame)
    }

    /// Evicts a clean page that no job of the mover reads.
    pub(super) fn evict(&mut self) -> Option<()> {
        let mut read = Vec::new();
        let victim = loop {
            match self.replacement.evict(&mut self.frames) {
                Some(frame) if self.is_read_by_job(frame) => read.push(frame),
                found => break found,
            }
        };
        read.into_iter().for_each(|frame| self.list_clean(frame));
        let victim = victim?;
        self.statistics.evictions += 1;
        self.index.remove(self.frames.frame(victim).page);
        self.release_frame(victim);
        Some(())
    }

    /// Processes the loss of the device: completes every request, one whose buffer a job uses when the job ends, and never reuses
    /// memory that the device may access.
    fn handle_device_loss(&mut self, status: Status) {
        self.gone = Some(status);
        self.queued.clear();
        self.outbox = TransferOutbox::default();
        self.parked.clear();
        self.waiters.clear();
        self.locks.clear();
        let keys: Vec<u64> = self.requests.iter().map(|(key, _)| key).collect();
        for key in keys {
            if let Some(mut pending) = self.requests.take(key) {
                pending.fail(status);
                self.finish_after_moves(key, pending);
            }
        }
    }
}
