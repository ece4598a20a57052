//! Commands that took long.
//!
//! In: finished commands with the time they took, measured in turns of the core, not by a clock of their own. Out: the newest
//! ones first. Arguments are user data and are not kept, only their number.

use super::command_table::Verb;
use super::connection::Identity;
use super::limits::SLOWLOG_ENTRIES_MAX;
use super::reply::Encoder;
use headwater_host::clock::{Nanos, UnixMillis};
use std::collections::VecDeque;

#[derive(Debug)]
struct Entry {
    id: u64,
    at: UnixMillis,
    took: Nanos,
    verb: Verb,
    arguments: u32,
    address: String,
    name: Vec<u8>,
}

/// The log.
#[derive(Debug)]
pub(crate) struct SlowLog {
    entries: VecDeque<Entry>,
    next: u64,
    /// What is too long; `None` logs nothing.
    pub(crate) threshold: Option<Nanos>,
    /// Entries to keep.
    pub(crate) entries_max: usize,
}

impl Default for SlowLog {
    fn default() -> Self {
        Self { entries: VecDeque::new(), next: 0, threshold: Some(Nanos::from_millis(10)), entries_max: 128 }
    }
}

impl SlowLog {
    /// Whether a command that took so long belongs here.
    #[inline]
    pub(crate) fn wants(&self, took: Nanos) -> bool {
        self.threshold.is_some_and(|threshold| took >= threshold)
    }

    /// Notes a command.
    pub(crate) fn push(
        &mut self,
        verb: Verb,
        arguments: u32,
        took: Nanos,
        at: UnixMillis,
        identity: &Identity,
    ) {
        let limit = self.entries_max.min(SLOWLOG_ENTRIES_MAX);
        if limit == 0 {
            return;
        }
        self.entries.push_front(Entry {
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

    /// How many entries there are.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Forgets them.
    pub(crate) fn reset(&mut self) {
        self.entries.clear();
    }

    /// Writes the newest entries.
    pub(crate) fn write(&self, count: usize, out: &mut Encoder<'_>) {
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
