//! The state that all connections share: settings, counters, key locks and work lists.
//!
//! Input: events of connections. Output: counters for INFO, and work lists that a turn processes in order.

use super::client_identity::ClientIdentity;
use super::client_memory::ClientMemory;
use super::command_table::{RespCommand, TABLE};
use super::large_writes::LargeWrites;
use super::limits::REPLY_SHARE_BYTES;
use super::locks::{ClientIndex, KeyLocks};
use super::output_queue::ValueBuffers;
use super::password_hash::SaltedHash;
use super::receive_buffers::ReceiveBuffers;
use super::reply_budget::ReplyBudget;
use super::settings::RespSettings;
use super::slow_work::{SlowTask, SlowWork};
use super::slowlog::SlowLog;
use super::transaction_gate::{GateOpening, TransactionGate};
use super::wall_estimate::WallEstimate;
use crate::wrong_passwords::WrongPasswords;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_ssd::command::{FrontEndId, NamespaceId, ValueReader};
use std::collections::VecDeque;
use zeroize::Zeroizing;

/// The counters of one command; they only grow.
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

impl CommandCounters {
    /// Returns the growth since `base`.
    fn since(self, base: Self) -> Self {
        Self {
            calls: self.calls - base.calls,
            nanos: self.nanos - base.nanos,
            rejected: self.rejected - base.rejected,
            failed: self.failed - base.failed,
        }
    }
}

/// The counters of the front end; they only grow.
#[derive(Clone, Debug, Default)]
pub(crate) struct RespCounters {
    pub(crate) commands: Vec<CommandCounters>,
    pub(crate) connections: u64,
    pub(crate) connections_rejected: u64,
    /// Clients closed because they received nothing while other clients waited for memory.
    pub(crate) stalled_closed: u64,
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

    /// Returns the growth since `base`, an earlier copy of the same counters.
    pub(crate) fn since(&self, base: &Self) -> Self {
        Self {
            commands: self.commands.iter().zip(&base.commands).map(|(now, base)| now.since(*base)).collect(),
            connections: self.connections - base.connections,
            connections_rejected: self.connections_rejected - base.connections_rejected,
            stalled_closed: self.stalled_closed - base.stalled_closed,
            commands_done: self.commands_done - base.commands_done,
            input_bytes: self.input_bytes - base.input_bytes,
            output_bytes: self.output_bytes - base.output_bytes,
            hits: self.hits - base.hits,
            misses: self.misses - base.misses,
            errors: self.errors - base.errors,
        }
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
    /// The counters at the last CONFIG RESETSTAT, which INFO subtracts.
    pub(crate) counters_at_reset: RespCounters,
    /// The expired keys that the device had removed at the last CONFIG RESETSTAT.
    pub(crate) expired_at_reset: u64,
    pub(crate) slowlog: SlowLog,
    pub(crate) locks: KeyLocks,
    pub(crate) gate: TransactionGate,
    pub(crate) value_buffers: ValueBuffers,
    /// True if the device received something for one of the clients below in this turn.
    pub(crate) has_received: bool,
    /// Clients whose values wait for room in the device.
    pub(crate) awaiting_receipt: Vec<ClientIndex>,
    pub(crate) receive_buffers: ReceiveBuffers,
    pub(crate) client_memory: ClientMemory,
    pub(crate) reply_budget: ReplyBudget,
    pub(crate) large_writes: LargeWrites,
    /// Number of the present turn.
    pub(crate) turn: u64,
    /// Device commands of this front end in flight.
    pub(crate) in_flight: usize,
    /// Clients whose commands can proceed.
    pub(crate) dirty: VecDeque<ClientIndex>,
    /// Clients with something to send.
    pub(crate) flush: Vec<ClientIndex>,
    /// Those of them with long output.
    pub(crate) flush_long: Vec<ClientIndex>,
    /// Clients whose next command the device had no room for.
    pub(crate) busy: VecDeque<ClientIndex>,
    /// Operations whose next step the device had no room for.
    pub(crate) busy_operations: VecDeque<OperationRef>,
    /// Operations that compute for long, in parts.
    pub(crate) long_operations: VecDeque<OperationRef>,
    /// Operations that sleep, with their wake-up times.
    pub(crate) sleepers: Vec<(Nanos, OperationRef)>,
    pub(crate) random: fastrand::Rng,
    /// Number of the last reader of a value.
    pub(crate) readers: u64,
    pub(crate) started: Nanos,
    pub(crate) started_wall: UnixMillis,
    pub(crate) now: Nanos,
    pub(crate) wall: UnixMillis,
    pub(crate) wall_estimate: WallEstimate,
    pub(crate) last_save: UnixMillis,
    /// The last log line about a client that was closed because it received nothing.
    pub(crate) stall_warned_at: Option<Nanos>,
    /// The last log line about a client that sent HTTP.
    pub(crate) http_warned_at: Option<Nanos>,
    pub(crate) wrong_passwords: WrongPasswords,
    pub(crate) next_client: u64,
    pub(crate) slow_work: SlowWork,
}

impl RespState {
    /// Lists a connection whose output of so many bytes is to be sent.
    #[inline]
    pub(crate) fn list_for_flush(&mut self, client: ClientIndex, bytes: usize) {
        let list = if bytes > REPLY_SHARE_BYTES { &mut self.flush_long } else { &mut self.flush };
        list.push(client);
    }

    /// Returns a reader of a value that no other reader of this front end is.
    pub(crate) fn new_reader(&mut self) -> ValueReader {
        self.readers += 1;
        ValueReader::new(self.readers)
    }

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

    /// Makes the salted hash of the present password, on a thread of its own.
    pub(crate) fn hash_password(&mut self, password: Zeroizing<Vec<u8>>) {
        let salt = self.settings.secrets.next_salt();
        let task = SlowTask::Hash { password: password.clone(), salt };
        if let Err(error) = self.slow_work.start(task, None) {
            tracing::warn!(%error, "no thread can be started; the password is hashed while all clients wait");
            if let Some(present) = &mut self.settings.password {
                present.set_salted(SaltedHash::of(&password, &salt));
            }
        }
    }

    /// Releases a key's lock and queues the next waiter to be run.
    pub(crate) fn unlock(&mut self, namespace: NamespaceId, key: &[u8]) {
        let next = self.locks.release(namespace, key);
        self.dirty.extend(next);
    }

    /// Lets a client's transaction leave the gate, and runs what waited for that.
    pub(crate) fn leave_gate(&mut self, client: ClientIndex) {
        match self.gate.leave(client) {
            GateOpening::Nothing => {}
            GateOpening::Transaction(next) => self.busy_operations.push_back(next),
            GateOpening::Connections(stopped) => self.dirty.extend(stopped),
        }
    }

    /// Removes a connection from the waiters for a key; queues the next waiter if the key was promised to it.
    pub(crate) fn stop_waiting(&mut self, namespace: NamespaceId, key: &[u8], client: ClientIndex) {
        let next = self.locks.remove_waiter(namespace, key, client);
        self.dirty.extend(next);
    }
}
