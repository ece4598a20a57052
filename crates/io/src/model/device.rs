//! The controller's end of the latency model.
//!
//! Input: the entries of its queues, by round robin or by weight, and the time as an argument. Output: completions,
//! each at the end of its service time. Invariant: the events up to a time do not depend on when the model was polled:
//! a unit that becomes free takes the next command at that time.

use super::contents::ModelBlocks;
use crate::backend::CommandContext;
use crate::command::TransferData;
use crate::error::IoError;
use headwater_host::clock::Nanos;
use headwater_host::ring_memory::HeapWords;
use headwater_nvme::controller::arbiter::QUEUES_MAX;
use headwater_nvme::controller::{
    ArbitrationSettings, CommandToken, ControllerQueuePair, FetchedCommand, QueueArbiter, QueueId, QueueKind,
};
use headwater_nvme::queue_pair::{ControllerEnd, QueuePair};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::priority::QueuePriority;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::num::NonZeroU16;

/// Entries fetched from one queue per turn.
const BURST: NonZeroU16 = NonZeroU16::MIN;

/// The service times of commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceTimes {
    /// The time of every command.
    pub fixed: Nanos,
    /// The additional time per KiB that a command transfers.
    pub per_kib: Nanos,
    /// The maximum random deviation, in percent; the random sequence is the same in every run.
    pub jitter_percent: u8,
    /// The number of commands served at a time.
    pub units: u32,
}

impl Default for ServiceTimes {
    /// Returns roughly a data-centre SSD: 60 us plus 0.3 us per KiB, 32 commands at a time.
    fn default() -> Self {
        Self { fixed: Nanos::from_micros(60), per_kib: Nanos(300), jitter_percent: 0, units: 32 }
    }
}

/// The arbitration of a model among its queues (NVMe Base 2.0 section 3.4.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ArbitrationMode {
    /// One command of each queue in turn.
    #[default]
    RoundRobin,
    /// Urgent first, then high, medium and low by the weights of this dword 11 of the Arbitration feature.
    Weighted {
        /// The dword: burst, low, medium and high weight, 0's based, from the low byte up.
        settings: u32,
    },
}

/// A command in service.
#[derive(Debug)]
struct ServedCommand {
    token: CommandToken,
    entry: SubmissionEntry,
}

/// The device behind the queues.
#[derive(Debug)]
pub(super) struct ModelCore {
    service: ServiceTimes,
    arbiter: QueueArbiter<HeapWords>,
    /// The end of each service, and its place in the order of starting.
    ends: BinaryHeap<Reverse<(Nanos, u64)>>,
    serving: BTreeMap<u64, ServedCommand>,
    started: u64,
    /// The data of commands in flight, by queue and command id.
    data_in_flight: BTreeMap<(u16, u16), TransferData>,
    abandoned: Vec<QueueId>,
    random_state: u64,
}

impl ModelCore {
    pub(super) fn new(service: ServiceTimes, arbitration: ArbitrationMode) -> Self {
        let arbiter = match arbitration {
            ArbitrationMode::RoundRobin => QueueArbiter::new(BURST),
            ArbitrationMode::Weighted { settings } => {
                QueueArbiter::weighted(ArbitrationSettings::from_dword(settings))
            }
        };
        Self {
            service: ServiceTimes { units: service.units.max(1), ..service },
            arbiter,
            ends: BinaryHeap::new(),
            serving: BTreeMap::new(),
            started: 0,
            data_in_flight: BTreeMap::new(),
            abandoned: Vec::new(),
            random_state: 0x9E37_79B9_7F4A_7C15,
        }
    }

    /// Adds a queue pair. Returns its number and the host's half.
    pub(super) fn add(
        &mut self,
        depth: u32,
        priority: QueuePriority,
    ) -> Result<(QueueId, QueuePair<HeapWords, CommandContext>), IoError> {
        let arbiter = &mut self.arbiter;
        self.abandoned.retain(|&id| !matches!(arbiter.remove_drained(id), Ok(Some(_))));
        let (host, end): (_, ControllerEnd<_>) = QueuePair::new(depth)?;
        let free = (1..=QUEUES_MAX).map(QueueId).find(|&id| self.arbiter.queue(id).is_err());
        let none_free = || IoError::Limit {
            reason: format!("all {QUEUES_MAX} queues of the model are in use; drop one first"),
        };
        let id = free.ok_or_else(none_free)?;
        self.arbiter
            .add_with(ControllerQueuePair::new(id, QueueKind::Standard, end), priority)
            .map_err(|error| IoError::Device { reason: error.to_string() })?;
        Ok((id, host))
    }

    /// Abandons a queue whose host is gone.
    pub(super) fn abandon(&mut self, id: QueueId) {
        if self.arbiter.abandon(id).is_ok() {
            self.abandoned.push(id);
        }
        self.data_in_flight.retain(|&(queue, _), _| queue != id.0);
    }

    /// Stores the data of a submitted command.
    pub(super) fn store_data(&mut self, queue: QueueId, command_id: u16, data: TransferData) {
        self.data_in_flight.insert((queue.0, command_id), data);
    }

    /// Aborts a command that is not yet in service, which completes it. Returns false if there is no such command.
    pub(super) fn abort(&mut self, queue: QueueId, command_id: u16) -> bool {
        let aborted = self.arbiter.abort(queue, command_id);
        if aborted {
            self.data_in_flight.remove(&(queue.0, command_id));
        }
        aborted
    }

    /// Returns the end of the next service.
    pub(super) fn next_end(&self) -> Option<Nanos> {
        self.ends.peek().map(|&Reverse((at, _))| at)
    }

    /// Advances the model to `now`.
    pub(super) fn advance(&mut self, now: Nanos, blocks: &mut ModelBlocks) {
        while let Some(&Reverse((at, number))) = self.ends.peek()
            && at <= now
        {
            self.ends.pop();
            if let Some(serving) = self.serving.remove(&number) {
                self.finish_command(serving, blocks);
            }
            self.start_commands(at, blocks);
        }
        self.start_commands(now, blocks);
    }

    fn finish_command(&mut self, serving: ServedCommand, blocks: &mut ModelBlocks) {
        let key = (serving.token.queue().0, serving.token.command_id());
        let data = self.data_in_flight.remove(&key).unwrap_or_default();
        let status = blocks.execute(&serving.entry, &data);
        // The host's handle must be the only one again before the completion is posted.
        drop(data);
        self.arbiter.complete(serving.token, 0, status);
    }

    /// Starts commands on the free units.
    fn start_commands(&mut self, at: Nanos, blocks: &ModelBlocks) {
        while self.serving.len() < self.service.units as usize {
            let Some(FetchedCommand { entry, token, .. }) = self.arbiter.fetch() else {
                return;
            };
            let takes = self.service_time(blocks.bytes_of(&entry));
            self.started += 1;
            self.ends.push(Reverse((at.after(takes), self.started)));
            self.serving.insert(self.started, ServedCommand { token, entry });
        }
    }

    fn service_time(&mut self, bytes: u64) -> Nanos {
        let mean = self.service.fixed.0.saturating_add(self.service.per_kib.0.saturating_mul(bytes) / 1_024);
        let spread = mean / 100 * u64::from(self.service.jitter_percent.min(100));
        // Xorshift: sufficiently random for a model, and the same in each run.
        self.random_state ^= self.random_state << 13;
        self.random_state ^= self.random_state >> 7;
        self.random_state ^= self.random_state << 17;
        Nanos(mean - spread + self.random_state % (2 * spread + 1))
    }
}

impl Drop for ModelCore {
    fn drop(&mut self) {
        for serving in std::mem::take(&mut self.serving).into_values() {
            serving.token.abandon();
        }
    }
}
