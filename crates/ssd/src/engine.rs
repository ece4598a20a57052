//! The device that every front end submits commands to and takes completions from.
//!
//! Input: commands from front ends, time, and a medium. Output: one completion a command, released as the durability of
//! its namespace requires. One call of [`SsdDevice::poll`] runs each stage once: media completions, waiting operations,
//! new operations, expiry, collection, commit, release. Invariant: a turn never blocks, sleeps or reads a clock.

mod abort;
mod accessors;
pub mod administration;
mod batch_keys;
mod batch_namespaces;
mod batch_plan;
mod checkpoint;
mod discarded_batches;
mod execute;
mod held_spans;
pub mod inspection;
mod key_span;
mod keyed_batch;
mod moves;
mod open;
mod operation;
mod operation_moves;
mod operation_place;
mod operation_slab;
mod prefetch;
pub(crate) mod progress;
mod receive;
mod recovery;
mod schedule;
pub mod snapshot;
mod stuck;
mod submit;
mod throttle;
pub mod trace;
pub mod upgrade;
mod validate;

use crate::command::{FrontEndId, NamespaceId, Sequence, SsdCommand, SsdCompletion, SubmitError};
use crate::engine::batch_namespaces::NamespaceSet;
use crate::engine::checkpoint::Checkpointer;
use crate::engine::execute::{ExecutionOutcome, ReleaseGate};
use crate::engine::key_span::KeySpan;
use crate::engine::operation::OperationWork;
use crate::engine::operation_slab::OperationSlab;
use crate::engine::trace::StageTracer;
use crate::ftl::{Ftl, PumpOutcome, StallReason};
use crate::limits::{NAMESPACES, UNTAKEN_BYTES_MAX};
use crate::log::page_reads::{EndedRead, ReadWaiter};
use crate::media::{Media, MediaError};
use crate::mutant::{Mutant, mutant};
use administration::AdminState;
use administration::host_traffic::count_traffic;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use schedule::OperationSchedule;
use std::collections::{BTreeMap, VecDeque};
use throttle::CommandThrottle;

pub use crate::config::{
    COMMIT_GATHERING, DeviceConfig, DeviceStats, Durability, FailedOperation, FailedRead, FailedWrite,
    LossDigest, VictimPolicy,
};
pub use keyed_batch::KeyedBatch;
pub use open::{OpenError, OpenReason, OpeningLosses, OpeningReads, StartTime};
pub(crate) use open::{build_ftl, recover_readable};
pub use progress::OpenProgress;
pub use recovery::RecoveryError;

/// A key-value and block device on one medium.
#[derive(Debug)]
pub struct SsdDevice<M> {
    ftl: Ftl<M>,
    operations: OperationSlab,
    schedule: OperationSchedule,
    throttle: CommandThrottle,
    release_queue: ReleaseQueue,
    /// Durability of the namespaces whose own settings give none.
    default_durability: [Durability; NAMESPACES],
    interval_due: Option<Nanos>,
    checkpointer: Checkpointer,
    tracer: StageTracer,
    ended_reads: Vec<EndedRead>,
    now: Nanos,
    administration: AdminState,
    opening_reads: OpeningReads,
    opening_losses: OpeningLosses,
}

impl<M: Media> SsdDevice<M> {
    fn from_ftl(mut ftl: Ftl<M>, config: &DeviceConfig) -> Self {
        ftl.set_gathering(config.commit_gathering);
        Self {
            ftl,
            operations: OperationSlab::default(),
            schedule: OperationSchedule::default(),
            throttle: CommandThrottle::default(),
            release_queue: ReleaseQueue::default(),
            default_durability: config.durability,
            interval_due: None,
            checkpointer: Checkpointer::new(config.map_part_entries),
            tracer: StageTracer::default(),
            ended_reads: Vec::new(),
            now: Nanos::ZERO,
            administration: AdminState::default(),
            opening_reads: OpeningReads::default(),
            opening_losses: OpeningLosses::default(),
        }
    }

    /// Submits a command for a front end. `Ok` means that exactly one completion follows; `Err` means that none does.
    ///
    /// # Errors
    /// [`SubmitError::Busy`] if the caller must retry, [`SubmitError::Refused`] for a command that can never work.
    pub fn submit(
        &mut self,
        front_end: FrontEndId,
        namespace: NamespaceId,
        token: u64,
        command: SsdCommand,
    ) -> Result<(), SubmitError> {
        self.submit_keyed(front_end, namespace, token, (command, None))
    }

    /// Runs every stage as far as it can go at this time, without blocking. Returns true if any state changed.
    pub fn poll(&mut self, now: Nanos, wall: UnixMillis) -> bool {
        self.now = now;
        self.ftl.set_wall(wall);
        let mut moved = self.pump();
        moved |= self.run_waiting();
        moved |= self.run_incoming();
        // They run in the next turn, behind what comes without limits.
        moved |= self.start_throttled();
        let is_reserved = self.ftl.is_log_reserved() && !mutant(Mutant::CollectedDuringBatch);
        if self.ftl.lack_of_space().is_none() && !is_reserved {
            moved |= self.submit_expiries();
            moved |= self.collect();
            moved |= self.checkpointer.advance(&mut self.ftl, now);
        }
        moved |= self.commit_due_interval();
        self.ftl.note_completed(self.release_queue.pushed(), self.release_queue.pushed_gated());
        moved |= self.pump();
        moved |= self.release_durable();
        moved |= !is_reserved && self.run_actions();
        moved | self.fail_if_stuck(moved)
    }

    /// Advances the FTL, and passes what completed to the stages that wait for it. Returns true if anything moved.
    fn pump(&mut self) -> bool {
        let PumpOutcome { moved, checkpoint_pages, extent_pages } =
            self.ftl.pump(self.now, &mut self.ended_reads);
        if extent_pages > 0 {
            self.schedule.wake_extents();
        }
        self.checkpointer.add_programmed(checkpoint_pages);
        self.notify_waiters();
        moved
    }

    fn commit_due_interval(&mut self) -> bool {
        let due = self.interval_due.is_some_and(|due| due <= self.now);
        if due {
            self.interval_due = None;
            let applied = self.ftl.last_sequence();
            if !mutant(Mutant::IntervalIgnored) {
                self.ftl.request_sequence(applied);
            }
        }
        due
    }

    fn release_durable(&mut self) -> bool {
        if self.ftl.failure().is_some() {
            let woken = self.schedule.wake_durable(Sequence(u64::MAX));
            return self.release_queue.fail(MediumState::Failed) | woken;
        }
        let durable = self.ftl.durable();
        let woken = self.schedule.wake_durable(durable);
        self.tracer.record_durable(durable, self.now);
        self.ftl.show_durable_namespaces();
        let released = self.release_queue.release_up_to(durable);
        let failed = self.ftl.lack_of_space().is_some() && self.release_queue.fail(MediumState::NoSpace);
        released | failed | woken
    }

    /// Ends an operation and queues its completion for release.
    fn finish_operation(&mut self, at: usize, ExecutionOutcome { mut completion, gate }: ExecutionOutcome) {
        let claims = std::mem::take(&mut self.operations[at].throttle_claims);
        if !claims.is_empty() {
            self.drop_claims(claims);
        }
        let operation = &mut self.operations[at];
        completion.token = operation.token;
        operation.fill_completion(&mut completion);
        let (front_end, namespace) = (operation.front_end, operation.namespace);
        let gate = match gate {
            ReleaseGate::Durable(sequence) => sequence,
            ReleaseGate::Immediate => Sequence(0),
            ReleaseGate::IfPromised(sequence) => self.release_sequence(namespace, sequence),
            ReleaseGate::IfAnyPromised(namespaces, sequence) => {
                self.strictest_release_sequence(namespaces, sequence)
            }
        };
        if !mutant(Mutant::GateNotRequested) {
            self.ftl.request_sequence(gate);
        }
        let operation = &self.operations[at];
        self.tracer.record_executed(operation, completion.status, gate, self.now);
        if let OperationWork::Command(command) = &operation.work {
            count_traffic(self.ftl.traffic_mut(), (command, operation.batch_plan.as_deref()), &completion);
            if gate <= self.ftl.durable() || mutant(Mutant::GateIgnored) {
                self.release_queue.push_ready(front_end, completion);
            } else {
                let unsure = operation.status_after_failure();
                self.release_queue.push_gated(GatedCompletion { front_end, completion, unsure }, gate);
            }
        }
        self.operations.vacate(at);
    }

    /// Returns the sequence that must be durable before a command that saw `sequence` completes in this namespace. After
    /// a failure of the medium this is `sequence` in every mode: nothing that may be lost is shown any more.
    #[inline]
    fn release_sequence(&mut self, namespace: NamespaceId, sequence: Sequence) -> Sequence {
        if self.ftl.failure().is_some() {
            return sequence;
        }
        match self.durability(namespace) {
            Durability::Always => sequence,
            Durability::OnFlush => Sequence(0),
            Durability::Interval(interval) => {
                if sequence > self.ftl.durable() {
                    let due = self.now.after(interval);
                    self.interval_due = Some(self.interval_due.map_or(due, |earlier| earlier.min(due)));
                }
                Sequence(0)
            }
        }
    }

    /// Returns the same for a command in several namespaces: the strictest of them counts.
    #[cold]
    fn strictest_release_sequence(&mut self, namespaces: NamespaceSet, sequence: Sequence) -> Sequence {
        let gate = |namespace| self.release_sequence(namespace, sequence);
        namespaces.iter().map(gate).max().unwrap_or_default()
    }

    /// Takes the next released completion of one front end.
    #[inline]
    pub fn next_completion(&mut self, front_end: FrontEndId) -> Option<SsdCompletion> {
        self.release_queue.pop(front_end)
    }

    /// Changes the durability of a namespace whose own settings give none, from the next completion on.
    pub fn set_durability(&mut self, namespace: NamespaceId, durability: Durability) {
        if let Some(slot) = self.default_durability.get_mut(namespace.index()) {
            *slot = durability;
        }
    }

    /// Returns a namespace's durability.
    #[must_use]
    pub fn durability(&self, namespace: NamespaceId) -> Durability {
        let configured =
            || self.default_durability.get(namespace.index()).copied().unwrap_or(Durability::Always);
        self.ftl.namespace_table().durability(namespace).unwrap_or_else(configured)
    }

    /// Makes all data durable, writes a checkpoint, and returns the time at which both are done. Blocks on the media.
    ///
    /// # Errors
    /// The media failure that prevents it.
    pub fn shutdown(&mut self, now: Nanos, wall: UnixMillis) -> Result<Nanos, MediaError> {
        if self.ftl.is_read_only() {
            return Ok(now);
        }
        self.ftl.set_closing(true);
        let closed = self.finish_checkpoint(now, wall);
        self.ftl.set_closing(false);
        closed
    }

    /// Makes all data durable and writes a checkpoint, and returns the time at which a durable record says so.
    fn finish_checkpoint(&mut self, mut now: Nanos, wall: UnixMillis) -> Result<Nanos, MediaError> {
        let applied = self.ftl.last_sequence();
        self.ftl.request_sequence(applied);
        self.checkpointer.request();
        loop {
            let moved = self.poll(now, wall);
            if let Some(error) = self.ftl.failure().or(self.ftl.lack_of_space()) {
                return Err(error);
            }
            let settled =
                self.ftl.durable() >= applied && !self.checkpointer.is_busy() && self.ftl.is_settled();
            if settled {
                return Ok(now);
            }
            if self.ftl.durable() >= applied && !self.checkpointer.is_busy() && self.ftl.commit().is_idle() {
                // The last record says that everything before it is durable.
                self.ftl.request_commit();
            }
            if !moved && !self.ftl.has_moves() {
                if self.ftl.media().in_flight() == 0 && self.checkpointer.cancel_waiting() {
                    continue;
                }
                now = self.ftl.media_mut().wait(now);
            }
        }
    }

    /// Removes expired keys, at most `AT_ONCE` at a time, so that many expiries at once do not delay commands.
    fn submit_expiries(&mut self) -> bool {
        const AT_ONCE: usize = 128;
        let mut any = false;
        if self.ftl.is_read_only() {
            return false;
        }
        while self.schedule.expiries_in_flight < AT_ONCE && !self.operations.is_full() {
            let Some((expiry_ms, hash, address)) = self.ftl.first_due() else {
                break;
            };
            // After a media failure nothing becomes durable any more, so waiting for durability would never end.
            if let Err(unsure) = self.ftl.may_expire(address)
                && self.ftl.failure().is_none()
            {
                self.ftl.request_sequence(unsure);
                break;
            }
            let work = OperationWork::Expire { address };
            let at = self.operations.begin((FrontEndId(0), 0), NamespaceId::FIRST, work, self.now);
            self.operations[at].span = KeySpan::one(hash);
            // The expiry queue must not return it again while the operation runs.
            self.ftl.take_expiry(expiry_ms, hash, address);
            self.schedule.expiries_in_flight += 1;
            self.run_operation(at);
            any = true;
        }
        any
    }

    fn collect(&mut self) -> bool {
        match self.ftl.collect(self.now) {
            Ok(moved) => moved,
            Err(StallReason::Pages(pages)) => {
                for page in pages {
                    self.ftl.request_page(page, ReadWaiter::Collector);
                }
                true
            }
            Err(
                StallReason::Room { .. }
                | StallReason::Turn
                | StallReason::ExtentPages
                | StallReason::Runs(_)
                | StallReason::Moves(_)
                | StallReason::LogReserved
                | StallReason::NotDurable(_)
                | StallReason::Unreadable(_)
                | StallReason::InDoubt,
            ) => false,
        }
    }
}

/// The reason why nothing becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MediumState {
    /// A write or a flush failed for good.
    Failed,
    /// A write waits for space and will be repeated.
    NoSpace,
}

/// A completion that waits for durability.
#[derive(Debug)]
struct GatedCompletion {
    front_end: FrontEndId,
    completion: SsdCompletion,
    /// Its status if the durability fails.
    unsure: Status,
}

/// The completions that wait for durability, and the released ones that no front end has taken yet.
#[derive(Debug, Default)]
struct ReleaseQueue {
    gated: BTreeMap<(Sequence, u64), GatedCompletion>,
    ready: Vec<VecDeque<SsdCompletion>>,
    next_arrival: u64,
    pushed: u64,
    /// Bytes of the values and keys in all of them.
    payload_bytes: usize,
}

impl ReleaseQueue {
    /// Adds a completion that waits for nothing.
    #[inline]
    fn push_ready(&mut self, front_end: FrontEndId, completion: SsdCompletion) {
        self.pushed += 1;
        self.payload_bytes += completion.payload_bytes();
        self.make_ready(front_end, completion);
    }

    /// Adds a completion that may be released once everything up to `gate` is durable.
    fn push_gated(&mut self, waiting: GatedCompletion, gate: Sequence) {
        self.pushed += 1;
        self.payload_bytes += waiting.completion.payload_bytes();
        self.gated.insert((gate, self.next_arrival), waiting);
        self.next_arrival += 1;
    }

    #[inline]
    fn make_ready(&mut self, front_end: FrontEndId, completion: SsdCompletion) {
        let front_end = usize::from(front_end.0);
        if self.ready.len() <= front_end {
            self.ready.resize_with(front_end + 1, VecDeque::new);
        }
        self.ready[front_end].push_back(completion);
    }

    /// Releases all completions with a gate up to `durable`. Returns true if there were any.
    fn release_up_to(&mut self, durable: Sequence) -> bool {
        if self.gated.first_key_value().is_none_or(|((gate, _), _)| *gate > durable) {
            return false;
        }
        let later = self.gated.split_off(&(Sequence(durable.0 + 1), 0));
        for waiting in std::mem::replace(&mut self.gated, later).into_values() {
            self.make_ready(waiting.front_end, waiting.completion);
        }
        true
    }

    /// Releases all waiting completions with an error, after durability has failed. A value that a read found goes back
    /// empty. Returns true if there were any.
    fn fail(&mut self, state: MediumState) -> bool {
        let failed = std::mem::take(&mut self.gated);
        let any = !failed.is_empty();
        for GatedCompletion { front_end, completion, unsure } in failed.into_values() {
            self.payload_bytes -= completion.payload_bytes();
            let SsdCompletion { token, mut sink, .. } = completion;
            sink.clear();
            let status = match state {
                MediumState::Failed => unsure,
                MediumState::NoSpace if unsure == Status::MEDIUM_FAILED => Status::CAPACITY_EXCEEDED,
                // What the read found is not lost.
                MediumState::NoSpace => Status::INTERNAL_ERROR,
            };
            self.make_ready(front_end, SsdCompletion { sink, ..SsdCompletion::new(token, status) });
        }
        any
    }

    /// Takes the next released completion of a front end.
    fn pop(&mut self, front_end: FrontEndId) -> Option<SsdCompletion> {
        let completion = self.ready.get_mut(usize::from(front_end.0))?.pop_front()?;
        self.payload_bytes -= completion.payload_bytes();
        Some(completion)
    }

    /// Returns true if the values and keys in it leave room for more.
    fn has_room(&self) -> bool {
        self.payload_bytes < UNTAKEN_BYTES_MAX
    }

    /// Returns the number of completions that wait for durability.
    fn gated(&self) -> usize {
        self.gated.len()
    }

    /// Returns the number of completions added so far.
    fn pushed(&self) -> u64 {
        self.pushed
    }

    /// Returns the number of completions added so far that had to wait for durability.
    fn pushed_gated(&self) -> u64 {
        self.next_arrival
    }
}

#[cfg(test)]
mod tests;
