//! The command EXEC: runs the commands of a transaction, all or nothing, as if no other client existed.
//!
//! Input: the queued commands and the watched keys. Output: one batch for the device, and one reply. The commands run in
//! memory, on [`TransactionDatabases`]: when they need keys that were not read, the keys are read and the commands run
//! again. The batch holds the writes, and for each key that was read or is watched the condition that it is unchanged. So
//! the moment in which the device executes the batch is the moment of the whole transaction.
//!
//! ```text
//!   Begin -> Run -+- keys missing -> Read -> Begin
//!                 +- long command -> Long <-> Listing, then Run
//!                 +- all known ----> Write -> Writing -+- done, or a watched key changed -> Done
//!                                                      +- another key changed -> Enter (gate) -> Read
//!                                                         (no gate with long commands)
//! ```
//!
//! Invariant: nothing is written but by the one batch, and the reply waits until all that it says is durable.

mod key_reads;
mod long_command;

use super::errors::{self, ErrorReply};
use super::limits::{
    GATE_MAX, RETRIES_MAX, TRANSACTION_REPLY_BYTES_MAX, TRANSACTION_SLICE_BYTES, TRANSACTION_SLICE_COMMANDS,
};
use super::operation_step::{DriveResult, OperationContext};
use super::output_queue::{ReplyEncoder, append_reply};
use super::reply::RespReply;
use super::state::RespState;
use super::transaction::{QueuedCommand, WatchedKeys};
use super::transaction_batch::TransactionBatch;
use super::transaction_databases::{TransactionDatabases, WantedKey};
use super::transaction_errors::{self, exec_abort};
use super::transaction_step::{StepContext, StepResult, run_command};
use crate::core_device::CoreDevice;
use headwater_host::clock::Nanos;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{NamespaceId, SsdCompletion, SubmitError};
use headwater_ssd::limits::BATCH_WRITES_MAX;
use key_reads::KeyReads;
use long_command::LongCommand;
use std::collections::BTreeMap;

/// The reason why there is no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemoryRefusal {
    /// It may come when clients receive their replies.
    Wait,
    /// The transaction holds memory itself.
    Abort,
}

#[derive(Debug)]
enum RunStage {
    Begin,
    Run {
        next: usize,
    },
    /// A command goes on.
    Long(LongCommand),
    /// Keys of the device are listed for a command.
    Listing(LongCommand),
    Enter(Vec<WantedKey>),
    Read(KeyReads),
    Write,
    Writing,
    Done(RespReply),
}

/// Returns what a command of the transaction uses.
fn step_of<'a, S>(
    databases: &'a mut TransactionDatabases,
    namespace: NamespaceId,
    context: &'a mut OperationContext<'_, S>,
) -> StepContext<'a> {
    let (protocol, operation) = (context.protocol, context.operation);
    StepContext { databases, shared: &mut *context.shared, protocol, namespace, operation }
}

/// The run of a transaction.
#[derive(Debug)]
pub(crate) struct TransactionRun {
    commands: Vec<QueuedCommand>,
    /// Encoded replies of the commands that need no device, by their position.
    answers: BTreeMap<usize, Vec<u8>>,
    watched: WatchedKeys,
    databases: TransactionDatabases,
    stage: RunStage,
    batch: TransactionBatch,
    /// The encoded replies.
    out: Vec<u8>,
    /// Positions of the commands whose replies are errors.
    failed: Vec<usize>,
    /// Values found and not found by reads.
    hits_and_misses: (u64, u64),
    /// Bytes that it holds and that the connection does not count yet.
    grown: usize,
    /// Bytes of the values that are read or being read, and of the replies.
    held: usize,
    /// Bytes of the replies that `held` contains.
    out_counted: usize,
    retries: u32,
    /// The database that its SELECT commands select, if it has any.
    selects: Option<u8>,
    /// The database that they have selected.
    selected: Option<u8>,
    /// The time at which it leaves the gate at the latest; `None` outside it.
    gate_until: Option<Nanos>,
    /// True if it is driven again at that time.
    is_timed: bool,
    /// True if the commands that list keys are left out of the run, because keys that it needs are not read yet.
    leaves_listings_out: bool,
}

impl TransactionRun {
    /// Creates a run. `answers` are the encoded replies of the commands that need no device, and `selects` is the database
    /// that is selected when it has happened.
    pub(crate) fn new(
        commands: Vec<QueuedCommand>,
        watched: WatchedKeys,
        answers: BTreeMap<usize, Vec<u8>>,
        selects: Option<u8>,
    ) -> Self {
        Self {
            selects,
            selected: None,
            leaves_listings_out: commands.iter().any(|command| long_command::is_listing(command.verb)),
            commands,
            answers,
            watched,
            databases: TransactionDatabases::default(),
            stage: RunStage::Begin,
            batch: TransactionBatch::default(),
            out: Vec::new(),
            failed: Vec::new(),
            hits_and_misses: (0, 0),
            grown: 0,
            held: 0,
            out_counted: 0,
            retries: 0,
            gate_until: None,
            is_timed: false,
        }
    }

    /// Leaves the gate, if it is inside.
    fn leave_gate<S>(&mut self, context: &mut OperationContext<'_, S>) {
        self.gate_until = None;
        context.shared.leave_gate(context.operation.client);
    }

    /// Returns the result of a drive that waits for the device: inside the gate it waits for a limited time, and for room
    /// outside it. All other clients wait for the gate, and limits of a database can make it wait for seconds.
    fn limited<S>(&mut self, result: DriveResult, context: &mut OperationContext<'_, S>) -> DriveResult {
        match (result, self.gate_until) {
            (DriveResult::Waiting, Some(until)) if !std::mem::replace(&mut self.is_timed, true) => {
                DriveResult::Until(until)
            }
            (DriveResult::Busy, Some(_)) => {
                self.leave_gate(context);
                DriveResult::Busy
            }
            (result, _) => result,
        }
    }

    /// Returns the bytes of the values that are read or being read, and of the replies.
    pub(crate) fn reply_bytes(&self) -> usize {
        self.held
    }

    /// Takes memory for values or replies. Otherwise the transaction ends, if it holds memory that other clients could wait
    /// for, or it waits and is driven again when there is memory.
    fn take_memory<S: CoreDevice>(
        &mut self,
        more: usize,
        context: &mut OperationContext<'_, S>,
    ) -> Result<(), MemoryRefusal> {
        if context.admits_reply(self.held, more) {
            self.held += more;
            return Ok(());
        }
        self.leave_gate(context);
        if context.own_replies == 0 && self.held > 0 {
            context.stop_waiting();
            return Err(MemoryRefusal::Abort);
        }
        Err(MemoryRefusal::Wait)
    }

    /// Returns the database that it has selected, when it has happened.
    pub(crate) fn selected(&self) -> Option<u8> {
        self.selected
    }

    /// Takes the number of bytes by which it grew.
    pub(crate) fn take_grown(&mut self) -> usize {
        std::mem::take(&mut self.grown)
    }

    /// Submits the device commands that are due.
    pub(crate) fn drive<S: CoreDevice>(&mut self, context: &mut OperationContext<'_, S>) -> DriveResult {
        if self.gate_until.is_some_and(|until| until <= context.shared.now) {
            self.leave_gate(context);
        }
        loop {
            match std::mem::replace(&mut self.stage, RunStage::Writing) {
                RunStage::Begin => {
                    self.begin_run(context);
                    self.stage = RunStage::Run { next: 0 };
                }
                RunStage::Run { next } => {
                    match self.take_reply_memory(context) {
                        Ok(()) => self.stage = self.run_slice(next, context),
                        Err(MemoryRefusal::Abort) => {
                            self.stage = RunStage::Done(exec_abort(&transaction_errors::NO_MEMORY).into());
                        }
                        Err(MemoryRefusal::Wait) => {
                            self.stage = RunStage::Run { next };
                            return DriveResult::NoRoom;
                        }
                    }
                    if matches!(self.stage, RunStage::Run { next } if next < self.commands.len()) {
                        // The rest runs in a later turn, after what other clients have asked for.
                        return DriveResult::Again;
                    }
                }
                RunStage::Long(command) => match self.go_on(command, context) {
                    Ok(stage) => self.stage = stage,
                    Err(result) => return result,
                },
                RunStage::Listing(command) => {
                    self.stage = RunStage::Listing(command);
                    return DriveResult::Waiting;
                }
                RunStage::Enter(keys) => {
                    if !context.shared.gate.enter(context.operation) {
                        self.stage = RunStage::Enter(keys);
                        return DriveResult::Waiting;
                    }
                    self.gate_until = Some(context.shared.now.after(GATE_MAX));
                    self.is_timed = false;
                    self.stage = RunStage::Read(KeyReads::new(keys));
                }
                RunStage::Read(reads) => match self.read(reads, context) {
                    Ok(stage) => self.stage = stage,
                    Err(result) => return self.limited(result, context),
                },
                RunStage::Write => match self.write(context) {
                    Ok(stage) => self.stage = stage,
                    Err(result) => return self.limited(result, context),
                },
                RunStage::Writing => return DriveResult::Waiting,
                RunStage::Done(reply) => {
                    self.leave_gate(context);
                    return DriveResult::Done(reply);
                }
            }
        }
    }

    /// Begins with the first command.
    fn begin_run<S: CoreDevice>(&mut self, context: &OperationContext<'_, S>) {
        self.databases.begin_run(context.shared.wall);
        self.held -= std::mem::take(&mut self.out_counted);
        self.out.clear();
        self.failed.clear();
        self.hits_and_misses = (0, 0);
        ReplyEncoder::new(&mut self.out, context.protocol).array(self.commands.len());
    }

    /// Takes memory for the replies that were made since the last time.
    fn take_reply_memory<S: CoreDevice>(
        &mut self,
        context: &mut OperationContext<'_, S>,
    ) -> Result<(), MemoryRefusal> {
        self.take_memory(self.out.len() - self.out_counted, context)?;
        self.out_counted = self.out.len();
        Ok(())
    }

    /// Runs some commands, and ends the run behind the last.
    fn run_slice<S: CoreDevice>(&mut self, first: usize, context: &mut OperationContext<'_, S>) -> RunStage {
        if first == self.commands.len() {
            return self.end_run(context);
        }
        let (length, copied) = (self.out.len(), self.databases.copied());
        let end = self.commands.len().min(first + TRANSACTION_SLICE_COMMANDS);
        for at in first..end {
            let spent = self.out.len() - length + self.databases.copied() - copied;
            if spent > TRANSACTION_SLICE_BYTES {
                return RunStage::Run { next: at };
            }
            match self.run_one(at, context) {
                Ok(None) => {}
                Ok(Some(command)) => return RunStage::Long(command),
                Err(failure) => return RunStage::Done(exec_abort(&failure).into()),
            }
        }
        RunStage::Run { next: end }
    }

    /// Decides what follows when all commands were run.
    fn end_run<S: CoreDevice>(&mut self, context: &mut OperationContext<'_, S>) -> RunStage {
        if self.databases.is_incomplete() {
            return RunStage::Read(KeyReads::new(self.databases.take_wanted()));
        }
        if std::mem::take(&mut self.leaves_listings_out) {
            return RunStage::Begin;
        }
        self.batch = self.databases.batch(&self.watched);
        self.grown += self.out.len();
        if self.batch.is_empty() { self.finished(context.shared) } else { RunStage::Write }
    }

    /// Runs a command, or the first part of one that takes long, which is then returned.
    fn run_one<S: CoreDevice>(
        &mut self,
        at: usize,
        context: &mut OperationContext<'_, S>,
    ) -> Result<Option<LongCommand>, ErrorReply> {
        if let Some(answer) = self.answers.get(&at) {
            self.out.extend_from_slice(answer);
            return self.check_replies(0).map(|()| None);
        }
        if self.leaves_out(at, context) {
            return Ok(None);
        }
        let before = (context.shared.counters.hits, context.shared.counters.misses);
        let command = &self.commands[at];
        let result = run_command(command, &mut step_of(&mut self.databases, command.namespace, context));
        let counters = &mut context.shared.counters;
        self.hits_and_misses.0 += std::mem::replace(&mut counters.hits, before.0) - before.0;
        self.hits_and_misses.1 += std::mem::replace(&mut counters.misses, before.1) - before.1;
        match result {
            StepResult::Done(reply) => self.add_reply(at, reply, context).map(|()| None),
            StepResult::Suspended(operation, driven) => {
                Ok(Some(LongCommand::new(at, operation, driven, &self.databases)))
            }
        }
    }

    /// Adds the reply of a command to that of EXEC.
    fn add_reply<S: CoreDevice>(
        &mut self,
        at: usize,
        reply: RespReply,
        context: &mut OperationContext<'_, S>,
    ) -> Result<(), ErrorReply> {
        if matches!(reply, RespReply::Error(_)) {
            self.failed.push(at);
        }
        if self.databases.is_incomplete() {
            // The run is repeated: its replies are not needed.
            return Ok(());
        }
        // Before it is copied: MGET of one key may be given that key a million times.
        self.check_replies(reply.value_bytes())?;
        append_reply(reply, &mut self.out, context.protocol, &mut context.shared.value_buffers);
        self.check_replies(0)
    }

    /// Checks that the replies have room for more bytes.
    fn check_replies(&self, more: usize) -> Result<(), ErrorReply> {
        if self.out.len() + more > TRANSACTION_REPLY_BYTES_MAX {
            Err(transaction_errors::REPLY_TOO_LONG)
        } else {
            Ok(())
        }
    }

    /// Submits the batch; returns the next stage, or the result of the drive.
    fn write<S: CoreDevice>(
        &mut self,
        context: &mut OperationContext<'_, S>,
    ) -> Result<RunStage, DriveResult> {
        if self.batch.keys() > BATCH_WRITES_MAX {
            return Ok(RunStage::Done(transaction_errors::too_many_keys(self.batch.keys()).into()));
        }
        let (bytes, bytes_max) = (self.batch.bytes(), context.device.batch_bytes_max());
        if bytes > bytes_max {
            return Ok(RunStage::Done(transaction_errors::too_many_bytes(bytes, bytes_max).into()));
        }
        let Some((namespace, command)) = self.batch.command() else {
            unreachable!("a transaction without writes and checks submits a batch");
        };
        match context.submit(0, namespace, command) {
            Ok(()) => {
                // The device keeps the order of each key: what other clients write from now on comes later.
                self.leave_gate(context);
                self.stage = RunStage::Writing;
                Err(DriveResult::Waiting)
            }
            Err(SubmitError::Busy(_)) => {
                self.stage = RunStage::Write;
                Err(DriveResult::Busy)
            }
            Err(SubmitError::Refused(status)) => Ok(Self::abort(status)),
        }
    }

    /// Applies a completion to the state.
    pub(crate) fn accept(&mut self, part: u32, completion: SsdCompletion, shared: &mut RespState) {
        self.stage = match std::mem::replace(&mut self.stage, RunStage::Writing) {
            RunStage::Read(reads) => self.accept_read(part, reads, completion),
            RunStage::Writing => self.accept_batch(&completion, shared),
            RunStage::Listing(command) => self.accept_listing(command, completion, shared),
            _ => unreachable!("a transaction got a completion, and has no command in flight"),
        };
    }

    fn accept_batch(&mut self, completion: &SsdCompletion, shared: &mut RespState) -> RunStage {
        match completion.status {
            Status::SUCCESS => self.finished(shared),
            Status::SEQUENCE_MISMATCH | Status::KEY_EXISTS | Status::KEY_DOES_NOT_EXIST => {
                if self.batch.is_watched(completion.position) {
                    return RunStage::Done(RespReply::NullArray);
                }
                self.retries += 1;
                if self.retries > RETRIES_MAX {
                    return RunStage::Done(exec_abort(&errors::CONTENDED).into());
                }
                (self.held, self.out_counted) = (0, 0);
                self.out.clear();
                self.repeat()
            }
            Status::CAPACITY_EXCEEDED | Status::NAMESPACE_WRITE_PROTECTED | Status::INVALID_NAMESPACE => {
                Self::abort(completion.status)
            }
            other => RunStage::Done(errors::from_status(other).into()),
        }
    }

    fn abort(status: Status) -> RunStage {
        RunStage::Done(exec_abort(&errors::from_status(status)).into())
    }

    /// Counts the commands and returns the stage with the reply.
    fn finished(&mut self, shared: &mut RespState) -> RunStage {
        self.selected = self.selects;
        shared.counters.hits += self.hits_and_misses.0;
        shared.counters.misses += self.hits_and_misses.1;
        for (at, command) in self.commands.iter().enumerate() {
            let failed = self.failed.binary_search(&at).is_ok();
            shared.count_command(command.verb, Nanos::ZERO, failed);
        }
        RunStage::Done(RespReply::Encoded(std::mem::take(&mut self.out)))
    }
}
