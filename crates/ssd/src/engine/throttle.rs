//! Throttles commands to the limits of their namespace.
//!
//! Input: operations of namespaces with limits, in the order of their submission. Output: the same operations in the
//! same order, none before its start time. Invariant: a throttled namespace delays no command that is not its own, but for
//! those on keys of a batch over several namespaces, and its commands do not overtake each other.
//!
//! A batch over several namespaces is different: it waits when its turn to run comes, for one namespace after the other, and
//! holds its keys until then, so that no later operation on one of them overtakes it and each bucket is paid once. From its
//! submission on it has a claim on a place in the queue of each of its namespaces with limits, so that no queue grows beyond
//! [`THROTTLED_MAX`].

use super::SsdDevice;
use crate::command::{BatchWrite, LbaRange, NamespaceId, SsdCommand, SubmitError};
use crate::engine::batch_namespaces::NamespaceSet;
use crate::engine::operation::{DeviceOperation, KeyHold, OperationWork};
use crate::index::RecordIndex;
use crate::limits::{NAMESPACES, THROTTLED_MAX};
use crate::media::Media;
use crate::namespace::NamespaceLimits;
use crate::namespace::rate_limiter::RateLimiter;
use headwater_host::clock::Nanos;
use std::collections::VecDeque;

/// The token bucket of one namespace, and the operations that wait for it.
#[derive(Debug, Default)]
struct ThrottleQueue {
    bucket: RateLimiter,
    queue: VecDeque<usize>,
    /// Batches over several namespaces that will wait here.
    claims: usize,
    /// Start time of the first operation under `limits`.
    next_start: Nanos,
    /// Limits that the start time was computed from.
    limits: NamespaceLimits,
}

/// The wait queues of all namespaces.
#[derive(Debug, Default)]
pub(super) struct CommandThrottle {
    queues: [ThrottleQueue; NAMESPACES],
    /// Number of waiting operations of all namespaces.
    pub(super) waiting: usize,
}

impl CommandThrottle {
    /// Returns the time at which the next waiting command may start.
    pub(super) fn next_start(&self) -> Option<Nanos> {
        if self.waiting == 0 {
            return None;
        }
        self.queues.iter().filter(|line| !line.queue.is_empty()).map(|line| line.next_start).min()
    }

    /// Removes an operation from its wait queue. Returns true if it was in one.
    pub(super) fn remove_waiting(&mut self, at: usize) -> bool {
        for line in &mut self.queues {
            let Some(index) = line.queue.iter().position(|&waiting| waiting == at) else { continue };
            line.queue.remove(index);
            if index == 0 {
                // The next one may transfer less, and start earlier.
                line.next_start = Nanos::ZERO;
            }
            self.waiting -= 1;
            return true;
        }
        false
    }

    /// Checks that the namespace's wait queue has room for the command, if it counts against limits.
    #[inline]
    pub(super) fn check_room(&self, namespace: NamespaceId, command: &SsdCommand) -> Result<(), SubmitError> {
        let is_full = |namespace: NamespaceId| {
            self.queues
                .get(namespace.index())
                .is_some_and(|line| line.queue.len() + line.claims >= THROTTLED_MAX)
        };
        let is_any_full =
            is_full(namespace) || command.namespace_runs().iter().any(|run| is_full(run.namespace));
        if is_any_full && counts_against_limits(command) {
            return Err(SubmitError::Busy(THROTTLED_MAX));
        }
        Ok(())
    }
}

impl<M: Media> SsdDevice<M> {
    /// Returns true if a command that is submitted now is not refused as [`SubmitError::Busy`].
    #[must_use]
    pub fn has_room(&self, namespace: NamespaceId, command: &SsdCommand) -> bool {
        !self.operations.is_full() && self.throttle.check_room(namespace, command).is_ok()
    }

    /// Enqueues a new operation to run in the next turn, or to wait until the limits of its namespace permit its start. The
    /// caller queues it itself while nothing waits and its namespaces have no limits.
    #[cold]
    pub(super) fn admit(&mut self, at: usize) {
        let operation = &self.operations[at];
        let OperationWork::Command(command) = &operation.work else {
            unreachable!("only commands of front ends are throttled")
        };
        let waits = |namespace: &NamespaceId| {
            let line = &self.throttle.queues[namespace.index()];
            !line.queue.is_empty()
                || line.claims > 0
                || self.ftl.namespace_table().limits(*namespace).is_some()
        };
        let limited: NamespaceSet = operation.batch_namespaces().each().filter(waits).collect();
        if limited.is_empty() || !counts_against_limits(command) {
            self.schedule.incoming.push_back(at);
        } else if command.namespace_runs().is_empty() {
            self.enqueue(at, operation.namespace);
        } else {
            limited.iter().for_each(|namespace| self.throttle.queues[namespace.index()].claims += 1);
            self.operations[at].throttle_claims = limited;
            self.schedule.incoming.push_back(at);
        }
    }

    /// Returns true if a batch over several namespaces waits for the limits of one. It holds its keys then.
    pub(super) fn wait_for_limits(&mut self, at: usize) -> bool {
        let operation = &mut self.operations[at];
        let Some(namespace) = operation.throttle_claims.take_first() else { return false };
        self.schedule.held.hold_in_order(at, operation);
        self.throttle.queues[namespace.index()].claims -= 1;
        self.enqueue(at, namespace);
        true
    }

    /// Gives up the claims of a batch that ends.
    #[cold]
    pub(super) fn drop_claims(&mut self, claims: NamespaceSet) {
        claims.iter().for_each(|namespace| self.throttle.queues[namespace.index()].claims -= 1);
    }

    /// Makes an operation wait for the limits of a namespace.
    fn enqueue(&mut self, at: usize, namespace: NamespaceId) {
        let line = &mut self.throttle.queues[namespace.index()];
        if line.queue.is_empty() {
            line.next_start = self.now;
        }
        line.queue.push_back(at);
        self.throttle.waiting += 1;
        self.start_waiting(namespace);
    }

    /// Starts the waiting operations whose limits permit it now. Returns true if there were any.
    pub(super) fn start_throttled(&mut self) -> bool {
        if self.throttle.waiting == 0 {
            return false;
        }
        let before = self.throttle.waiting;
        for number in (1..).take(NAMESPACES) {
            let namespace = NamespaceId(number);
            let line = &self.throttle.queues[namespace.index()];
            if line.queue.is_empty() {
                continue;
            }
            // Limits may have changed since the start time was computed.
            if line.next_start > self.now && line.limits == self.limits(namespace) {
                continue;
            }
            self.start_waiting(namespace);
        }
        self.throttle.waiting < before
    }

    /// Returns the limits of a namespace, of which 0 means unlimited.
    fn limits(&self, namespace: NamespaceId) -> NamespaceLimits {
        self.ftl.namespace_table().limits(namespace).unwrap_or_default()
    }

    fn start_waiting(&mut self, namespace: NamespaceId) {
        let limits = self.limits(namespace);
        while let Some(&at) = self.throttle.queues[namespace.index()].queue.front() {
            let bytes = self.transfer_bytes(&self.operations[at], namespace);
            let line = &mut self.throttle.queues[namespace.index()];
            if let Err(due) = line.bucket.start_command(&limits, bytes, self.now) {
                (line.next_start, line.limits) = (due, limits);
                return;
            }
            line.queue.pop_front();
            self.throttle.waiting -= 1;
            if self.operations[at].hold == KeyHold::None {
                self.schedule.incoming.push_back(at);
            } else {
                // A batch waits for its next namespace, or runs.
                self.schedule.runnable.push_back(at);
            }
        }
    }

    /// Returns the bytes of data of a namespace that an operation transfers; for a Retrieve, what the part
    /// that it reads takes of the medium at the most.
    fn transfer_bytes(&self, operation: &DeviceOperation, namespace: NamespaceId) -> u64 {
        let shift = operation.format.map_or(0, crate::namespace::BlockFormat::shift);
        let blocks =
            |ranges: &[LbaRange]| ranges.iter().map(|range| u64::from(range.blocks)).sum::<u64>() << shift;
        let stored = || {
            let record = self.ftl.index().find(operation.span.first, 0);
            record.map_or(0, |record| self.ftl.stored_bytes(record) as u64)
        };
        let OperationWork::Command(command) = &operation.work else {
            return 0;
        };
        match command {
            SsdCommand::Store { value: data, .. }
            | SsdCommand::Write { data, .. }
            | SsdCommand::Compare { data, .. } => data.len() as u64,
            SsdCommand::Retrieve { offset, bytes_max, .. } => {
                stored().saturating_sub(u64::from(*offset)).min(u64::from(*bytes_max))
            }
            SsdCommand::OpenValue { .. } => stored(),
            SsdCommand::Batch { writes } => writes.iter().map(BatchWrite::value_bytes).sum(),
            SsdCommand::BatchAcross { writes, runs } => {
                let firsts = std::iter::once(0).chain(runs.iter().map(|run| run.end));
                let own = runs.iter().zip(firsts).filter(|(run, _)| run.namespace == namespace);
                own.flat_map(|(run, first)| &writes[first..run.end]).map(BatchWrite::value_bytes).sum()
            }
            SsdCommand::Read { range, .. } => blocks(&[*range]),
            SsdCommand::Copy { sources, .. } => blocks(sources),
            _ => 0,
        }
    }
}

/// Returns true if a command counts against its namespace's limits: flushes, fences and administration do not, and the
/// parts of a value count when its reader is opened.
fn counts_against_limits(command: &SsdCommand) -> bool {
    !matches!(
        command,
        SsdCommand::ReadPart { .. } | SsdCommand::Flush | SsdCommand::Fence { .. } | SsdCommand::Namespace(_)
    )
}
