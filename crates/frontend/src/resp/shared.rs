//! What all connections of a face have in common: settings, counters, locks, and the lists of who is to be looked at.
//!
//! In: events of connections. Out: numbers for INFO, and work lists that a turn goes through in order.

use super::command_table::{TABLE, Verb};
use super::connection::Identity;
use super::locks::{ClientIndex, KeyLocks};
use super::output::Sinks;
use super::settings::Settings;
use super::slowlog::SlowLog;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_ssd::command::{FaceId, NamespaceId};
use std::collections::VecDeque;

/// Counters of one command.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CommandCounters {
    /// Times it was carried out.
    pub(crate) calls: u64,
    /// Time from dispatch to reply, summed, in nanoseconds.
    pub(crate) nanos: u64,
    /// Times it was refused before it was tried.
    pub(crate) rejected: u64,
    /// Times it was tried and failed.
    pub(crate) failed: u64,
}

/// Counters of the face.
#[derive(Debug, Default)]
pub(crate) struct Counters {
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

impl Counters {
    /// All zero.
    pub(crate) fn new() -> Self {
        Self { commands: vec![CommandCounters::default(); TABLE.len()], ..Self::default() }
    }
}

/// An operation to be driven again, unless its client is gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Again {
    pub(crate) client: ClientIndex,
    pub(crate) id: u64,
    pub(crate) slot: u64,
}

/// What connections share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) face: FaceId,
    pub(crate) settings: Settings,
    pub(crate) counters: Counters,
    pub(crate) slowlog: SlowLog,
    pub(crate) locks: KeyLocks,
    pub(crate) sinks: Sinks,
    /// Device commands of this face without a completion yet.
    pub(crate) in_flight: usize,
    /// Clients whose commands may go on.
    pub(crate) dirty: VecDeque<ClientIndex>,
    /// Clients with something to send.
    pub(crate) flush: Vec<ClientIndex>,
    /// Clients whose next command the device had no room for.
    pub(crate) busy: VecDeque<ClientIndex>,
    /// Operations whose next step the device had no room for.
    pub(crate) busy_operations: VecDeque<Again>,
    /// Operations that wait for a time.
    pub(crate) sleepers: Vec<(Nanos, Again)>,
    pub(crate) random: fastrand::Rng,
    pub(crate) started: Nanos,
    pub(crate) started_wall: UnixMillis,
    pub(crate) now: Nanos,
    pub(crate) wall: UnixMillis,
    pub(crate) last_save: UnixMillis,
    pub(crate) next_client: u64,
}

impl Shared {
    /// Counts a finished command.
    #[inline]
    pub(crate) fn account(&mut self, verb: Verb, took: Nanos, failed: bool) {
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

    /// Counts a command that was refused before it was tried.
    pub(crate) fn reject(&mut self, verb: Option<Verb>) {
        self.counters.errors += 1;
        if let Some(command) = verb.and_then(|verb| self.counters.commands.get_mut(verb as usize)) {
            command.rejected += 1;
        }
    }

    /// Notes a command that took long. Its arguments are user data and are not kept.
    pub(crate) fn log_slow(&mut self, verb: Verb, arguments: u32, took: Nanos, identity: &Identity) {
        let at = self.wall;
        self.slowlog.push(verb, arguments, took, at, identity);
    }

    /// Frees a key and has the next one looked at who waited for it.
    pub(crate) fn unlock(&mut self, namespace: NamespaceId, key: &[u8]) {
        let next = self.locks.release(namespace, key);
        self.dirty.extend(next);
    }

    /// Forgets that a connection waited for a key.
    pub(crate) fn abandon(&mut self, namespace: NamespaceId, key: &[u8], who: ClientIndex) {
        let next = self.locks.abandon(namespace, key, who);
        self.dirty.extend(next);
    }
}
