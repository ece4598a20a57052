//! Schedules operations: new ones in order, stalled ones when their stall has ended.
//!
//! Input: slots of the slab. Output: calls to [`execute`], and each stalled operation woken exactly once.
//!
//! ```text
//!  incoming --run--> done
//!     |  +----------- checked in parts: those behind it wait --checked--> run
//!     +-- key held by another operation: holds its keys behind it --it ends--> run
//!     +-- pages missing: holds its keys --pages read--> run again
//!     +-- channels of the mover copy its value: holds its keys --their jobs ended--> run again
//!     +-- fills extents: holds its keys --their pages programmed--> run again
//!     +-- no room: holds its keys, first come first served --room--> run again
//!     +-- its namespace is being cleared: waits --cleared--> run again
//!     +-- copies in parts: holds its keys --turn--> run again
//!     +-- appends while the log is reserved: holds its keys --reservation ends--> run again
//!     +-- depends on data not yet durable: holds its keys --durable--> run again
//! ```
//!
//! Invariant: operations on one key run in the order of their submission, regardless of their stalls. One that waits for
//! another holds all its keys, also those that are free, so that no later operation on one of them overtakes it.

use super::SsdDevice;
use crate::command::{Sequence, SsdCompletion};
use crate::engine::execute::{ExecutionOutcome, ReleaseGate, execute, go_on};
use crate::engine::held_spans::HeldSpans;
use crate::engine::operation::{CommandSubject, DeviceOperation, KeyHold, OperationWork};
use crate::engine::operation_slab::OperationSlab;
use crate::ftl::{ClearStep, Ftl, StallReason};
use crate::index::IndexEntry;
use crate::log::extent_reads::EndedRun;
use crate::log::page_reads::{EndedRead, ReadResult, ReadWaiter};
use crate::media::Media;
use crate::mutant::{Mutant, mutant};
use std::collections::{BTreeSet, VecDeque};

/// Operations prefetched together, so that the memory of the next one is loaded while one runs.
const PREFETCH_BATCH: usize = 32;

/// The queues of operations by what they wait for.
#[derive(Debug, Default)]
pub(super) struct OperationSchedule {
    /// Operations submitted and not yet run.
    pub(super) incoming: VecDeque<usize>,
    /// Records that the prefetched ones of these will read.
    prefetched: Vec<Option<IndexEntry>>,
    /// Operations to run (again) before any new one.
    pub(super) runnable: VecDeque<usize>,
    /// Spans of keys and blocks that operations hold while they are stalled or wait for another.
    pub(super) held: HeldSpans,
    /// Operations stalled for room, in order.
    pub(super) waiting_for_room: VecDeque<usize>,
    /// Operations that wait until a cleared namespace has left the index, in order.
    waiting_for_clear: VecDeque<usize>,
    /// Operations that copy in parts, in order.
    pub(super) in_parts: VecDeque<usize>,
    /// Operations that wait until pages of extents are programmed.
    waiting_for_extents: Vec<usize>,
    /// The operation that the log is reserved for.
    reserver: Option<usize>,
    /// The state of that operation.
    reserver_state: ReserverState,
    /// Operations that wait for the end of the reservation, in order.
    waiting_for_log: VecDeque<usize>,
    /// Operations stalled until this sequence is durable.
    waiting_for_durability: BTreeSet<(Sequence, usize)>,
    /// Expiries in flight.
    pub(super) expiries_in_flight: usize,
    /// Operations whose pages were all in device memory.
    cache_hits: u64,
    /// Pages that operations had to wait for.
    cache_misses: u64,
    /// Operations that failed because no room could become free.
    pub(super) no_room: u64,
}

/// The state of the operation that the log is reserved for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ReserverState {
    /// It waits for pages, or runs.
    #[default]
    Stalled,
    /// It goes on in the next turn.
    Due,
    /// It tries again in the next turn: frames return when pages are written.
    LacksFrames,
}

impl OperationSchedule {
    /// Returns the operations whose pages were all in device memory, and the pages that operations had to wait for.
    pub(super) fn cache_hits_and_misses(&self) -> (u64, u64) {
        (self.cache_hits, self.cache_misses)
    }

    /// Returns the number of operations that failed because no room could become free.
    pub(super) fn no_room(&self) -> u64 {
        self.no_room
    }

    /// Makes the operations runnable that wait for a sequence up to `waiting_for_durability`. Returns true if there were any.
    pub(super) fn wake_durable(&mut self, durable: Sequence) -> bool {
        let mut any = false;
        while let Some((_, at)) =
            self.waiting_for_durability.first().copied().filter(|(wanted, _)| *wanted <= durable)
        {
            self.waiting_for_durability.pop_first();
            self.runnable.push_back(at);
            any = true;
        }
        any
    }

    /// Makes the operations runnable that wait for pages of extents.
    pub(super) fn wake_extents(&mut self) {
        self.runnable.extend(self.waiting_for_extents.drain(..));
    }

    /// Removes an operation that has not started from what it waits in. Returns true if it waited.
    pub(super) fn remove_waiting(&mut self, at: usize, operations: &OperationSlab) -> bool {
        let queues = [&mut self.incoming, &mut self.runnable, &mut self.waiting_for_clear];
        let was_queued = queues.into_iter().any(|queue| {
            let index = queue.iter().position(|&waiting| waiting == at);
            index.and_then(|index| queue.remove(index)).is_some()
        });
        let holds_keys = operations[at].hold != KeyHold::None;
        if holds_keys {
            self.held.withdraw(at, operations, |waiter| self.runnable.push_back(waiter));
        }
        was_queued || holds_keys
    }

    /// Queues an operation until the reservation of the log ends. One in the room queue is run again anyway.
    fn wait_for_log(&mut self, at: usize) {
        if !self.waiting_for_room.contains(&at) {
            self.waiting_for_log.push_back(at);
        }
    }

    /// Returns true unless the log is reserved for another operation.
    fn may_reserve(&self, at: usize) -> bool {
        self.reserver.is_none_or(|reserver| reserver == at)
    }

    /// Notes that the log is reserved for an operation, whose turn comes again.
    fn reserve(&mut self, at: usize) {
        self.reserver = Some(at);
        self.reserver_state = ReserverState::Due;
    }

    /// Ends the reservation of the log.
    fn end_reservation<M: Media>(&mut self, ftl: &mut Ftl<M>) {
        ftl.release_log();
        self.reserver = None;
        self.reserver_state = ReserverState::Stalled;
        self.runnable.extend(self.waiting_for_log.drain(..));
    }
}

/// Executes an operation while the log is reserved.
fn execute_beside<M: Media>(
    ftl: &mut Ftl<M>,
    operation: &mut DeviceOperation,
    is_reserver: bool,
) -> Result<ExecutionOutcome, StallReason> {
    if is_reserver {
        go_on(ftl, operation)
    } else if operation.waits_for_reservation() && (ftl.write_refusal().is_none() || !operation.is_write()) {
        Err(StallReason::LogReserved)
    } else {
        execute(ftl, operation)
    }
}

impl<M: Media> SsdDevice<M> {
    /// Notifies the operations and the collector whose pages were read.
    pub(super) fn notify_waiters(&mut self) {
        for EndedRead { waiter, page, result } in self.ended_reads.drain(..) {
            match waiter {
                ReadWaiter::Collector => self.ftl.end_victim_read(page, result, self.now),
                ReadWaiter::Operation(at) => {
                    let operation = &mut self.operations[at];
                    match result {
                        ReadResult::Pinned => operation.pinned_pages.push(page),
                        ReadResult::Outdated => {}
                        ReadResult::Failed(_) => operation.failed_pages.push(page),
                    }
                    let missing = &mut operation.missing_pages;
                    *missing =
                        missing.checked_sub(1).expect("an operation got a page that it did not wait for");
                    if *missing == 0 {
                        self.schedule.runnable.push_back(at);
                    }
                }
            }
        }
        for EndedRun { operation: at, run } in self.ftl.take_ended_runs() {
            let operation = &mut self.operations[at];
            operation.missing_pages -= usize::from(run.run.pages);
            operation.read_runs.push(run);
            if operation.missing_pages == 0 {
                self.schedule.runnable.push_back(at);
            }
        }
        self.notify_moved();
    }

    /// Runs waiting operations: those whose stall has ended, those behind them, and those that wait for room.
    pub(super) fn run_waiting(&mut self) -> bool {
        let step = self.ftl.advance_clears();
        let mut moved = step != ClearStep::Idle;
        moved |= self.operations.drop_part();
        if step != ClearStep::Part {
            self.schedule.runnable.extend(self.schedule.waiting_for_clear.drain(..));
        }
        moved |= self.run_reserver();
        // One part, whatever the number of operations that copy in parts.
        if self.release_queue.has_room() {
            self.schedule.runnable.extend(self.schedule.in_parts.pop_front());
        }
        while let Some(at) = self.schedule.runnable.pop_front() {
            self.run_operation(at);
            moved = true;
        }
        while let Some(&at) = self.schedule.waiting_for_room.front() {
            if self.operations[at].missing_pages > 0 || self.schedule.reserver.is_some() {
                break;
            }
            self.run_operation(at);
            if self.schedule.waiting_for_room.front() == Some(&at) {
                break;
            }
            moved = true;
            while let Some(at) = self.schedule.runnable.pop_front() {
                self.run_operation(at);
            }
        }
        moved
    }

    /// Runs the next part of the operation that the log is reserved for. Returns true if it did something.
    fn run_reserver(&mut self) -> bool {
        let Some(at) = self.schedule.reserver else { return false };
        if self.ftl.write_refusal().is_some() {
            // Writes are refused now, whatever they wait for.
            let waiting = std::mem::take(&mut self.schedule.waiting_for_log);
            let (mut refused, lists) = waiting.into_iter().partition(|at| self.operations[*at].is_write());
            self.schedule.waiting_for_log = lists;
            self.schedule.runnable.append(&mut refused);
        }
        if std::mem::take(&mut self.schedule.reserver_state) == ReserverState::Stalled {
            return false;
        }
        self.run_operation(at);
        self.schedule.reserver_state != ReserverState::LacksFrames
    }

    /// Runs new operations in the order of their submission, while there is room for the values that they read.
    pub(super) fn run_incoming(&mut self) -> bool {
        let mut moved = false;
        let mut ahead = std::mem::take(&mut self.schedule.prefetched);
        'turn: while !self.schedule.incoming.is_empty() && self.release_queue.has_room() {
            moved = true;
            let batch = self.schedule.incoming.len().min(PREFETCH_BATCH);
            self.prefetch_batch(batch, &mut ahead);
            for next in 1..=batch {
                if !self.release_queue.has_room() || !self.check_first() {
                    break 'turn;
                }
                if let Some(at) = self.schedule.incoming.pop_front() {
                    if let Some(Some(entry)) = ahead.get(next) {
                        self.ftl.prefetch_next(*entry);
                    }
                    self.run_operation(at);
                    self.ftl.prefetch_rest();
                }
            }
        }
        self.schedule.prefetched = ahead;
        moved
    }

    /// Checks the next part of the first new operation, if it is a long batch. Returns true if the operation may run. Until
    /// then the operations behind it wait, because one of their keys may be in the rest of the batch.
    fn check_first(&mut self) -> bool {
        let Some(&at) = self.schedule.incoming.front() else { return true };
        if self.operations[at].is_checked() {
            return true;
        }
        let checks = self.batch_checks();
        let operation = &mut self.operations[at];
        match operation.check_part(checks) {
            Ok(()) => operation.is_checked(),
            Err(status) => {
                self.schedule.incoming.pop_front();
                let completion = SsdCompletion::new(0, status);
                self.complete_operation(at, ExecutionOutcome { completion, gate: ReleaseGate::Immediate });
                false
            }
        }
    }

    /// Runs one operation, unless one of its keys is held by another.
    pub(super) fn run_operation(&mut self, at: usize) {
        if self.wait_for_held_keys(at) || self.wait_for_limits(at) || self.wait_for_clear(at) {
            return;
        }
        let waits_for_room = self.schedule.waiting_for_room.front().is_some_and(|first| *first != at);
        let operation = &mut self.operations[at];
        operation.started.get_or_insert(self.now);
        // A write waits behind earlier ones that wait for room, else small writes could starve a large record.
        let is_reserver = self.schedule.reserver == Some(at);
        let is_behind = waits_for_room && operation.may_wait_behind() && !is_reserver;
        let result = if is_behind {
            Err(StallReason::Room { blocks: 0 })
        } else {
            self.ftl.set_failed_pages(&operation.failed_pages);
            self.ftl.swap_read_runs(&mut operation.read_runs);
            let result = match self.schedule.reserver {
                None => execute(&mut self.ftl, operation),
                Some(_) => execute_beside(&mut self.ftl, operation, is_reserver),
            };
            self.ftl.clear_failed_pages();
            self.ftl.swap_read_runs(&mut operation.read_runs);
            result
        };
        if !matches!(result, Err(StallReason::Pages(_))) {
            let caching = operation.caching();
            operation.read_runs.drain(..).for_each(|run| self.ftl.put_back_run(run, caching));
        }
        let is_turn = matches!(result, Err(StallReason::Turn));
        // The pages of the other parts stay in memory until all are copied; the plan of a batch needs none again.
        if !is_turn || operation.batch_plan.is_some() || operation.reads_pages_once() {
            let is_used = !matches!(result, Err(StallReason::Pages(_)));
            for page in std::mem::take(&mut operation.pinned_pages) {
                self.ftl.unpin(page, is_used);
            }
        }
        if !is_turn {
            // The first write that waits for room keeps what is built; any other is built anew.
            let keeps = matches!(result, Err(StallReason::Room { .. })) && !is_behind;
            let begun = operation.store_progress.take_if(|_| !keeps);
            let drafts = begun.into_iter().flat_map(|progress| progress.drafts);
            drafts.for_each(|draft| self.ftl.discard_draft(draft));
        }
        match result {
            Ok(outcome) => {
                self.schedule.cache_hits += u64::from(operation.hold != KeyHold::Stalled);
                self.complete_operation(at, outcome);
            }
            Err(StallReason::Unreadable(_) | StallReason::InDoubt) => {
                operation.drop_read_parts();
                let completion = SsdCompletion::new(0, operation.unreadable_status());
                self.complete_operation(at, ExecutionOutcome { completion, gate: ReleaseGate::Immediate });
            }
            Err(stall) => self.stall_operation(at, stall),
        }
    }

    /// Returns true if the operation waits because a cleared namespace that it works on is still in the index.
    fn wait_for_clear(&mut self, at: usize) -> bool {
        if !self.ftl.is_clearing_any() || mutant(Mutant::ClearNotAwaited) {
            return false;
        }
        let operation = &mut self.operations[at];
        let OperationWork::Command(command) = &operation.work else { return false };
        let runs = command.namespace_runs();
        let waits = match command.subject() {
            _ if operation.is_appending() => false, // A batch waits for its own clears where it writes.
            CommandSubject::Keys | CommandSubject::Blocks => {
                self.ftl.is_clearing(operation.namespace)
                    || !mutant(Mutant::OneClearAwaited)
                        && runs.iter().any(|run| self.ftl.is_clearing(run.namespace))
            }
            CommandSubject::NamespaceTable => true,
            CommandSubject::Namespace => false,
        };
        if waits && !runs.is_empty() && operation.hold == KeyHold::None {
            // No operation on its other namespaces overtakes it.
            self.schedule.held.hold_in_order(at, operation);
        }
        // An operation in the room queue is run again every turn anyway.
        if waits && !self.schedule.waiting_for_room.contains(&at) {
            self.schedule.waiting_for_clear.push_back(at);
        }
        waits
    }

    /// Returns true if the operation waits because an earlier one holds one of its keys. One that holds its keys already is
    /// run only when those before it have ended.
    fn wait_for_held_keys(&mut self, at: usize) -> bool {
        if self.schedule.held.is_empty() || mutant(Mutant::HeldKeysIgnored) {
            return false;
        }
        let operation = &mut self.operations[at];
        operation.hold == KeyHold::None && self.schedule.held.wait(at, operation)
    }

    /// Ends an operation: removes it from the room queue and releases its keys.
    pub(super) fn complete_operation(&mut self, at: usize, outcome: ExecutionOutcome) {
        if self.schedule.waiting_for_room.front() == Some(&at) {
            self.schedule.waiting_for_room.pop_front();
            self.ftl.clear_room_request();
        }
        if let Some(store) = self.operations[at].extent_store.take() {
            self.end_unused_extents(at, store, outcome.completion.status);
        }
        let operation = &self.operations[at];
        match operation.work {
            OperationWork::Expire { .. } => self.schedule.expiries_in_flight -= 1,
            OperationWork::OpenExtent { receipt } => {
                self.ftl.end_receipt_extent(receipt, outcome.completion.status);
            }
            OperationWork::Command(_) | OperationWork::Vacant => {}
        }
        if operation.hold != KeyHold::None {
            if self.schedule.reserver == Some(at) {
                self.schedule.end_reservation(&mut self.ftl);
            }
            let runnable = &mut self.schedule.runnable;
            self.schedule.held.release(at, operation, |waiter| runnable.push_back(waiter));
        }
        self.finish_operation(at, outcome);
    }

    fn stall_operation(&mut self, at: usize, stall: StallReason) {
        let operation = &mut self.operations[at];
        self.schedule.held.hold(at, operation);
        if self.schedule.reserver == Some(at) && !self.ftl.is_log_reserved() {
            self.schedule.end_reservation(&mut self.ftl);
        }
        if matches!(stall, StallReason::Turn | StallReason::ExtentPages)
            && self.schedule.waiting_for_room.front() == Some(&at)
        {
            // It found room, and other operations may write while it is built.
            self.schedule.waiting_for_room.pop_front();
            self.ftl.clear_room_request();
        }
        match stall {
            StallReason::LogReserved => self.schedule.wait_for_log(at),
            StallReason::Turn if self.ftl.is_log_reserved() && self.schedule.may_reserve(at) => {
                self.schedule.reserve(at);
            }
            StallReason::Room { .. } if self.schedule.reserver == Some(at) && operation.is_appending() => {
                self.schedule.reserver_state = ReserverState::LacksFrames;
            }
            StallReason::Pages(pages) if pages.is_empty() => self.schedule.runnable.push_back(at),
            StallReason::Pages(pages) => {
                self.schedule.cache_misses += pages.len() as u64;
                operation.missing_pages = pages.len();
                for page in &pages {
                    self.ftl.request_page(*page, ReadWaiter::Operation(at));
                }
            }
            StallReason::Runs(runs) => {
                let pages = runs.iter().map(|run| usize::from(run.pages)).sum();
                self.schedule.cache_misses += pages as u64;
                operation.missing_pages = pages;
                self.ftl.request_runs(at, runs);
            }
            // One is copied whole before the next one begins, so that only one holds a part.
            StallReason::Turn if operation.has_begun_copy() => self.schedule.in_parts.push_front(at),
            StallReason::Turn => self.schedule.in_parts.push_back(at),
            StallReason::ExtentPages => self.schedule.waiting_for_extents.push(at),
            StallReason::Moves(range) => {
                let left = self.ftl.claim_copies(at);
                let left = if mutant(Mutant::CopiesNotAwaited) { 0 } else { left };
                if operation.begin_moves(left, range) {
                    self.schedule.in_parts.push_front(at);
                }
            }
            StallReason::NotDurable(sequence) => {
                self.ftl.request_sequence(sequence);
                // An operation in the room queue is run again every turn anyway.
                if !self.schedule.waiting_for_room.contains(&at) {
                    self.schedule.waiting_for_durability.insert((sequence, at));
                }
            }
            StallReason::Unreadable(page) => {
                unreachable!("an operation waits for {page}, which cannot be read")
            }
            StallReason::InDoubt => unreachable!("an operation waits for a record that is lost"),
            StallReason::Room { blocks } => {
                if self.schedule.reserver == Some(at) {
                    self.schedule.end_reservation(&mut self.ftl);
                }
                self.ftl.request_room(blocks);
                if !self.schedule.waiting_for_room.contains(&at) {
                    self.schedule.waiting_for_room.push_back(at);
                }
            }
        }
    }
}
