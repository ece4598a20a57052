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
use crate::ftl::{Ftl, StallReason};
use crate::index::RecordIndex;
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
pub(crate) use open::layer;
pub use open::{OpenError, OpenProgress, OpenReason, StartTime};

/// A key-value and block device on one medium.
#[derive(Debug)]
pub struct SsdDevice<M> {
    ftl: Ftl<M>,
    slab: OperationSlab,
    schedule: OperationSchedule,
    throttle: CommandThrottle,
    release: ReleaseQueue,
    /// Durability of the namespaces whose own settings give none.
    durability: [Durability; NAMESPACES],
    interval_due: Option<Nanos>,
    checkpointer: Checkpointer,
    tracer: StageTracer,
    awake: Vec<ReadWaiter>,
    now: Nanos,
    administration: AdminState,
}

impl<M: Media> SsdDevice<M> {
    fn over(ftl: Ftl<M>, config: &DeviceConfig) -> Self {
        Self {
            ftl,
            slab: OperationSlab::default(),
            schedule: OperationSchedule::default(),
            throttle: CommandThrottle::default(),
            release: ReleaseQueue::default(),
            durability: config.durability,
            interval_due: None,
            checkpointer: Checkpointer::default(),
            tracer: StageTracer::default(),
            awake: Vec::new(),
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
        face: FrontEndId,
        namespace: NamespaceId,
        token: u64,
        command: SsdCommand,
    ) -> Result<(), SubmitError> {
        self.check(namespace, &command).map_err(SubmitError::Refused)?;
        if self.slab.is_full() {
            return Err(SubmitError::Busy(OPERATIONS_MAX));
        }
        self.throttle.has_room(namespace, &command)?;
        let mut operation =
            DeviceOperation::new(face, token, namespace, OperationWork::Command(command), self.now);
        operation.format = self.ftl.table.format(namespace);
        operation.find_keys(&self.ftl.hasher);
        let at = self.slab.insert(operation);
        self.take_in(at, namespace);
        Ok(())
    }

    /// Runs every stage as far as it can go at this time, without blocking. Returns true if any state changed.
    pub fn poll(&mut self, now: Nanos, wall: UnixMillis) -> bool {
        self.now = now;
        self.ftl.wall_ms = wall.0;
        let mut moved = self.ftl.pump(now, &mut self.awake);
        self.wake();
        moved |= self.run_waiting();
        moved |= self.start_throttled();
        moved |= self.run_incoming();
        moved |= self.expire();
        moved |= self.collect();
        moved |= self.checkpointer.advance(&mut self.ftl, now);
        moved |= self.tick_interval();
        moved |= self.ftl.pump(now, &mut self.awake);
        self.wake();
        moved |= self.settle_release();
        moved |= self.run_actions();
        moved | self.unjam(moved)
    }

    fn tick_interval(&mut self) -> bool {
        let due = self.interval_due.is_some_and(|due| due <= self.now);
        if due {
            self.interval_due = None;
            let applied = self.ftl.applied();
            self.ftl.commit.want(applied);
        }
        due
    }

    fn settle_release(&mut self) -> bool {
        if self.ftl.failed.is_some() {
            let woken = self.schedule.wake_durable(Sequence(u64::MAX));
            return self.release.fail(Status::INTERNAL_ERROR) | woken;
        }
        let durable = self.ftl.commit.durable;
        let woken = self.schedule.wake_durable(durable);
        self.tracer.durable(durable, self.now);
        self.ftl.table.advance(durable);
        self.release.advance(durable) | woken
    }

    /// Ends an operation and queues its completion for release.
    fn finish(&mut self, at: usize, ExecutionOutcome { mut completion, gate }: ExecutionOutcome) {
        let Some(operation) = self.slab.get_mut(at) else {
            return;
        };
        completion.token = operation.token;
        operation.answer(&mut completion);
        let (face, namespace) = (operation.face, operation.namespace);
        let gate = match gate {
            ReleaseGate::Durable(sequence) => sequence,
            ReleaseGate::Open => Sequence(0),
            ReleaseGate::Promise(sequence) => self.promised(namespace, sequence),
        };
        self.ftl.commit.want(gate);
        let Some(operation) = self.slab.get(at) else {
            return;
        };
        self.tracer.executed(operation, completion.status, gate, self.now);
        if let OperationWork::Command(command) = &operation.work {
            self.administration.traffic.count(command, &completion);
        }
        if self.slab.vacate(at) {
            self.ftl.stats.completed += 1;
            self.release.push(face, completion, gate, self.ftl.commit.durable);
        }
    }

    /// Returns the sequence that must be durable before a command that saw `sequence` completes in this namespace.
    fn promised(&mut self, namespace: NamespaceId, sequence: Sequence) -> Sequence {
        match self.durability(namespace) {
            Durability::Always => sequence,
            Durability::OnFlush => Sequence(0),
            Durability::Interval(interval) => {
                if sequence > self.ftl.commit.durable {
                    self.interval_due.get_or_insert(self.now.after(interval));
                }
                Sequence(0)
            }
        }
    }

    /// Takes the next released completion of one front end.
    #[inline]
    pub fn next_completion(&mut self, face: FrontEndId) -> Option<SsdCompletion> {
        self.release.pop(face)
    }

    /// Returns the next time at which the device has work without outside input: a durability interval, a command that
    /// waits for the limits of its namespace, or a simulated media event. `None` if only a command or a media
    /// completion creates work. Expiry is wall time: see [`next_expiry`](Self::next_expiry).
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let limits = self.throttle.next_start();
        self.interval_due.into_iter().chain(limits).chain(self.ftl.media.next_event()).min()
    }

    /// Returns the wall time at which the next key expires, if any key has an expiry.
    #[must_use]
    pub fn next_expiry(&self) -> Option<UnixMillis> {
        self.ftl.expiry.next_ms().map(UnixMillis)
    }

    /// Changes the durability of a namespace whose own settings give none, from the next completion on.
    pub fn set_durability(&mut self, namespace: NamespaceId, durability: Durability) {
        if let Some(slot) = self.durability.get_mut(namespace.index()) {
            *slot = durability;
        }
    }

    /// Returns a namespace's durability.
    #[must_use]
    pub fn durability(&self, namespace: NamespaceId) -> Durability {
        let configured = || self.durability.get(namespace.index()).copied().unwrap_or(Durability::Always);
        self.ftl.table.durability(namespace).unwrap_or_else(configured)
    }

    /// Returns a namespace's settings; `None` if hosts see no namespace under this number.
    #[must_use]
    pub fn namespace(&self, namespace: NamespaceId) -> Option<Namespace> {
        if namespace.index() >= NAMESPACES {
            return None;
        }
        let seen = namespace == NamespaceId::FIRST || self.keys(namespace) > 0;
        match self.ftl.table.shown(namespace) {
            NamespaceDefinition::Implicit => seen.then_some(Namespace::IMPLICIT),
            NamespaceDefinition::Made(made) => Some(made),
            NamespaceDefinition::Damaged => None,
        }
    }

    /// Returns a counter that grows whenever a result of [`namespace`](Self::namespace) changes.
    #[must_use]
    pub fn namespace_generation(&self) -> u64 {
        self.ftl.table.generation()
    }

    /// Returns the used part of a namespace in the unit of its [`size`](Namespace::size): written blocks, or bytes of
    /// records.
    #[must_use]
    pub fn namespace_usage(&self, namespace: NamespaceId) -> u64 {
        let state = self.ftl.namespaces.get(namespace.index()).copied().unwrap_or_default();
        match self.ftl.table.get(namespace) {
            NamespaceDefinition::Made(Namespace { kind: NamespaceKind::Block(_), .. }) => state.keys,
            _ => state.bytes,
        }
    }

    /// Returns the number of keys of a key space, or of written blocks of a block namespace.
    #[must_use]
    pub fn keys(&self, namespace: NamespaceId) -> u64 {
        self.ftl.namespaces.get(namespace.index()).map_or(0, |state| state.keys)
    }

    /// Returns the list position of a key in the device's order, whether the key exists or not.
    #[must_use]
    pub fn position_of(&self, namespace: NamespaceId, key: &[u8]) -> crate::command::ListPosition {
        crate::command::ListPosition(self.ftl.hasher.hash(namespace, key).0)
    }

    /// Returns the number of operations in flight, without completions that wait for durability.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.slab.len()
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
        self.ftl.failed
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
        &self.ftl.media
    }

    /// Returns the medium, so that a simulator can inject faults.
    pub fn media_mut(&mut self) -> &mut M {
        &mut self.ftl.media
    }

    /// Returns the index, for tests that damage it.
    #[cfg(test)]
    pub(crate) fn index_mut(&mut self) -> &mut crate::index::CompositeIndex {
        &mut self.ftl.index
    }

    /// Returns the medium as a power cut would leave it.
    pub fn into_media(self) -> M {
        self.ftl.media
    }

    /// Makes all data durable, writes a checkpoint, and returns the time at which both are done. Blocks on the media.
    ///
    /// # Errors
    /// The media failure that prevents it.
    pub fn shutdown(&mut self, mut now: Nanos, wall: UnixMillis) -> Result<Nanos, MediaError> {
        let applied = self.ftl.applied();
        self.ftl.commit.want(applied);
        self.checkpointer.request();
        loop {
            let moved = self.poll(now, wall);
            if let Some(error) = self.ftl.failed {
                return Err(error);
            }
            let settled = self.ftl.commit.durable >= applied && !self.checkpointer.is_busy();
            if settled {
                return Ok(now);
            }
            if !moved {
                if self.ftl.media.in_flight() == 0 && self.checkpointer.give_up(&mut self.ftl) {
                    continue;
                }
                now = self.ftl.media.wait(now);
            }
        }
    }

    /// Returns the device's counters.
    #[must_use]
    pub fn stats(&self) -> DeviceStats {
        let mut stats = self.ftl.stats;
        for (keys, state) in stats.keys.iter_mut().zip(&self.ftl.namespaces) {
            *keys = state.keys;
        }
        stats.programmed_bytes = self.ftl.programmed_bytes();
        stats.free_blocks = u32::try_from(self.ftl.blocks.free()).unwrap_or(u32::MAX);
        stats.live_bytes = self.ftl.blocks.live_bytes();
        stats.tombstone_bytes = self.ftl.blocks.tombstone_bytes();
        stats.index_bytes = self.ftl.index.bytes();
        stats.capacity_bytes = self.ftl.capacity_with(0);
        stats.commits = self.ftl.commit.commits;
        stats.gated = self.release.gated() as u64;
        stats.in_flight = self.slab.len() as u64;
        stats
    }
}

impl<M: Media> SsdDevice<M> {
    /// Removes expired keys, at most `AT_ONCE` at a time, so that many expiries at once do not delay commands.
    fn expire(&mut self) -> bool {
        const AT_ONCE: usize = 128;
        let mut any = false;
        while self.schedule.expiring < AT_ONCE && !self.slab.is_full() {
            let Some((expiry_ms, hash, address)) = self.ftl.expiry.due(self.ftl.wall_ms) else {
                break;
            };
            // After a media failure nothing becomes durable any more, so waiting for durability would never end.
            if let Err(unsure) = self.ftl.may_expire(address)
                && self.ftl.failed.is_none()
            {
                self.ftl.commit.want(unsure);
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
            let at = self.slab.insert(operation);
            // The expiry queue must not return it again while the operation runs.
            self.ftl.expiry.remove(expiry_ms, hash, address);
            self.schedule.expiring += 1;
            self.run(at);
            any = true;
        }
        any
    }

    fn collect(&mut self) -> bool {
        match self.ftl.collect() {
            Ok(moved) => moved,
            Err(StallReason::Pages(pages)) => {
                for page in pages {
                    self.ftl.reads.request(page, ReadWaiter::Collector, &self.ftl.blocks);
                }
                true
            }
            Err(StallReason::Room { .. } | StallReason::Durable(_)) => false,
        }
    }
}
