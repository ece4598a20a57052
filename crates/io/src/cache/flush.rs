//! Flushes: all dirty pages are written to the device, then the device makes them durable.
//!
//! Input: flush requests. Output: their completions. Invariant: a flush succeeds if each page that was dirty at its
//! start was written, the device was flushed afterwards, and no earlier failure is unreported to its user. Flushes that
//! arrive while one is in progress are combined into the next.

use super::Cache;
use super::flight::Flight;
use super::frames::{List, Marks};
use super::lower::{Kind, Lower, Transfer};
use super::request::{Pending, Submitted};
use crate::command::Durable;
use headwater_nvme::spec::status::Status;

/// The flushes in progress.
#[derive(Debug)]
pub(super) struct Flushes {
    waiting: Vec<u64>,
    active: Vec<u64>,
    phase: Phase,
    /// The pages that the active flushes wait for.
    pub(super) marked: usize,
    /// The result of the active flushes.
    pub(super) status: Status,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Rest,
    Pages,
    Device,
}

impl Default for Flushes {
    fn default() -> Self {
        let (waiting, active) = (Vec::new(), Vec::new());
        Self { waiting, active, phase: Phase::Rest, marked: 0, status: Status::SUCCESS }
    }
}

impl Cache {
    pub(super) fn begin_flush<L: Lower>(&mut self, lower: &mut L, pending: Pending) -> Submitted {
        self.owners.begin(pending.owner);
        let key = self.requests.insert(pending);
        self.flushes.waiting.push(key);
        self.settle(lower);
        Submitted::Later
    }

    pub(super) fn advance_flush(&mut self) {
        loop {
            match self.flushes.phase {
                Phase::Rest if self.flushes.waiting.is_empty() => return,
                Phase::Rest => {
                    self.flushes.active = std::mem::take(&mut self.flushes.waiting);
                    self.flushes.status = Status::SUCCESS;
                    self.flushes.phase = Phase::Pages;
                    self.mark_dirty_pages();
                }
                Phase::Pages if self.flushes.marked > 0 => return,
                Phase::Pages if !self.flushes.status.is_success() => self.end_flush(self.flushes.status),
                Phase::Pages => {
                    self.flushes.phase = Phase::Device;
                    let (durable, segments) = (Durable::AsPromised, Vec::new());
                    let transfer = Transfer { kind: Kind::Flush, offset: 0, bytes: 0, durable, segments };
                    return self.launch(Flight::Flush, transfer);
                }
                Phase::Device => return,
            }
        }
    }

    /// Marks every page that is dirty now, including those being written, and starts writing the rest.
    fn mark_dirty_pages(&mut self) {
        let mut dirty: Vec<u32> = Vec::with_capacity(self.dirty);
        for list in [List::Urgent, List::Dirty, List::Failed] {
            dirty.extend(self.frames.iter(list));
        }
        for (_, flight) in self.flights.iter() {
            if let Flight::WriteBack(frames) = flight {
                dirty.extend(frames);
            }
        }
        for &frame in &dirty {
            self.frames.at(frame).marks.set(Marks::FLUSHED);
        }
        self.flushes.marked = dirty.len();
        self.hurry(List::Failed);
        self.hurry(List::Dirty);
    }

    pub(super) fn end_flush(&mut self, status: Status) {
        self.flushes.phase = Phase::Rest;
        self.stirred = true;
        for key in std::mem::take(&mut self.flushes.active) {
            let Some(mut pending) = self.requests.take(key) else { continue };
            let is_news = self.owners.tell(pending.owner);
            if !status.is_success() {
                pending.fail(status);
            } else if is_news {
                pending.fail(self.failure);
            }
            self.finish(key, pending);
        }
    }
}
