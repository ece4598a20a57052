//! The state that all connections share: settings, counters, key locks and work lists.
//!
//! Input: events of connections. Output: counters for INFO, and work lists that a turn processes in order.

use super::client_identity::ClientIdentity;
use super::command_table::{RespCommand, TABLE};
use super::locks::{ClientIndex, KeyLocks};
use super::output_queue::ValueBuffers;
use super::settings::RespSettings;
use super::slowlog::SlowLog;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_ssd::command::{FrontEndId, NamespaceId};
use std::collections::VecDeque;

/// The counters of one command.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CommandCounters {
    /// Executions.
    pub(crate) calls: u64,
    /// Time from dispatch to reply, summed, in nanoseconds.
    pub(crate) nanos: u64,
    /// Refusals before execution.
    pub(crate) rejected: u64,
    /// Executions that failed.
    pub(crate) failed: u64,
}

/// The counters of the front end.
#[derive(Debug, Default)]
pub(crate) struct RespCounters {
    pub(crate) commands: Vec<CommandCounters>,
    pub(crate) connections: u64,
    pub(crate) connections_rejected: u64,
    pub(crate) commands_done: u64,
    pub(crate) input_bytes: u64,
    pub(crate) output_bytes: u64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) errors: u64,
}

impl RespCounters {
    /// Creates counters of zero.
    pub(crate) fn new() -> Self {
        Self { commands: vec![CommandCounters::default(); TABLE.len()], ..Self::default() }
    }
}

/// A reference to an operation to be driven again, unless its client has disconnected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OperationRef {
    pub(crate) client: ClientIndex,
    pub(crate) id: u64,
    pub(crate) slot: u64,
}

/// The state that the connections share.
#[derive(Debug)]
pub(crate) struct RespState {
    pub(crate) front_end: FrontEndId,
    pub(crate) settings: RespSettings,
    pub(crate) counters: RespCounters,
    pub(crate) slowlog: SlowLog,
    pub(crate) locks: KeyLocks,
    pub(crate) value_buffers: ValueBuffers,
    /// Device commands of this front end in flight.
    pub(crate) in_flight: usize,
    /// Clients whose commands can proceed.
    pub(crate) dirty: VecDeque<ClientIndex>,
    /// Clients with something to send.
    pub(crate) flush: Vec<ClientIndex>,
    /// Clients whose next command the device had no room for.
    pub(crate) busy: VecDeque<ClientIndex>,
    /// Operations whose next step the device had no room for.
    pub(crate) busy_operations: VecDeque<OperationRef>,
    /// Operations that sleep, with their wake-up times.
    pub(crate) sleepers: Vec<(Nanos, OperationRef)>,
    pub(crate) random: fastrand::Rng,
    pub(crate) started: Nanos,
    pub(crate) started_wall: UnixMillis,
    pub(crate) now: Nanos,
    pub(crate) wall: UnixMillis,
    pub(crate) last_save: UnixMillis,
    pub(crate) next_client: u64,
}

impl RespState {
    /// Counts a finished command.
    #[inline]
    pub(crate) fn count_command(&mut self, verb: RespCommand, took: Nanos, failed: bool) {
        self.counters.commands_done += 1;
        if let Some(command) = self.counters.commands.get_mut(verb as usize) {
            command.calls += 1;
            command.nanos += took.0;
            if failed {
                command.failed += 1;
                self.counters.errors += 1;
            }
        }
    }

    /// Counts a command that was refused before execution.
    pub(crate) fn count_rejected(&mut self, verb: Option<RespCommand>) {
        self.counters.errors += 1;
        if let Some(command) = verb.and_then(|verb| self.counters.commands.get_mut(verb as usize)) {
            command.rejected += 1;
        }
    }

    /// Adds a slow command to the slow log. Its arguments are user data and are not kept.
    pub(crate) fn log_slow(
        &mut self,
        verb: RespCommand,
        arguments: u32,
        took: Nanos,
        identity: &ClientIdentity,
    ) {
        let at = self.wall;
        self.slowlog.push(verb, arguments, took, at, identity);
    }

    /// Releases a key's lock and queues the next waiter to be run.
    pub(crate) fn unlock(&mut self, namespace: NamespaceId, key: &[u8]) {
        let next = self.locks.release(namespace, key);
        self.dirty.extend(next);
    }

    /// Removes a connection from the waiters for a key; queues the next waiter if the key was promised to it.
    pub(crate) fn stop_waiting(&mut self, namespace: NamespaceId, key: &[u8], client: ClientIndex) {
        let next = self.locks.remove_waiter(namespace, key, client);
        self.dirty.extend(next);
    }
}
