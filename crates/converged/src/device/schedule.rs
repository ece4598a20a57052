//! Which operation runs when: new ones in order, stalled ones when what they waited for has come.
//!
//! In: slots of the slab. Out: calls to [`execute`], and parked operations woken exactly once.
//!
//! ```text
//!  incoming --run--> done
//!     |  ^---------- key held by another: behind it, in order
//!     +-- pages missing: holds its keys --pages came--> run again
//!     +-- no room: holds its keys, first come first served --room--> run again
//!     +-- rests on what may be lost: holds its keys --durable--> run again
//! ```
//!
//! Invariant: operations on one key run in the order of their submission, whatever each of them waits for.

use super::Device;
use crate::command::{Completion, Sequence};
use crate::execute::{Gate, Outcome, execute};
use crate::index::{Entry, Index, KeyHash};
use crate::media::Media;
use crate::operation::{Span, Work};
use crate::reads::Waiter;
use crate::utl::Stall;
use headwater_host::copy::prefetch_read;
use headwater_nvme::spec::status::Status;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Operations looked at together, so that the memory of the next is on its way while one is worked on.
const PREFETCH_BATCH: usize = 32;

/// Who waits for what.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    /// Submitted, and not yet run.
    pub(super) incoming: VecDeque<usize>,
    /// Records that the next of these will read, as far as was looked ahead.
    ahead: Vec<Option<Entry>>,
    /// To be run (again) before anything new.
    runnable: VecDeque<usize>,
    /// Keys and blocks held by stalled operations, none meeting another, by the first of each run.
    held: BTreeMap<KeyHash, Held>,
    /// Stalled for room, in order.
    room: VecDeque<usize>,
    /// Stalled until so much is durable.
    durable: BTreeSet<(Sequence, usize)>,
    /// Expiries under way.
    pub(super) expiring: usize,
}

/// A run of keys or blocks that a stalled operation holds.
#[derive(Debug)]
struct Held {
    last: KeyHash,
    /// Who waits behind it.
    behind: VecDeque<usize>,
}

impl Schedule {
    /// Lets those go on who waited for no more than this to be durable. Returns whether there were any.
    pub(super) fn wake_durable(&mut self, durable: Sequence) -> bool {
        let mut any = false;
        while let Some((_, at)) = self.durable.first().copied().filter(|(wanted, _)| *wanted <= durable) {
            self.durable.pop_first();
            self.runnable.push_back(at);
            any = true;
        }
        any
    }

    /// Takes an operation that waits for its turn, and holds nothing, out of line. Whether it did.
    pub(super) fn pull(&mut self, at: usize) -> bool {
        let behind = self.held.values_mut().map(|held| &mut held.behind);
        [&mut self.incoming, &mut self.runnable].into_iter().chain(behind).any(|line| {
            let place = line.iter().position(|&waiting| waiting == at);
            place.and_then(|place| line.remove(place)).is_some()
        })
    }

    /// Who waits behind the first run held that meets this one.
    fn behind(&mut self, span: Span) -> Option<&mut VecDeque<usize>> {
        let (_, held) = self.held.range_mut(..=span.last).next_back()?;
        (held.last >= span.first).then_some(&mut held.behind)
    }
}

impl<M: Media> Device<M> {
    /// Hands pages that came to those who waited.
    pub(super) fn wake(&mut self) {
        for waiter in self.awake.drain(..) {
            match waiter {
                Waiter::Collector => self.utl.collector.wake(),
                Waiter::Operation(at) => {
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

    /// Runs what was waiting: operations whose pages came, those behind them, and those that waited for room.
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
                        self.utl.expect(*entry);
                    }
                    self.run(at);
                    self.utl.bring_in_rest();
                }
            }
        }
        self.schedule.ahead = ahead;
        moved
    }

    /// Has what the next operations will look at on its way: first all their index slots, then both ends of their records,
    /// because ways through the page tables overlap only where nothing lies between. Says which records will be read.
    fn prefetch_batch(&self, batch: usize, ahead: &mut Vec<Option<Entry>>) {
        let operations = || self.schedule.incoming.iter().take(batch).filter_map(|&at| self.slab.get(at));
        for operation in operations() {
            self.utl.index.prefetch(operation.span.first);
        }
        ahead.clear();
        ahead.extend(operations().map(|operation| {
            let entry = self.utl.prefetch_record(operation.span.first)?;
            if !operation.reads_value() {
                // What replaces or removes it counts it out of its block.
                prefetch_read(self.utl.blocks.get(entry.address.block()));
                return None;
            }
            self.utl.prefetch_end(entry);
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
        // Whoever needs room waits behind those who asked before, else a large record would wait for ever.
        let result = if waits_for_room && operation.is_write() && operation.is_keyed() {
            Err(Stall::Room { blocks: 0 })
        } else {
            execute(&mut self.utl, operation)
        };
        for page in std::mem::take(&mut operation.pinned) {
            self.utl.dram.unpin(page);
        }
        match result {
            Ok(outcome) => {
                self.utl.stats.cache_hits += u64::from(!operation.holds);
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

    /// The operation is done: it leaves the room queue and lets go of its keys.
    fn complete(&mut self, at: usize, outcome: Outcome) {
        if self.schedule.room.front() == Some(&at) {
            self.schedule.room.pop_front();
            self.utl.ready_wanted = 0;
        }
        if let Some(operation) = self.slab.get(at) {
            if matches!(operation.work, Work::Expire { .. }) {
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

    fn park(&mut self, at: usize, stall: Stall) {
        let Some(operation) = self.slab.get_mut(at) else {
            return;
        };
        if !operation.holds {
            operation.holds = true;
            for span in operation.spans() {
                let held = Held { last: span.last, behind: VecDeque::new() };
                self.schedule.held.entry(span.first).or_insert(held);
            }
        }
        match stall {
            Stall::Pages(pages) if pages.is_empty() => self.schedule.runnable.push_back(at),
            Stall::Pages(pages) => {
                self.utl.stats.cache_misses += pages.len() as u64;
                operation.missing = pages.len();
                for page in &pages {
                    self.utl.reads.request(*page, Waiter::Operation(at), &self.utl.blocks);
                }
                operation.pinned = pages;
            }
            Stall::Durable(sequence) => {
                self.utl.commit.want(sequence);
                // Whoever stands in line for room is asked again every turn.
                if !self.schedule.room.contains(&at) {
                    self.schedule.durable.insert((sequence, at));
                }
            }
            Stall::Room { blocks } => {
                self.utl.collector.demand(blocks);
                self.utl.ready_wanted = self.utl.ready_wanted.max(blocks);
                if !self.schedule.room.contains(&at) {
                    self.schedule.room.push_back(at);
                }
            }
        }
    }

    /// When nothing moves, nothing is under way, and somebody still waits for room, there is none to be had: the first
    /// in line is told so. Returns whether that was so.
    pub(super) fn unjam(&mut self, moved: bool) -> bool {
        let stuck = !moved
            && self.utl.media.in_flight() == 0
            && self.utl.commit.is_idle()
            && self.utl.reads.is_empty()
            && self.utl.log.backlog() == 0;
        let Some(&at) = self.schedule.room.front().filter(|_| stuck) else {
            return false;
        };
        self.utl.stats.no_room += 1;
        let status =
            if self.utl.failed.is_some() { Status::INTERNAL_ERROR } else { Status::CAPACITY_EXCEEDED };
        self.complete(at, Outcome { completion: Completion::new(0, status), gate: Gate::Open });
        true
    }
}
