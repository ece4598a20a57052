//! Samples the time that requests spend in each stage.
//!
//! Input: the turns in which an operation was submitted, first run, executed and made durable. Output: the last complete
//! [`Trace`]. Times are those of the turns, so no clock is read for them; a stage shorter than a turn has length zero.

use crate::command::{Command, Sequence};
use crate::engine::operation::{Operation, Work};
use headwater_host::clock::Nanos;
use headwater_nvme::spec::status::Status;

/// Number of operations of which one is sampled.
const SAMPLE_EVERY: u64 = 1_024;

/// The stage times of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Name of the command.
    pub command: &'static str,
    /// Status of its completion.
    pub status: Status,
    /// Time from submission to its first run.
    pub queued: Nanos,
    /// Time from its first run to its result, with waits for pages, for its key and for room.
    pub executed: Nanos,
    /// Time from its result to durability.
    pub durable: Nanos,
}

#[derive(Debug, Default)]
pub(crate) struct Tracer {
    count: u64,
    waiting: Option<(Sequence, Nanos, Trace)>,
    last: Option<Trace>,
}

impl Tracer {
    pub(crate) fn executed(&mut self, operation: &Operation, status: Status, gate: Sequence, now: Nanos) {
        self.count += 1;
        let Work::Command(command) = &operation.work else {
            return;
        };
        if !self.count.is_multiple_of(SAMPLE_EVERY) && self.last.is_some() || self.waiting.is_some() {
            return;
        }
        let started = operation.started.unwrap_or(now);
        let trace = Trace {
            command: name(command),
            status,
            queued: started.since(operation.submitted),
            executed: now.since(started),
            durable: Nanos::ZERO,
        };
        self.waiting = Some((gate, now, trace));
    }

    pub(crate) fn durable(&mut self, durable: Sequence, now: Nanos) {
        if let Some((gate, since, trace)) = self.waiting
            && gate <= durable
        {
            self.last = Some(Trace { durable: now.since(since), ..trace });
            self.waiting = None;
        }
    }

    pub(crate) fn last(&self) -> Option<Trace> {
        self.last
    }
}

const fn name(command: &Command) -> &'static str {
    match command {
        Command::Store { .. } => "store",
        Command::Retrieve { .. } => "retrieve",
        Command::Exist { .. } => "exist",
        Command::Delete { .. } => "delete",
        Command::Batch { .. } => "batch",
        Command::List { .. } => "list",
        Command::Flush => "flush",
        Command::Fence { .. } => "fence",
        Command::Clear => "clear",
        Command::Read { .. } => "read",
        Command::Write { .. } => "write",
        Command::Deallocate { .. } => "deallocate",
        Command::Compare { .. } => "compare",
        Command::Verify { .. } => "verify",
        Command::Copy { .. } => "copy",
        Command::Namespace(_) => "namespace",
    }
}
