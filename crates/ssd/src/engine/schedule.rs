//! Schedules operations: new ones in order, stalled ones when their stall has ended.
//!
//! Input: slots of the slab. Output: calls to [`execute`], and each stalled operation woken exactly once.
//!
//! ```text
//!  incoming --run--> done
//!     |  ^---------- key held by another operation: waits behind it, in order
//!     +-- pages missing: holds its keys --pages read--> run again
//!     +-- no room: holds its keys, first come first served --room--> run again
//!     +-- depends on data not yet durable: holds its keys --durable--> run again
//! ```
//!
//! Invariant: operations on one key run in the order of their submission, regardless of their stalls.

use super::SsdDevice;
use crate::command::{Sequence, SsdCompletion};
use crate::engine::execute::{ExecutionOutcome, ReleaseGate, execute};
use crate::engine::operation::{KeySpan, OperationWork};
use crate::ftl::StallReason;
use crate::index::{IndexEntry, KeyHash, RecordIndex};
use crate::log::reads::ReadWaiter;
use crate::media::Media;
use headwater_host::copy::prefetch_read;
use headwater_nvme::spec::status::Status;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Operations prefetched together, so that the memory of the next one is loaded while one runs.
const PREFETCH_BATCH: usize = 32;

/// The queues of operations by what they wait for.
#[derive(Debug, Default)]
pub(super) struct OperationSchedule {
    /// Operations submitted and not yet run.
    pub(super) incoming: VecDeque<usize>,
    /// Records that the prefetched ones of these will read.
    ahead: Vec<Option<IndexEntry>>,
    /// Operations to run (again) before any new one.
    runnable: VecDeque<usize>,
    /// Disjoint spans of keys and blocks that stalled operations hold, by the first hash of each.
    held: BTreeMap<KeyHash, HeldSpan>,
    /// Operations stalled for room, in order.
    room: VecDeque<usize>,
    /// Operations stalled until this sequence is durable.
    durable: BTreeSet<(Sequence, usize)>,
    /// Expiries in flight.
    pub(super) expiring: usize,
}

/// A span of keys or blocks that a stalled operation holds.
#[derive(Debug)]
struct HeldSpan {
    last: KeyHash,
    /// Operations that wait for the span.
    behind: VecDeque<usize>,
}

impl OperationSchedule {
    /// Makes the operations runnable that wait for a sequence up to `durable`. Returns true if there were any.
    pub(super) fn wake_durable(&mut self, durable: Sequence) -> bool {
        let mut any = false;
        while let Some((_, at)) = self.durable.first().copied().filter(|(wanted, _)| *wanted <= durable) {
            self.durable.pop_first();
            self.runnable.push_back(at);
            any = true;
        }
        any
    }

    /// Removes an operation that holds no keys from the queue that it waits in. Returns true if it was in one.
    pub(super) fn pull(&mut self, at: usize) -> bool {
        let behind = self.held.values_mut().map(|held| &mut held.behind);
        [&mut self.incoming, &mut self.runnable].into_iter().chain(behind).any(|queue| {
            let index = queue.iter().position(|&waiting| waiting == at);
            index.and_then(|index| queue.remove(index)).is_some()
        })
    }

    /// Returns the queue behind a held span that overlaps this one: the last such span in index order.
    fn behind(&mut self, span: KeySpan) -> Option<&mut VecDeque<usize>> {
        let (_, held) = self.held.range_mut(..=span.last).next_back()?;
        (held.last >= span.first).then_some(&mut held.behind)
    }
}

impl<M: Media> SsdDevice<M> {
    /// Notifies the operations and the collector whose pages were read.
    pub(super) fn wake(&mut self) {
        for waiter in self.awake.drain(..) {
            match waiter {
                ReadWaiter::Collector => self.ftl.collector.wake(),
                ReadWaiter::Operation(at) => {
                    if let Some(operation) = self.slab.get_mut(at) {
                        operation.missing -= 1;
                        if operation.missing == 0 {
                            self.schedule.runnable.push_back(at);
                        }
                    }
                }
            }
        }
    }

    /// Runs waiting operations: those whose stall has ended, those behind them, and those that wait for room.
    pub(super) fn run_waiting(&mut self) -> bool {
        let mut moved = false;
        while let Some(at) = self.schedule.runnable.pop_front() {
            self.run(at);
            moved = true;
        }
        while let Some(&at) = self.schedule.room.front() {
            if self.slab.get(at).is_some_and(|operation| operation.missing > 0) {
                break;
            }
            self.run(at);
            if self.schedule.room.front() == Some(&at) {
                break;
            }
            moved = true;
            while let Some(at) = self.schedule.runnable.pop_front() {
                self.run(at);
            }
        }
        moved
    }

    /// Runs new operations in the order of their submission.
    pub(super) fn run_incoming(&mut self) -> bool {
        let moved = !self.schedule.incoming.is_empty();
        let mut ahead = std::mem::take(&mut self.schedule.ahead);
        while !self.schedule.incoming.is_empty() {
            let batch = self.schedule.incoming.len().min(PREFETCH_BATCH);
            self.prefetch_batch(batch, &mut ahead);
            for next in 1..=batch {
                if let Some(at) = self.schedule.incoming.pop_front() {
                    if let Some(Some(entry)) = ahead.get(next) {
                        self.ftl.expect(*entry);
                    }
                    self.run(at);
                    self.ftl.bring_in_rest();
                }
            }
        }
        self.schedule.ahead = ahead;
        moved
    }

    /// Prefetches the memory that the next operations will access: first all their index slots, then both ends of their
    /// records, because page table walks overlap only if no other work separates them. Fills `ahead` with the records
    /// that will be read.
    fn prefetch_batch(&self, batch: usize, ahead: &mut Vec<Option<IndexEntry>>) {
        let operations = || self.schedule.incoming.iter().take(batch).filter_map(|&at| self.slab.get(at));
        for operation in operations() {
            self.ftl.index.prefetch(operation.span.first);
        }
        ahead.clear();
        ahead.extend(operations().map(|operation| {
            let entry = self.ftl.prefetch_record(operation.span.first)?;
            if !operation.reads_value() {
                // An operation that replaces or removes the record updates the counts of its block.
                prefetch_read(self.ftl.blocks.get(entry.address.block()));
                return None;
            }
            self.ftl.prefetch_end(entry);
            Some(entry)
        }));
    }

    /// Runs one operation, unless one of its keys is held by another.
    pub(super) fn run(&mut self, at: usize) {
        if self.waits_behind_another(at) {
            return;
        }
        let waits_for_room = self.schedule.room.front().is_some_and(|first| *first != at);
        let Some(operation) = self.slab.get_mut(at) else {
            return;
        };
        operation.started.get_or_insert(self.now);
        // A write waits behind earlier ones that wait for room, else small writes could starve a large record.
        let result = if waits_for_room && operation.is_write() && operation.is_keyed() {
            Err(StallReason::Room { blocks: 0 })
        } else {
            execute(&mut self.ftl, operation)
        };
        for page in std::mem::take(&mut operation.pinned) {
            self.ftl.dram.unpin(page);
        }
        match result {
            Ok(outcome) => {
                self.ftl.stats.cache_hits += u64::from(!operation.holds);
                self.complete(at, outcome);
            }
            Err(stall) => self.park(at, stall),
        }
    }

    fn waits_behind_another(&mut self, at: usize) -> bool {
        if self.schedule.held.is_empty() {
            return false;
        }
        let Some(operation) = self.slab.get(at) else {
            return true;
        };
        if operation.holds {
            return false;
        }
        for span in operation.spans() {
            if let Some(behind) = self.schedule.behind(*span) {
                behind.push_back(at);
                return true;
            }
        }
        false
    }

    /// Ends an operation: removes it from the room queue and releases its keys.
    fn complete(&mut self, at: usize, outcome: ExecutionOutcome) {
        if self.schedule.room.front() == Some(&at) {
            self.schedule.room.pop_front();
            self.ftl.ready_wanted = 0;
        }
        if let Some(operation) = self.slab.get(at) {
            if matches!(operation.work, OperationWork::Expire { .. }) {
                self.schedule.expiring -= 1;
            }
            if operation.holds {
                for span in operation.spans() {
                    if let Some(held) = self.schedule.held.remove(&span.first) {
                        self.schedule.runnable.extend(held.behind);
                    }
                }
            }
        }
        self.finish(at, outcome);
    }

    fn park(&mut self, at: usize, stall: StallReason) {
        let Some(operation) = self.slab.get_mut(at) else {
            return;
        };
        if !operation.holds {
            operation.holds = true;
            for span in operation.spans() {
                let held = HeldSpan { last: span.last, behind: VecDeque::new() };
                self.schedule.held.entry(span.first).or_insert(held);
            }
        }
        match stall {
            StallReason::Pages(pages) if pages.is_empty() => self.schedule.runnable.push_back(at),
            StallReason::Pages(pages) => {
                self.ftl.stats.cache_misses += pages.len() as u64;
                operation.missing = pages.len();
                for page in &pages {
                    self.ftl.reads.request(*page, ReadWaiter::Operation(at), &self.ftl.blocks);
                }
                operation.pinned = pages;
            }
            StallReason::Durable(sequence) => {
                self.ftl.commit.want(sequence);
                // An operation in the room queue is run again every turn anyway.
                if !self.schedule.room.contains(&at) {
                    self.schedule.durable.insert((sequence, at));
                }
            }
            StallReason::Room { blocks } => {
                self.ftl.collector.demand(blocks);
                self.ftl.ready_wanted = self.ftl.ready_wanted.max(blocks);
                if !self.schedule.room.contains(&at) {
                    self.schedule.room.push_back(at);
                }
            }
        }
    }

    /// Fails the first operation in the room queue if no stage has work left or in flight, so that no room can become
    /// free. Returns true if it did.
    pub(super) fn unjam(&mut self, moved: bool) -> bool {
        let stuck = !moved
            && self.ftl.media.in_flight() == 0
            && self.ftl.commit.is_idle()
            && self.ftl.reads.is_empty()
            && self.ftl.log.backlog() == 0;
        let Some(&at) = self.schedule.room.front().filter(|_| stuck) else {
            return false;
        };
        self.ftl.stats.no_room += 1;
        let status =
            if self.ftl.failed.is_some() { Status::INTERNAL_ERROR } else { Status::CAPACITY_EXCEEDED };
        self.complete(
            at,
            ExecutionOutcome { completion: SsdCompletion::new(0, status), gate: ReleaseGate::Open },
        );
        true
    }
}
