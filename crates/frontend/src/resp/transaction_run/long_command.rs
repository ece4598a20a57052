//! The commands of a transaction that take more than one turn: LCS computes for long; KEYS, SCAN and RANDOMKEY list keys of
//! the device; DBSIZE waits until expired keys are removed.
//!
//! Input: the operation of the command. Output: its reply, made in as many turns as outside of a transaction. A command
//! sees the changes of the commands before it. What it lists is no condition of the batch: other clients may make and
//! remove keys while it lists, as they may outside of a transaction.

use super::{KeyReads, MemoryRefusal, RunStage, TransactionRun, step_of};
use crate::core_device::CoreDevice;
use crate::resp::command_table::RespCommand;
use crate::resp::errors;
use crate::resp::limits::DATABASES;
use crate::resp::operation::RespOperation;
use crate::resp::operation_step::{DriveResult, OperationContext};
use crate::resp::state::RespState;
use crate::resp::transaction::QueuedCommand;
use crate::resp::transaction_databases::TransactionDatabases;
use crate::resp::transaction_errors::{self, exec_abort};
use crate::resp::transaction_step::{StepResult, run_operation};
use headwater_ssd::command::{NamespaceId, SsdCommand, SsdCompletion, SubmitError};

/// Bytes that the next part of a listing may take.
const LISTING_STEP_BYTES: usize = 128 << 10;

/// Returns true for a command that lists or counts keys of the device.
pub(super) fn is_listing(verb: RespCommand) -> bool {
    matches!(verb, RespCommand::Keys | RespCommand::Scan | RespCommand::RandomKey | RespCommand::DbSize)
}

/// Returns true for a command that may take many turns.
pub(super) fn is_long(verb: RespCommand) -> bool {
    is_listing(verb) || verb == RespCommand::Lcs
}

/// A command that goes on.
#[derive(Debug)]
pub(super) struct LongCommand {
    at: usize,
    operation: Box<RespOperation>,
    /// The result of its last drive, which says when it goes on.
    driven: Option<DriveResult>,
    /// Bytes of values and tables that it holds beside its reply.
    fixed: usize,
    /// Bytes that the transaction has taken for it.
    taken: usize,
}

impl LongCommand {
    pub(super) fn new(
        at: usize,
        operation: Box<RespOperation>,
        driven: DriveResult,
        databases: &TransactionDatabases,
    ) -> Self {
        let fixed = operation.bytes_at_start(|namespace, key| databases.value_bytes(namespace, key));
        Self { at, operation, driven: Some(driven), fixed, taken: 0 }
    }

    /// Returns the bytes that it holds or may hold after its next part.
    fn needed(&self) -> usize {
        self.fixed + self.operation.reply_bytes().map_or(0, |bytes| bytes + LISTING_STEP_BYTES)
    }
}

impl TransactionRun {
    /// Returns true if a command is left out of this run, which is then repeated.
    pub(super) fn leaves_out<S: CoreDevice>(&mut self, at: usize, context: &OperationContext<'_, S>) -> bool {
        let QueuedCommand { verb, namespace, .. } = self.commands[at];
        if is_listing(verb) {
            self.databases.view(namespace).want_changed();
            if self.leaves_listings_out {
                return true;
            }
        }
        match verb {
            RespCommand::DbSize => self.count_device_keys(namespace, context),
            RespCommand::FlushDb | RespCommand::FlushAll => {
                let all = (1..).take(DATABASES).map(NamespaceId);
                let is_block = |namespace: &NamespaceId| context.device.is_block_namespace(*namespace);
                self.databases.set_block_namespaces(all.filter(is_block).collect());
            }
            _ => {}
        }
        is_long(verb) && self.databases.is_incomplete()
    }

    fn count_device_keys<S: CoreDevice>(
        &mut self,
        namespace: NamespaceId,
        context: &OperationContext<'_, S>,
    ) {
        let keys = context.device.stats().keys[namespace.index()];
        let is_expiring = context.device.is_expiring(context.shared.wall);
        self.databases.count_device_keys(namespace, keys, is_expiring);
    }

    /// Goes on with a command; returns the next stage, or the result of the drive.
    pub(super) fn go_on<S: CoreDevice>(
        &mut self,
        mut command: LongCommand,
        context: &mut OperationContext<'_, S>,
    ) -> Result<RunStage, DriveResult> {
        if let Err(failure) = self.check_replies(command.operation.reply_bytes().unwrap_or(0)) {
            return Ok(RunStage::Done(exec_abort(&failure).into()));
        }
        let needed = command.needed();
        if needed > command.taken {
            match self.take_memory(needed - command.taken, context) {
                Ok(()) => command.taken = needed,
                Err(MemoryRefusal::Abort) => {
                    return Ok(RunStage::Done(exec_abort(&transaction_errors::NO_MEMORY).into()));
                }
                Err(MemoryRefusal::Wait) => {
                    self.stage = RunStage::Long(command);
                    return Err(DriveResult::NoRoom);
                }
            }
        }
        if let Some((namespace, range)) = self.databases.listing() {
            let list = SsdCommand::List { position: range.position, keys_max: range.keys_max };
            return match context.submit(0, namespace, list) {
                Ok(()) => {
                    self.stage = RunStage::Listing(command);
                    Err(DriveResult::Waiting)
                }
                Err(SubmitError::Busy(_)) => {
                    self.stage = RunStage::Long(command);
                    Err(DriveResult::Busy)
                }
                Err(SubmitError::Refused(status)) => {
                    Ok(RunStage::Done(exec_abort(&errors::from_status(status)).into()))
                }
            };
        }
        if let Some(driven) = command.driven.take() {
            // The rest is for a later turn, after what other clients have asked for.
            self.stage = RunStage::Long(command);
            return Err(driven);
        }
        let namespace = self.commands[command.at].namespace;
        self.count_device_keys(namespace, context);
        let LongCommand { at, operation, fixed, taken, .. } = command;
        match run_operation(operation, &mut step_of(&mut self.databases, namespace, context)) {
            StepResult::Done(reply) => {
                self.held -= taken;
                Ok(match self.add_reply(at, reply, context) {
                    Ok(()) => RunStage::Run { next: at + 1 },
                    Err(failure) => RunStage::Done(exec_abort(&failure).into()),
                })
            }
            StepResult::Suspended(operation, driven) => {
                Ok(RunStage::Long(LongCommand { at, operation, driven: Some(driven), fixed, taken }))
            }
        }
    }

    /// Gives a command the keys that it lists, with the changes of the transaction.
    pub(super) fn accept_listing(
        &mut self,
        mut command: LongCommand,
        mut completion: SsdCompletion,
        shared: &mut RespState,
    ) -> RunStage {
        self.databases.finish_listing(&mut completion);
        command.operation.accept(completion, shared);
        command.driven = None;
        RunStage::Long(command)
    }

    /// Returns the stage behind a batch that found a changed key.
    pub(super) fn repeat(&mut self) -> RunStage {
        let has = |is: fn(RespCommand) -> bool| self.commands.iter().any(|command| is(command.verb));
        let (lists, is_long) = (has(is_listing), has(is_long));
        self.leaves_listings_out = lists;
        let keys = self.databases.forget();
        // A long command inside the gate would keep all other clients waiting.
        if is_long { RunStage::Read(KeyReads::new(keys)) } else { RunStage::Enter(keys) }
    }
}
