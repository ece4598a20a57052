//! The device that every front end submits commands to and takes completions from.
//!
//! Input: commands from front ends, time, and a medium. Output: one completion a command, released as the durability of
//! its namespace requires. One call of [`SsdDevice::poll`] runs each stage once: media completions, waiting operations,
//! new operations, expiry, collection, commit, release. Invariant: a turn never blocks, sleeps or reads a clock.

mod abort;
pub mod administration;
mod checkpoint;
mod execute;
pub mod inspection;
mod open;
mod operation;
mod recovery;
pub mod release;
mod schedule;
mod throttle;
pub mod trace;
mod validate;

use crate::command::{FrontEndId, NamespaceId, Sequence, SsdCommand, SsdCompletion, SubmitError};
use crate::engine::checkpoint::Checkpointer;
use crate::engine::execute::{ExecutionOutcome, ReleaseGate};
use crate::engine::operation::{DeviceOperation, KeySpan, OperationSlab, OperationWork};
use crate::engine::release::ReleaseQueue;
use crate::engine::trace::{StageTrace, StageTracer};
use crate::ftl::namespace_table::NamespaceDefinition;
use crate::ftl::{Ftl, PumpOutcome, StallReason};
use crate::limits::{NAMESPACES, OPERATIONS_MAX};
use crate::log::reads::ReadWaiter;
use crate::media::{Media, MediaError};
use crate::namespace::{Namespace, NamespaceKind};
use administration::AdminState;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use schedule::OperationSchedule;
use throttle::CommandThrottle;

pub use crate::config::{DeviceConfig, DeviceStats, Durability, VictimPolicy};
pub(crate) use open::build_ftl;
pub use open::{OpenError, OpenProgress, OpenReason, StartTime};

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
    ready_waiters: Vec<ReadWaiter>,
    now: Nanos,
    administration: AdminState,
}

impl<M: Media> SsdDevice<M> {
    fn from_ftl(ftl: Ftl<M>, config: &DeviceConfig) -> Self {
        Self {
            ftl,
            operations: OperationSlab::default(),
            schedule: OperationSchedule::default(),
            throttle: CommandThrottle::default(),
            release_queue: ReleaseQueue::default(),
            default_durability: config.durability,
            interval_due: None,
            checkpointer: Checkpointer::default(),
            tracer: StageTracer::default(),
            ready_waiters: Vec::new(),
            now: Nanos::ZERO,
            administration: AdminState::default(),
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
        self.check_limits(namespace, &command).map_err(SubmitError::Refused)?;
        if self.operations.is_full() {
            return Err(SubmitError::Busy(OPERATIONS_MAX));
        }
        self.throttle.check_room(namespace, &command)?;
        let mut operation =
            DeviceOperation::new(front_end, token, namespace, OperationWork::Command(command), self.now);
        operation.format = self.ftl.namespace_table().format(namespace);
        operation.compute_spans(self.ftl.hasher());
        let at = self.operations.insert(operation);
        self.admit(at, namespace);
        Ok(())
    }

    /// Runs every stage as far as it can go at this time, without blocking. Returns true if any state changed.
    pub fn poll(&mut self, now: Nanos, wall: UnixMillis) -> bool {
        self.now = now;
        self.ftl.set_wall(wall);
        let mut moved = self.pump();
        moved |= self.run_waiting();
        moved |= self.start_throttled();
        moved |= self.run_incoming();
        moved |= self.submit_expiries();
        moved |= self.collect();
        moved |= self.checkpointer.advance(&mut self.ftl, now);
        moved |= self.commit_due_interval();
        moved |= self.pump();
        moved |= self.release_durable();
        moved |= self.run_actions();
        moved | self.fail_if_stuck(moved)
    }

    /// Advances the FTL, and passes what completed to the stages that wait for it. Returns true if anything moved.
    fn pump(&mut self) -> bool {
        let PumpOutcome { moved, checkpoint_pages } = self.ftl.pump(self.now, &mut self.ready_waiters);
        self.checkpointer.add_programmed(checkpoint_pages);
        self.notify_waiters();
        moved
    }

    fn commit_due_interval(&mut self) -> bool {
        let due = self.interval_due.is_some_and(|due| due <= self.now);
        if due {
            self.interval_due = None;
            let applied = self.ftl.last_sequence();
            self.ftl.request_sequence(applied);
        }
        due
    }

    fn release_durable(&mut self) -> bool {
        if self.ftl.failure().is_some() {
            let woken = self.schedule.wake_durable(Sequence(u64::MAX));
            return self.release_queue.fail(Status::INTERNAL_ERROR) | woken;
        }
        let durable = self.ftl.durable();
        let woken = self.schedule.wake_durable(durable);
        self.tracer.record_durable(durable, self.now);
        self.ftl.show_durable_namespaces();
        self.release_queue.release_up_to(durable) | woken
    }

    /// Ends an operation and queues its completion for release.
    fn finish_operation(&mut self, at: usize, ExecutionOutcome { mut completion, gate }: ExecutionOutcome) {
        let operation = &mut self.operations[at];
        completion.token = operation.token;
        operation.fill_completion(&mut completion);
        let (face, namespace) = (operation.front_end, operation.namespace);
        let gate = match gate {
            ReleaseGate::Durable(sequence) => sequence,
            ReleaseGate::Immediate => Sequence(0),
            ReleaseGate::IfPromised(sequence) => self.release_sequence(namespace, sequence),
        };
        self.ftl.request_sequence(gate);
        let operation = &self.operations[at];
        self.tracer.record_executed(operation, completion.status, gate, self.now);
        if let OperationWork::Command(command) = &operation.work {
            self.administration.traffic.count(command, &completion);
        }
        if self.operations.vacate(at) {
            self.release_queue.push(face, completion, gate, self.ftl.durable());
        }
    }

    /// Returns the sequence that must be durable before a command that saw `sequence` completes in this namespace.
    fn release_sequence(&mut self, namespace: NamespaceId, sequence: Sequence) -> Sequence {
        match self.durability(namespace) {
            Durability::Always => sequence,
            Durability::OnFlush => Sequence(0),
            Durability::Interval(interval) => {
                if sequence > self.ftl.durable() {
                    self.interval_due.get_or_insert(self.now.after(interval));
                }
                Sequence(0)
            }
        }
    }

    /// Takes the next released completion of one front end.
    #[inline]
    pub fn next_completion(&mut self, front_end: FrontEndId) -> Option<SsdCompletion> {
        self.release_queue.pop(front_end)
    }

    /// Returns the next time at which the device has work without outside input: a durability interval, a command that
    /// waits for the limits of its namespace, or a simulated media event. `None` if only a command or a media
    /// completion creates work. Expiry is wall time: see [`next_expiry`](Self::next_expiry).
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let limits = self.throttle.next_start();
        self.interval_due.into_iter().chain(limits).chain(self.ftl.media().next_event()).min()
    }

    /// Returns the wall time at which the next key expires, if any key has an expiry.
    #[must_use]
    pub fn next_expiry(&self) -> Option<UnixMillis> {
        self.ftl.expiry().next_expiry_ms().map(UnixMillis)
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

    /// Returns a namespace's settings; `None` if hosts see no namespace under this number.
    #[must_use]
    pub fn namespace(&self, namespace: NamespaceId) -> Option<Namespace> {
        if namespace.index() >= NAMESPACES {
            return None;
        }
        let seen = namespace == NamespaceId::FIRST || self.keys(namespace) > 0;
        match self.ftl.namespace_table().visible(namespace) {
            NamespaceDefinition::Implicit => seen.then_some(Namespace::IMPLICIT),
            NamespaceDefinition::Created(made) => Some(made),
            NamespaceDefinition::Damaged => None,
        }
    }

    /// Returns a counter that grows whenever a result of [`namespace`](Self::namespace) changes.
    #[must_use]
    pub fn namespace_generation(&self) -> u64 {
        self.ftl.namespace_table().generation()
    }

    /// Returns the used part of a namespace in the unit of its [`size`](Namespace::size): written blocks, or bytes of
    /// records.
    #[must_use]
    pub fn namespace_usage(&self, namespace: NamespaceId) -> u64 {
        let state = self.ftl.counts().get(namespace.index()).copied().unwrap_or_default();
        match self.ftl.namespace_table().get(namespace) {
            NamespaceDefinition::Created(Namespace { kind: NamespaceKind::Block(_), .. }) => state.keys,
            _ => state.bytes,
        }
    }

    /// Returns the number of keys of a key space, or of written blocks of a block namespace.
    #[must_use]
    pub fn keys(&self, namespace: NamespaceId) -> u64 {
        self.ftl.counts().get(namespace.index()).map_or(0, |state| state.keys)
    }

    /// Returns the list position of a key in the device's order, whether the key exists or not.
    #[must_use]
    pub fn list_position_of(&self, namespace: NamespaceId, key: &[u8]) -> crate::command::ListPosition {
        crate::command::ListPosition(self.ftl.hasher().hash(namespace, key).0)
    }

    /// Returns the number of operations in flight, without completions that wait for durability.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.operations.len()
    }

    /// Schedules a checkpoint, which later calls of [`poll`](Self::poll) write.
    pub fn request_checkpoint(&mut self) {
        self.checkpointer.request();
    }

    /// Returns true if a checkpoint is being written or waits for room.
    #[must_use]
    pub fn is_checkpointing(&self) -> bool {
        self.checkpointer.is_busy()
    }

    /// Returns the failure after which the device refuses all writes, if there was one.
    #[must_use]
    pub fn failure(&self) -> Option<MediaError> {
        self.ftl.failure()
    }

    /// Returns the stage times of the last sampled request.
    #[must_use]
    pub fn trace(&self) -> Option<StageTrace> {
        self.tracer.last()
    }

    /// Returns the flash translation layer, for the NVMe side.
    pub(crate) fn ftl(&self) -> &Ftl<M> {
        &self.ftl
    }

    /// Returns the flash translation layer, for the NVMe side.
    pub(crate) fn ftl_mut(&mut self) -> &mut Ftl<M> {
        &mut self.ftl
    }

    /// Returns the state that no single namespace owns.
    pub(crate) fn administration(&self) -> &AdminState {
        &self.administration
    }

    /// Returns the state that no single namespace owns.
    pub(crate) fn administration_mut(&mut self) -> &mut AdminState {
        &mut self.administration
    }

    /// Returns the time of the last turn.
    pub(crate) fn now(&self) -> Nanos {
        self.now
    }

    /// Returns the medium.
    pub fn media(&self) -> &M {
        self.ftl.media()
    }

    /// Returns the medium, so that a simulator can inject faults.
    pub fn media_mut(&mut self) -> &mut M {
        self.ftl.media_mut()
    }

    /// Returns the index, for tests that damage it.
    #[cfg(test)]
    pub(crate) fn index_mut(&mut self) -> &mut crate::index::CompositeIndex {
        self.ftl.index_mut()
    }

    /// Returns the medium as a power cut would leave it.
    pub fn into_media(self) -> M {
        self.ftl.into_media()
    }

    /// Makes all data durable, writes a checkpoint, and returns the time at which both are done. Blocks on the media.
    ///
    /// # Errors
    /// The media failure that prevents it.
    pub fn shutdown(&mut self, mut now: Nanos, wall: UnixMillis) -> Result<Nanos, MediaError> {
        let applied = self.ftl.last_sequence();
        self.ftl.request_sequence(applied);
        self.checkpointer.request();
        loop {
            let moved = self.poll(now, wall);
            if let Some(error) = self.ftl.failure() {
                return Err(error);
            }
            let settled = self.ftl.durable() >= applied && !self.checkpointer.is_busy();
            if settled {
                return Ok(now);
            }
            if !moved {
                if self.ftl.media().in_flight() == 0 && self.checkpointer.cancel_waiting(&mut self.ftl) {
                    continue;
                }
                now = self.ftl.media_mut().wait(now);
            }
        }
    }

    /// Returns the device's counters.
    #[must_use]
    pub fn stats(&self) -> DeviceStats {
        let mut stats = self.ftl.stats();
        stats.completed = self.release_queue.pushed();
        (stats.cache_hits, stats.cache_misses) = self.schedule.cache_hits_and_misses();
        stats.no_room = self.schedule.no_room();
        (stats.checkpoints, stats.checkpoint_pages) = self.checkpointer.counts();
        stats.gated = self.release_queue.gated() as u64;
        stats.in_flight = self.operations.len() as u64;
        stats
    }
}

impl<M: Media> SsdDevice<M> {
    /// Removes expired keys, at most `AT_ONCE` at a time, so that many expiries at once do not delay commands.
    fn submit_expiries(&mut self) -> bool {
        const AT_ONCE: usize = 128;
        let mut any = false;
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
            let mut operation = DeviceOperation::new(
                FrontEndId(0),
                0,
                NamespaceId::FIRST,
                OperationWork::Expire { address },
                self.now,
            );
            operation.span = KeySpan::one(hash);
            let at = self.operations.insert(operation);
            // The expiry queue must not return it again while the operation runs.
            self.ftl.take_expiry(expiry_ms, hash, address);
            self.schedule.expiries_in_flight += 1;
            self.run_operation(at);
            any = true;
        }
        any
    }

    fn collect(&mut self) -> bool {
        match self.ftl.collect() {
            Ok(moved) => moved,
            Err(StallReason::Pages(pages)) => {
                for page in pages {
                    self.ftl.request_page(page, ReadWaiter::Collector);
                }
                true
            }
            Err(StallReason::Room { .. } | StallReason::NotDurable(_)) => false,
        }
    }
}
