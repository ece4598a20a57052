//! The command EXEC: runs the commands of a transaction, all or nothing, as if no other client existed.
//!
//! Input: the queued commands and the watched keys. Output: one batch for the device, and one reply. The commands run in
//! memory, on a [`TransactionView`]: when they need keys that were not read, the keys are read and the commands run
//! again. The batch holds the writes, and for each key that was read or is watched the condition that it is unchanged. So
//! the moment in which the device executes the batch is the moment of the whole transaction.
//!
//! ```text
//!   Begin -> Run -+- keys missing -> Read -> Begin
//!                 +- all known ----> Write -> Writing -+- done, or a watched key changed -> Done
//!                                                      +- another key changed -> Enter (gate) -> Read
//! ```
//!
//! Invariant: nothing is written but by the one batch, and the reply waits until all that it says is durable.

use super::errors::{self, ErrorReply};
use super::limits::{
    GATHER_IN_FLIGHT_MAX, RETRIES_MAX, TRANSACTION_READ_BYTES_MAX, TRANSACTION_REPLY_BYTES_MAX,
    TRANSACTION_SLICE_BYTES, TRANSACTION_SLICE_COMMANDS,
};
use super::operation_step::{DriveResult, OperationContext};
use super::output_queue::{ReplyEncoder, append_reply};
use super::reply::RespReply;
use super::state::RespState;
use super::transaction::{QueuedCommand, WatchedKeys};
use super::transaction_errors::{self, exec_abort};
use super::transaction_step::{StepContext, run_command};
use super::transaction_view::{KeyDetail, TransactionView, ViewRecord};
use crate::core_device::CoreDevice;
use bytes::Bytes;
use headwater_host::clock::Nanos;
use headwater_host::width::narrow;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{BatchWrite, NamespaceId, ReadRelease, SsdCommand, SsdCompletion, SubmitError};
use headwater_ssd::limits::BATCH_WRITES_MAX;
use std::collections::BTreeMap;

/// Keys to be read.
#[derive(Debug)]
struct KeyReads {
    keys: Vec<(Bytes, KeyDetail)>,
    submitted: usize,
    outstanding: usize,
    /// True if there is memory for the next value.
    admitted: bool,
    failed: Option<ErrorReply>,
}

impl KeyReads {
    fn new(keys: Vec<(Bytes, KeyDetail)>) -> Self {
        Self { keys, submitted: 0, outstanding: 0, admitted: false, failed: None }
    }
}

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
    Run { next: usize },
    Enter(Vec<(Bytes, KeyDetail)>),
    Read(KeyReads),
    Write,
    Writing,
    Done(RespReply),
}

/// The run of a transaction.
#[derive(Debug)]
pub(crate) struct TransactionRun {
    namespace: NamespaceId,
    commands: Vec<QueuedCommand>,
    /// Encoded replies of the commands that need no device, by their position.
    answers: BTreeMap<usize, Vec<u8>>,
    watched: WatchedKeys,
    watched_count: usize,
    view: TransactionView,
    stage: RunStage,
    writes: Vec<BatchWrite>,
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
}

impl TransactionRun {
    /// Creates a run. `answers` are the encoded replies of the commands that need no device.
    pub(crate) fn new(
        namespace: NamespaceId,
        commands: Vec<QueuedCommand>,
        watched: WatchedKeys,
        answers: BTreeMap<usize, Vec<u8>>,
    ) -> Self {
        Self {
            namespace,
            commands,
            answers,
            watched,
            watched_count: 0,
            view: TransactionView::new(namespace),
            stage: RunStage::Begin,
            writes: Vec::new(),
            out: Vec::new(),
            failed: Vec::new(),
            hits_and_misses: (0, 0),
            grown: 0,
            held: 0,
            out_counted: 0,
            retries: 0,
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
        context.shared.leave_gate(context.operation.client);
        if context.own_replies == 0 && self.held > 0 {
            context.stop_waiting();
            return Err(MemoryRefusal::Abort);
        }
        Err(MemoryRefusal::Wait)
    }

    /// Takes the number of bytes by which it grew.
    pub(crate) fn take_grown(&mut self) -> usize {
        std::mem::take(&mut self.grown)
    }

    /// Submits the device commands that are due.
    pub(crate) fn drive<S: CoreDevice>(&mut self, context: &mut OperationContext<'_, S>) -> DriveResult {
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
                RunStage::Enter(keys) => {
                    if !context.shared.gate.enter(context.operation) {
                        self.stage = RunStage::Enter(keys);
                        return DriveResult::Waiting;
                    }
                    self.stage = RunStage::Read(KeyReads::new(keys));
                }
                RunStage::Read(reads) => match self.read(reads, context) {
                    Ok(stage) => self.stage = stage,
                    Err(result) => return result,
                },
                RunStage::Write => match self.write(context) {
                    Ok(stage) => self.stage = stage,
                    Err(result) => return result,
                },
                RunStage::Writing => return DriveResult::Waiting,
                RunStage::Done(reply) => {
                    context.shared.leave_gate(context.operation.client);
                    return DriveResult::Done(reply);
                }
            }
        }
    }

    /// Begins with the first command.
    fn begin_run<S: CoreDevice>(&mut self, context: &OperationContext<'_, S>) {
        self.view.begin_run(context.shared.wall);
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
        let (length, copied) = (self.out.len(), self.view.copied());
        let end = self.commands.len().min(first + TRANSACTION_SLICE_COMMANDS);
        for at in first..end {
            let spent = self.out.len() - length + self.view.copied() - copied;
            if spent > TRANSACTION_SLICE_BYTES {
                return RunStage::Run { next: at };
            }
            if let Err(failure) = self.run_one(at, context) {
                return RunStage::Done(exec_abort(&failure).into());
            }
        }
        RunStage::Run { next: end }
    }

    /// Decides what follows when all commands were run.
    fn end_run<S: CoreDevice>(&mut self, context: &mut OperationContext<'_, S>) -> RunStage {
        if self.view.is_incomplete() {
            return RunStage::Read(KeyReads::new(self.view.take_wanted()));
        }
        (self.writes, self.watched_count) = self.view.batch(&self.watched);
        self.grown += self.out.len();
        if self.writes.is_empty() { self.finished(context.shared) } else { RunStage::Write }
    }

    fn run_one<S: CoreDevice>(
        &mut self,
        at: usize,
        context: &mut OperationContext<'_, S>,
    ) -> Result<(), ErrorReply> {
        if let Some(answer) = self.answers.get(&at) {
            self.out.extend_from_slice(answer);
        } else {
            let before = (context.shared.counters.hits, context.shared.counters.misses);
            let mut step = StepContext {
                view: &mut self.view,
                shared: &mut *context.shared,
                protocol: context.protocol,
                namespace: self.namespace,
                operation: context.operation,
            };
            let reply = run_command(&self.commands[at], &mut step);
            let counters = &mut context.shared.counters;
            self.hits_and_misses.0 += std::mem::replace(&mut counters.hits, before.0) - before.0;
            self.hits_and_misses.1 += std::mem::replace(&mut counters.misses, before.1) - before.1;
            if matches!(reply, RespReply::Error(_)) {
                self.failed.push(at);
            }
            if self.view.is_incomplete() {
                // The run is repeated: its replies are not needed.
                return Ok(());
            }
            // Before it is copied: MGET of one key may be given that key a million times.
            if self.out.len() + reply.value_bytes() > TRANSACTION_REPLY_BYTES_MAX {
                return Err(transaction_errors::REPLY_TOO_LONG);
            }
            append_reply(reply, &mut self.out, context.protocol, &mut context.shared.value_buffers);
        }
        if self.out.len() > TRANSACTION_REPLY_BYTES_MAX {
            Err(transaction_errors::REPLY_TOO_LONG)
        } else {
            Ok(())
        }
    }

    /// Submits reads of keys; returns the next stage, or the result of the drive.
    fn read<S: CoreDevice>(
        &mut self,
        mut reads: KeyReads,
        context: &mut OperationContext<'_, S>,
    ) -> Result<RunStage, DriveResult> {
        while reads.submitted < reads.keys.len()
            && reads.outstanding < GATHER_IN_FLIGHT_MAX
            && reads.failed.is_none()
        {
            let (key, detail) = reads.keys[reads.submitted].clone();
            if detail == KeyDetail::Value && !reads.admitted {
                let bytes = context.shared.large_writes.value_bytes(&*context.device, self.namespace, &key);
                if self.held + bytes > TRANSACTION_READ_BYTES_MAX {
                    reads.failed = Some(transaction_errors::TOO_MUCH_READ);
                    break;
                }
                match self.take_memory(bytes, context) {
                    Ok(()) => reads.admitted = true,
                    Err(MemoryRefusal::Abort) => {
                        reads.failed = Some(transaction_errors::NO_MEMORY);
                        break;
                    }
                    Err(MemoryRefusal::Wait) => {
                        self.stage = RunStage::Read(reads);
                        return Err(DriveResult::NoRoom);
                    }
                }
            }
            let release = ReadRelease::Speculative;
            let command = match detail {
                KeyDetail::Metadata => SsdCommand::Exist { key, release },
                KeyDetail::Value => {
                    SsdCommand::Retrieve { key, sink: Vec::new().into(), bytes_max: u32::MAX, release }
                }
            };
            match context.submit(narrow(reads.submitted), self.namespace, command) {
                Ok(()) => {
                    reads.submitted += 1;
                    reads.outstanding += 1;
                    reads.admitted = false;
                }
                Err(SubmitError::Busy(_)) => {
                    let idle = reads.outstanding == 0;
                    self.stage = RunStage::Read(reads);
                    return Err(if idle { DriveResult::Busy } else { DriveResult::Waiting });
                }
                Err(SubmitError::Refused(status)) => reads.failed = Some(errors::from_status(status)),
            }
        }
        if reads.outstanding > 0 {
            self.stage = RunStage::Read(reads);
            return Err(DriveResult::Waiting);
        }
        Ok(match reads.failed {
            Some(failure) => RunStage::Done(exec_abort(&failure).into()),
            None => RunStage::Begin,
        })
    }

    /// Submits the batch; returns the next stage, or the result of the drive.
    fn write<S: CoreDevice>(
        &mut self,
        context: &mut OperationContext<'_, S>,
    ) -> Result<RunStage, DriveResult> {
        if self.writes.len() > BATCH_WRITES_MAX {
            return Ok(RunStage::Done(transaction_errors::too_many_keys(self.writes.len()).into()));
        }
        let (bytes, bytes_max) =
            (self.writes.iter().map(BatchWrite::bytes).sum(), context.device.batch_bytes_max());
        if bytes > bytes_max {
            return Ok(RunStage::Done(transaction_errors::too_many_bytes(bytes, bytes_max).into()));
        }
        let writes = self.writes.clone();
        match context.submit(0, self.namespace, SsdCommand::Batch { writes }) {
            Ok(()) => {
                // The device keeps the order of each key: what other clients write from now on comes later.
                context.shared.leave_gate(context.operation.client);
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
            _ => unreachable!("a transaction got a completion, and has no command in flight"),
        };
    }

    fn accept_read(&mut self, part: u32, mut reads: KeyReads, completion: SsdCompletion) -> RunStage {
        reads.outstanding -= 1;
        let (key, detail) = reads.keys[part as usize].clone();
        match completion.status {
            Status::SUCCESS => {
                let (value_bytes, sequence) = (completion.value_bytes, completion.sequence);
                let expiry_ms = completion.expiry_ms;
                let value = (detail == KeyDetail::Value).then(|| completion.sink.into());
                self.view.learn(key, Some(ViewRecord { value, value_bytes, sequence, expiry_ms }));
            }
            Status::KEY_DOES_NOT_EXIST => self.view.learn(key, None),
            other => reads.failed = Some(errors::from_status(other)),
        }
        RunStage::Read(reads)
    }

    fn accept_batch(&mut self, completion: &SsdCompletion, shared: &mut RespState) -> RunStage {
        match completion.status {
            Status::SUCCESS => self.finished(shared),
            Status::SEQUENCE_MISMATCH | Status::KEY_EXISTS | Status::KEY_DOES_NOT_EXIST => {
                if (completion.position as usize) < self.watched_count {
                    return RunStage::Done(RespReply::NullArray);
                }
                self.retries += 1;
                if self.retries > RETRIES_MAX {
                    return RunStage::Done(exec_abort(&errors::CONTENDED).into());
                }
                (self.held, self.out_counted) = (0, 0);
                self.out.clear();
                RunStage::Enter(self.view.forget())
            }
            Status::CAPACITY_EXCEEDED | Status::NAMESPACE_WRITE_PROTECTED => Self::abort(completion.status),
            other => RunStage::Done(errors::from_status(other).into()),
        }
    }

    fn abort(status: Status) -> RunStage {
        RunStage::Done(exec_abort(&errors::from_status(status)).into())
    }

    /// Counts the commands and returns the stage with the reply.
    fn finished(&mut self, shared: &mut RespState) -> RunStage {
        shared.counters.hits += self.hits_and_misses.0;
        shared.counters.misses += self.hits_and_misses.1;
        for (at, command) in self.commands.iter().enumerate() {
            let failed = self.failed.binary_search(&at).is_ok();
            shared.count_command(command.verb, Nanos::ZERO, failed);
        }
        RunStage::Done(RespReply::Encoded(std::mem::take(&mut self.out)))
    }
}
