//! Samples the time that requests spend in each stage.
//!
//! Input: the turns in which an operation was submitted, first run, executed and made durable. Output: the last
//! complete [`StageTrace`]. Times are those of the turns, so no clock is read for them; a stage shorter than a turn has
//! length zero.

use crate::command::{Sequence, SsdCommand};
use crate::engine::operation::{DeviceOperation, OperationWork};
use headwater_host::clock::Nanos;
use headwater_nvme::spec::status::Status;

/// Number of operations of which one is sampled.
const SAMPLE_EVERY: u64 = 1_024;

/// The stage times of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageTrace {
    /// Name of the command.
    pub command: &'static str,
    /// Status of its completion.
    pub status: Status,
    /// Time from submission to its first run.
    pub queue_time: Nanos,
    /// Time from its first run to its result, with waits for pages, for its key and for room.
    pub execution_time: Nanos,
    /// Time from its result to durability.
    pub durability_time: Nanos,
}

#[derive(Debug, Default)]
pub(crate) struct StageTracer {
    count: u64,
    waiting: Option<(Sequence, Nanos, StageTrace)>,
    last: Option<StageTrace>,
}

impl StageTracer {
    pub(crate) fn record_executed(
        &mut self,
        operation: &DeviceOperation,
        status: Status,
        gate: Sequence,
        now: Nanos,
    ) {
        self.count += 1;
        let OperationWork::Command(command) = &operation.work else {
            return;
        };
        if !self.count.is_multiple_of(SAMPLE_EVERY) && self.last.is_some() || self.waiting.is_some() {
            return;
        }
        let started = operation.started.unwrap_or(now);
        let trace = StageTrace {
            command: command_name(command),
            status,
            queue_time: started.since(operation.submitted),
            execution_time: now.since(started),
            durability_time: Nanos::ZERO,
        };
        self.waiting = Some((gate, now, trace));
    }

    pub(crate) fn record_durable(&mut self, durable: Sequence, now: Nanos) {
        if let Some((gate, since, trace)) = self.waiting
            && gate <= durable
        {
            self.last = Some(StageTrace { durability_time: now.since(since), ..trace });
            self.waiting = None;
        }
    }

    pub(crate) fn last(&self) -> Option<StageTrace> {
        self.last
    }
}

const fn command_name(command: &SsdCommand) -> &'static str {
    match command {
        SsdCommand::Store { .. } => "store",
        SsdCommand::Retrieve { .. } => "retrieve",
        SsdCommand::OpenValue { .. } => "open_value",
        SsdCommand::ReadPart { .. } => "read_part",
        SsdCommand::Exist { .. } => "exist",
        SsdCommand::Delete { .. } => "delete",
        SsdCommand::Batch { .. } | SsdCommand::BatchAcross { .. } => "batch",
        SsdCommand::List { .. } => "list",
        SsdCommand::Flush => "flush",
        SsdCommand::Fence { .. } => "fence",
        SsdCommand::Clear => "clear",
        SsdCommand::Read { .. } => "read",
        SsdCommand::Write { .. } => "write",
        SsdCommand::Deallocate { .. } => "deallocate",
        SsdCommand::Compare { .. } => "compare",
        SsdCommand::Verify { .. } => "verify",
        SsdCommand::Copy { .. } => "copy",
        SsdCommand::Namespace(_) => "namespace",
    }
}
