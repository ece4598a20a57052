//! Commands that wait for the limits of their namespace.
//!
//! In: operations of namespaces with limits, in the order of their submission. Out: the same operations in the same order,
//! none before its time. Invariant: a namespace that must wait keeps nobody else waiting, and no command of it overtakes
//! another.

use super::Device;
use crate::command::{BatchWrite, Command, LbaRange, NamespaceId, SubmitError};
use crate::index::Index;
use crate::limits::{NAMESPACES, THROTTLED_MAX};
use crate::media::Media;
use crate::namespace::bucket::Bucket;
use crate::operation::{Operation, Work};
use crate::record::UNIT_BYTES;
use headwater_host::clock::Nanos;
use std::collections::VecDeque;

/// One namespace's limits, and who waits for them.
#[derive(Debug, Default)]
struct Line {
    bucket: Bucket,
    queue: VecDeque<usize>,
    /// When the first may start.
    due: Nanos,
}

/// Every namespace's.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    lines: [Line; NAMESPACES],
    /// Operations waiting, in all lines.
    waiting: usize,
}

impl Throttle {
    /// When the next command may start.
    pub(super) fn next_start(&self) -> Option<Nanos> {
        if self.waiting == 0 {
            return None;
        }
        self.lines.iter().filter(|line| !line.queue.is_empty()).map(|line| line.due).min()
    }

    /// Takes an operation out of line. Whether it was there.
    pub(super) fn pull(&mut self, at: usize) -> bool {
        let pulled = self.lines.iter_mut().any(|line| {
            let place = line.queue.iter().position(|&waiting| waiting == at);
            place.and_then(|place| line.queue.remove(place)).is_some()
        });
        self.waiting -= usize::from(pulled);
        pulled
    }

    /// Whether a command that may have to wait finds a place to do so.
    #[inline]
    pub(super) fn has_room(&self, namespace: NamespaceId, command: &Command) -> Result<(), SubmitError> {
        match self.lines.get(namespace.index()) {
            Some(line) if line.queue.len() >= THROTTLED_MAX && is_counted(command) => {
                Err(SubmitError::Busy(THROTTLED_MAX))
            }
            _ => Ok(()),
        }
    }
}

impl<M: Media> Device<M> {
    /// Takes in a new operation: it runs in this turn, or waits until its namespace's limits let it start.
    #[inline]
    pub(super) fn take_in(&mut self, at: usize, namespace: NamespaceId) {
        if self.utl.table.limits(namespace).is_none() && self.throttle.waiting == 0 {
            self.schedule.incoming.push_back(at);
            return;
        }
        let line = &mut self.throttle.lines[namespace.index()];
        let counted = match self.slab.get(at).map(|operation| &operation.work) {
            Some(Work::Command(command)) => is_counted(command),
            _ => false,
        };
        if !counted || line.queue.is_empty() && self.utl.table.limits(namespace).is_none() {
            self.schedule.incoming.push_back(at);
            return;
        }
        if line.queue.is_empty() {
            line.due = self.now;
        }
        line.queue.push_back(at);
        self.throttle.waiting += 1;
        self.start_waiting(namespace);
    }

    /// Starts whatever may start by now. Returns whether anything did.
    pub(super) fn start_throttled(&mut self) -> bool {
        if self.throttle.waiting == 0 {
            return false;
        }
        let before = self.throttle.waiting;
        for number in (1..).take(NAMESPACES) {
            self.start_waiting(NamespaceId(number));
        }
        self.throttle.waiting < before
    }

    fn start_waiting(&mut self, namespace: NamespaceId) {
        let limits = self.utl.table.limits(namespace).unwrap_or_default();
        while let Some(&at) = self.throttle.lines[namespace.index()].queue.front() {
            let bytes = self.slab.get(at).map_or(0, |operation| self.moves(operation));
            let line = &mut self.throttle.lines[namespace.index()];
            if let Err(due) = line.bucket.take(&limits, bytes, self.now) {
                line.due = due;
                return;
            }
            line.queue.pop_front();
            self.throttle.waiting -= 1;
            self.schedule.incoming.push_back(at);
        }
    }

    /// Bytes of data that an operation moves; of a value to be read, what the index knows of it.
    fn moves(&self, operation: &Operation) -> u64 {
        let shift = operation.format.map_or(0, crate::namespace::BlockFormat::shift);
        let blocks =
            |ranges: &[LbaRange]| ranges.iter().map(|range| u64::from(range.blocks)).sum::<u64>() << shift;
        let Work::Command(command) = &operation.work else {
            return 0;
        };
        match command {
            Command::Store { value: data, .. }
            | Command::Write { data, .. }
            | Command::Compare { data, .. } => data.len() as u64,
            Command::Retrieve { bytes_max, .. } => {
                let record = self.utl.index.find(operation.span.first, 0);
                let bytes = record.map_or(0, |record| u64::from(record.units) * UNIT_BYTES as u64);
                bytes.min(u64::from(*bytes_max))
            }
            Command::Batch { writes } => {
                let values = writes.iter().map(|write| match write {
                    BatchWrite::Store { value, .. } => value.len() as u64,
                    BatchWrite::Delete { .. } => 0,
                });
                values.sum()
            }
            Command::Read { range, .. } => blocks(&[*range]),
            Command::Copy { sources, .. } => blocks(sources),
            _ => 0,
        }
    }
}

/// Whether a command counts against its namespace's limits: what only asks for durability, or administers, does not.
fn is_counted(command: &Command) -> bool {
    !matches!(command, Command::Flush | Command::Fence { .. } | Command::Namespace(_))
}
