//! The device: what every face submits to and is answered by.
//!
//! In: commands from faces, time, and a medium. Out: one completion a command, released by the rule of its namespace.
//! A turn of [`Device::poll`] goes once through the stages: media answers, operations that were waiting, new operations,
//! expiry, collection, commit, release. Invariant: nothing in here blocks, sleeps or reads a clock.

mod abort;
mod administer;
mod check;
mod config;
mod open;
mod schedule;
mod subsystem;
mod throttle;

use crate::administration::Administration;
use crate::checkpoint::Checkpointer;
use crate::command::{Command, Completion, FaceId, NamespaceId, Sequence, SubmitError};
use crate::execute::{Gate, Outcome};
use crate::index::Index;
use crate::limits::{NAMESPACES, OPERATIONS_MAX};
use crate::media::{Media, MediaError};
use crate::namespace::table::Slot;
use crate::namespace::{Namespace, NamespaceKind};
use crate::operation::{Operation, Slab, Span, Work};
use crate::reads::Waiter;
use crate::release::Release;
use crate::trace::{Trace, Tracer};
use crate::utl::{Stall, Utl};
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_nvme::spec::status::Status;
use schedule::Schedule;
use throttle::Throttle;

pub use config::{DeviceConfig, DeviceStats, Durability, VictimPolicy};
pub(crate) use open::layer;
pub use open::{OpenError, OpenReason, Progress, Start};

/// The converged device over one medium.
#[derive(Debug)]
pub struct Device<M> {
    utl: Utl<M>,
    slab: Slab,
    schedule: Schedule,
    throttle: Throttle,
    release: Release,
    /// Of namespaces that do not say themselves.
    durability: [Durability; NAMESPACES],
    interval_due: Option<Nanos>,
    checkpointer: Checkpointer,
    tracer: Tracer,
    awake: Vec<Waiter>,
    now: Nanos,
    administration: Administration,
}

impl<M: Media> Device<M> {
    fn over(utl: Utl<M>, config: &DeviceConfig) -> Self {
        Self {
            utl,
            slab: Slab::default(),
            schedule: Schedule::default(),
            throttle: Throttle::default(),
            release: Release::default(),
            durability: config.durability,
            interval_due: None,
            checkpointer: Checkpointer::default(),
            tracer: Tracer::default(),
            awake: Vec::new(),
            now: Nanos::ZERO,
            administration: Administration::default(),
        }
    }

    /// Submits a command for a face. `Ok` means exactly one completion will follow; `Err` means none will.
    ///
    /// # Errors
    /// [`SubmitError::Busy`] to ask again later, [`SubmitError::Refused`] for a command that can never work.
    pub fn submit(
        &mut self,
        face: FaceId,
        namespace: NamespaceId,
        token: u64,
        command: Command,
    ) -> Result<(), SubmitError> {
        self.check(namespace, &command).map_err(SubmitError::Refused)?;
        if self.slab.is_full() {
            return Err(SubmitError::Busy(OPERATIONS_MAX));
        }
        self.throttle.has_room(namespace, &command)?;
        let mut operation = Operation::new(face, token, namespace, Work::Command(command), self.now);
        operation.format = self.utl.table.format(namespace);
        operation.find_keys(&self.utl.hasher);
        let at = self.slab.insert(operation);
        self.take_in(at, namespace);
        Ok(())
    }

    /// Runs every stage as far as it can go at this time; never blocks. Returns whether anything moved.
    pub fn poll(&mut self, now: Nanos, wall: UnixMillis) -> bool {
        self.now = now;
        self.utl.wall_ms = wall.0;
        let mut moved = self.utl.pump(now, &mut self.awake);
        self.wake();
        moved |= self.run_waiting();
        moved |= self.start_throttled();
        moved |= self.run_incoming();
        moved |= self.expire();
        moved |= self.collect();
        moved |= self.checkpointer.advance(&mut self.utl, now);
        moved |= self.tick_interval();
        moved |= self.utl.pump(now, &mut self.awake);
        self.wake();
        moved |= self.settle_release();
        moved |= self.run_actions();
        moved | self.unjam(moved)
    }

    fn tick_interval(&mut self) -> bool {
        let due = self.interval_due.is_some_and(|due| due <= self.now);
        if due {
            self.interval_due = None;
            let applied = self.utl.applied();
            self.utl.commit.want(applied);
        }
        due
    }

    fn settle_release(&mut self) -> bool {
        if self.utl.failed.is_some() {
            let woken = self.schedule.wake_durable(Sequence(u64::MAX));
            return self.release.fail(Status::INTERNAL_ERROR) | woken;
        }
        let durable = self.utl.commit.durable;
        let woken = self.schedule.wake_durable(durable);
        self.tracer.durable(durable, self.now);
        self.utl.table.advance(durable);
        self.release.advance(durable) | woken
    }

    /// An operation is finished: its completion goes to the release rule.
    fn finish(&mut self, at: usize, Outcome { mut completion, gate }: Outcome) {
        let Some(operation) = self.slab.get_mut(at) else {
            return;
        };
        completion.token = operation.token;
        operation.answer(&mut completion);
        let (face, namespace) = (operation.face, operation.namespace);
        let gate = match gate {
            Gate::Durable(sequence) => sequence,
            Gate::Open => Sequence(0),
            Gate::Promise(sequence) => self.promised(namespace, sequence),
        };
        self.utl.commit.want(gate);
        let Some(operation) = self.slab.get(at) else {
            return;
        };
        self.tracer.executed(operation, completion.status, gate, self.now);
        if let Work::Command(command) = &operation.work {
            self.administration.traffic.count(command, &completion);
        }
        if self.slab.vacate(at) {
            self.utl.stats.completed += 1;
            self.release.push(face, completion, gate, self.utl.commit.durable);
        }
    }

    /// What the namespace's durability makes of a gate.
    fn promised(&mut self, namespace: NamespaceId, sequence: Sequence) -> Sequence {
        match self.durability(namespace) {
            Durability::Always => sequence,
            Durability::OnFlush => Sequence(0),
            Durability::Interval(interval) => {
                if sequence > self.utl.commit.durable {
                    self.interval_due.get_or_insert(self.now.after(interval));
                }
                Sequence(0)
            }
        }
    }

    /// Takes the next completion that may leave, for one face.
    #[inline]
    pub fn next_completion(&mut self, face: FaceId) -> Option<Completion> {
        self.release.pop(face)
    }

    /// When the device next has work of its own (a durability interval, a command that waits for the limits of its
    /// namespace, a simulated media event); `None` when only a
    /// command or a media completion can wake it. Expiry is wall time: see [`next_expiry`](Self::next_expiry).
    #[must_use]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let limits = self.throttle.next_start();
        self.interval_due.into_iter().chain(limits).chain(self.utl.media.next_event()).min()
    }

    /// The wall time at which the next key ceases to exist, if any will.
    #[must_use]
    pub fn next_expiry(&self) -> Option<UnixMillis> {
        self.utl.expiry.next_ms().map(UnixMillis)
    }

    /// Changes the durability of a namespace that does not say itself, from the next completion on.
    pub fn set_durability(&mut self, namespace: NamespaceId, durability: Durability) {
        if let Some(slot) = self.durability.get_mut(namespace.index()) {
            *slot = durability;
        }
    }

    /// A namespace's durability.
    #[must_use]
    pub fn durability(&self, namespace: NamespaceId) -> Durability {
        let configured = || self.durability.get(namespace.index()).copied().unwrap_or(Durability::Always);
        self.utl.table.durability(namespace).unwrap_or_else(configured)
    }

    /// What a namespace is; `None` when hosts see none under this number.
    #[must_use]
    pub fn namespace(&self, namespace: NamespaceId) -> Option<Namespace> {
        if namespace.index() >= NAMESPACES {
            return None;
        }
        let seen = namespace == NamespaceId::FIRST || self.keys(namespace) > 0;
        match self.utl.table.shown(namespace) {
            Slot::Implicit => seen.then_some(Namespace::IMPLICIT),
            Slot::Made(made) => Some(made),
            Slot::Damaged => None,
        }
    }

    /// Grows whenever what [`namespace`](Self::namespace) says changes.
    #[must_use]
    pub fn namespace_generation(&self) -> u64 {
        self.utl.table.generation()
    }

    /// How much of a namespace is used, in the unit of its [`size`](Namespace::size): blocks that were written, or bytes of
    /// records.
    #[must_use]
    pub fn namespace_usage(&self, namespace: NamespaceId) -> u64 {
        let state = self.utl.namespaces.get(namespace.index()).copied().unwrap_or_default();
        match self.utl.table.get(namespace) {
            Slot::Made(Namespace { kind: NamespaceKind::Block(_), .. }) => state.keys,
            _ => state.bytes,
        }
    }

    /// Keys of a namespace, or blocks.
    #[must_use]
    pub fn keys(&self, namespace: NamespaceId) -> u64 {
        self.utl.namespaces.get(namespace.index()).map_or(0, |state| state.keys)
    }

    /// Where a key stands in the device's order, whether it is there or not: what a list that starts with it starts from.
    #[must_use]
    pub fn position_of(&self, namespace: NamespaceId, key: &[u8]) -> crate::command::ListPosition {
        crate::command::ListPosition(self.utl.hasher.hash(namespace, key).0)
    }

    /// Operations in flight, completions waiting for durability not counted.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.slab.len()
    }

    /// Asks for a checkpoint; it is written in the background, turn by turn.
    pub fn request_checkpoint(&mut self) {
        self.checkpointer.request();
    }

    /// Whether a checkpoint is being written or waits for room.
    #[must_use]
    pub fn is_checkpointing(&self) -> bool {
        self.checkpointer.is_busy()
    }

    /// The failure after which the device accepts no writes, if there was one.
    #[must_use]
    pub fn failure(&self) -> Option<MediaError> {
        self.utl.failed
    }

    /// Stage times of the last sampled request.
    #[must_use]
    pub fn trace(&self) -> Option<Trace> {
        self.tracer.last()
    }

    /// The medium.
    pub fn media(&self) -> &M {
        &self.utl.media
    }

    /// The medium, for the faults of a simulator.
    pub fn media_mut(&mut self) -> &mut M {
        &mut self.utl.media
    }

    /// The index, for tests of what finds that something is wrong with it.
    #[cfg(test)]
    pub(crate) fn index_mut(&mut self) -> &mut crate::index::CompositeIndex {
        &mut self.utl.index
    }

    /// Gives the medium back, as a power cut would leave it.
    pub fn into_media(self) -> M {
        self.utl.media
    }

    /// Makes everything durable, writes a checkpoint, and returns the time when that is done. Blocks on the media.
    ///
    /// # Errors
    /// The failure that keeps the medium from becoming durable.
    pub fn shutdown(&mut self, mut now: Nanos, wall: UnixMillis) -> Result<Nanos, MediaError> {
        let applied = self.utl.applied();
        self.utl.commit.want(applied);
        self.checkpointer.request();
        loop {
            let moved = self.poll(now, wall);
            if let Some(error) = self.utl.failed {
                return Err(error);
            }
            let settled = self.utl.commit.durable >= applied && !self.checkpointer.is_busy();
            if settled {
                return Ok(now);
            }
            if !moved {
                if self.utl.media.in_flight() == 0 && self.checkpointer.give_up(&mut self.utl) {
                    continue;
                }
                now = self.utl.media.wait(now);
            }
        }
    }

    /// The numbers.
    #[must_use]
    pub fn stats(&self) -> DeviceStats {
        let mut stats = self.utl.stats;
        for (keys, state) in stats.keys.iter_mut().zip(&self.utl.namespaces) {
            *keys = state.keys;
        }
        stats.programmed_bytes = self.utl.programmed_bytes();
        stats.free_blocks = u32::try_from(self.utl.blocks.free()).unwrap_or(u32::MAX);
        stats.live_bytes = self.utl.blocks.live_bytes();
        stats.tombstone_bytes = self.utl.blocks.tombstone_bytes();
        stats.index_bytes = self.utl.index.bytes();
        stats.capacity_bytes = self.utl.capacity_with(0);
        stats.commits = self.utl.commit.commits;
        stats.gated = self.release.gated() as u64;
        stats.in_flight = self.slab.len() as u64;
        stats
    }
}

impl<M: Media> Device<M> {
    /// Submits what came due, a few at a time so that a wave of expiries does not hold up commands.
    fn expire(&mut self) -> bool {
        const AT_ONCE: usize = 128;
        let mut any = false;
        while self.schedule.expiring < AT_ONCE && !self.slab.is_full() {
            let Some((expiry_ms, hash, address)) = self.utl.expiry.due(self.utl.wall_ms) else {
                break;
            };
            // On a medium that failed nothing becomes durable any more, and nothing is removed.
            if let Err(unsure) = self.utl.may_expire(address)
                && self.utl.failed.is_none()
            {
                self.utl.commit.want(unsure);
                break;
            }
            let mut operation =
                Operation::new(FaceId(0), 0, NamespaceId::FIRST, Work::Expire { address }, self.now);
            operation.span = Span::one(hash);
            let at = self.slab.insert(operation);
            // While it is being removed the queue must not name it again.
            self.utl.expiry.remove(expiry_ms, hash, address);
            self.schedule.expiring += 1;
            self.run(at);
            any = true;
        }
        any
    }

    fn collect(&mut self) -> bool {
        match self.utl.collect() {
            Ok(moved) => moved,
            Err(Stall::Pages(pages)) => {
                for page in pages {
                    self.utl.reads.request(page, Waiter::Collector, &self.utl.blocks);
                }
                true
            }
            Err(Stall::Room { .. } | Stall::Durable(_)) => false,
        }
    }
}
