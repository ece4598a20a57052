//! The slow log.
//!
//! Input: finished commands with their durations, as differences of the turns' start times. Output: entries, newest
//! first. Arguments are user data: only their number is kept.

use super::client_identity::ClientIdentity;
use super::command_table::RespCommand;
use super::limits::SLOWLOG_ENTRIES_MAX;
use super::output_queue::ReplyEncoder;
use headwater_host::clock::{Nanos, UnixMillis};
use std::collections::VecDeque;

#[derive(Debug)]
struct SlowLogEntry {
    id: u64,
    at: UnixMillis,
    took: Nanos,
    verb: RespCommand,
    arguments: u32,
    address: String,
    name: Vec<u8>,
}

/// A bounded log of slow commands.
#[derive(Debug)]
pub(crate) struct SlowLog {
    entries: VecDeque<SlowLogEntry>,
    next: u64,
    /// Shortest duration to log; `None` disables the log.
    pub(crate) threshold: Option<Nanos>,
    /// Maximum number of entries.
    pub(crate) entries_max: usize,
}

impl Default for SlowLog {
    fn default() -> Self {
        Self { entries: VecDeque::new(), next: 0, threshold: Some(Nanos::from_millis(10)), entries_max: 128 }
    }
}

impl SlowLog {
    /// Returns true if a command of this duration is to be logged.
    #[inline]
    pub(crate) fn is_slow(&self, took: Nanos) -> bool {
        self.threshold.is_some_and(|threshold| took >= threshold)
    }

    /// Adds a command.
    pub(crate) fn push(
        &mut self,
        verb: RespCommand,
        arguments: u32,
        took: Nanos,
        at: UnixMillis,
        identity: &ClientIdentity,
    ) {
        let limit = self.entries_max.min(SLOWLOG_ENTRIES_MAX);
        if limit == 0 {
            return;
        }
        self.entries.push_front(SlowLogEntry {
            id: self.next,
            at,
            took,
            verb,
            arguments,
            address: identity.address.clone(),
            name: identity.name.clone(),
        });
        self.next += 1;
        self.entries.truncate(limit);
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Removes all entries.
    pub(crate) fn reset(&mut self) {
        self.entries.clear();
    }

    /// Writes the newest `count` entries as a reply.
    pub(crate) fn write(&self, count: usize, out: &mut ReplyEncoder<'_>) {
        let count = count.min(self.entries.len());
        out.array(count);
        for entry in self.entries.iter().take(count) {
            out.array(6);
            out.count(entry.id);
            out.count(entry.at.0 / 1_000);
            out.count(entry.took.0 / 1_000);
            let more = entry.arguments.saturating_sub(1);
            out.array(if more == 0 { 1 } else { 2 });
            out.text(entry.verb.name());
            if more > 0 {
                out.text(&format!("... ({more} more arguments)"));
            }
            out.text(&entry.address);
            out.bulk(&entry.name);
        }
    }
}
