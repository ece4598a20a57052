//! One command of a transaction, run on its view.
//!
//! Input: a queued command and the view. Output: the reply, with the command's writes in the view. The command is planned
//! and driven as outside of a transaction; the device that it meets is the view, which completes every command at once.

use super::edit::KeyEdit;
use super::errors;
use super::gather::{KeyGather, KeyQuery};
use super::help;
use super::limits::TRANSACTION_REPLY_BYTES_MAX;
use super::operation::RespOperation;
use super::operation_step::{DriveResult, OperationContext};
use super::output_queue::ReplyEncoder;
use super::plan::{CommandPlan, PlanContext, plan};
use super::reply::{RespReply, RespVersion};
use super::reply_form::ReplyForm;
use super::state::{OperationRef, RespState};
use super::transaction::{QueuedCommand, WatchedKeys};
use super::transaction_databases::TransactionDatabases;
use crate::core_device::CoreDevice;
use headwater_ssd::command::{NamespaceId, ReadRelease, SsdCommand, WriteCondition};

/// The token of commands to the view, which no command to the device has: there are fewer connections.
const VIEW_TOKEN: u64 = u64::MAX << 48;

/// The state that a command of a transaction uses.
pub(crate) struct StepContext<'a> {
    pub(crate) databases: &'a mut TransactionDatabases,
    pub(crate) shared: &'a mut RespState,
    pub(crate) protocol: RespVersion,
    pub(crate) namespace: NamespaceId,
    pub(crate) operation: OperationRef,
}

/// The result of one step of a command.
#[derive(Debug)]
pub(crate) enum StepResult {
    /// The command is done; its reply is final if the view is complete.
    Done(RespReply),
    /// The operation goes on when the view has got the keys that it lists, or at the time that the result of its drive says.
    Suspended(Box<RespOperation>, DriveResult),
}

/// Runs a command, or its first step.
pub(crate) fn run_command(command: &QueuedCommand, step: &mut StepContext<'_>) -> StepResult {
    let request = command.request();
    if request.len() == 2
        && request.arg_is(1, "help")
        && let Some(reply) = help::answer(command.verb, step.protocol)
    {
        return StepResult::Done(reply);
    }
    let place = PlanContext {
        namespace: step.namespace,
        now: step.shared.now,
        wall: step.shared.wall,
        random: step.shared.random.u64(..),
    };
    let operation = match plan(command.verb, &request, &place) {
        Err(failure) => return StepResult::Done(failure.into()),
        Ok(CommandPlan::Answer(reply)) => return StepResult::Done(reply),
        Ok(CommandPlan::Single { command, wait, .. }) => {
            return StepResult::Done(run_single(command, wait, step));
        }
        Ok(CommandPlan::Edit(key, change)) => {
            RespOperation::Edit(KeyEdit::unlocked(step.namespace, key, change))
        }
        Ok(CommandPlan::Gather(gather)) => return StepResult::Done(run_gather(gather, step)),
        Ok(CommandPlan::Exclusive(operation)) => return run_operation(operation, step),
        Ok(CommandPlan::Stream { .. }) => unreachable!("a plan becomes a stream only outside a transaction"),
    };
    run_operation(Box::new(operation), step)
}

fn run_single(command: SsdCommand, wait: ReplyForm, step: &mut StepContext<'_>) -> RespReply {
    match step.databases.execute(step.namespace, command) {
        Ok(completion) if completion.status.is_success() && matches!(wait, ReplyForm::Value) => {
            step.shared.counters.hits += 1;
            RespReply::Bulk(completion.sink)
        }
        Ok(completion) => {
            step.shared.counters.misses += u64::from(matches!(wait, ReplyForm::Value));
            wait.reply(completion, step.shared.wall, &mut step.shared.value_buffers)
        }
        Err(status) => errors::from_status(status).into(),
    }
}

/// Runs the same command for many keys. Its replies are not sent in parts, as outside of a transaction.
fn run_gather(gather: KeyGather, step: &mut StepContext<'_>) -> RespReply {
    let (query, keys) = gather.into_parts();
    let (mut found, mut bytes) = (0, 0);
    let mut values = Vec::with_capacity(keys.len() + 1);
    for key in keys {
        if bytes > TRANSACTION_REPLY_BYTES_MAX {
            // The transaction ends with an error when it takes these values.
            break;
        }
        let release = ReadRelease::WhenDurable;
        let command = match query {
            KeyQuery::Value => SsdCommand::retrieve_whole(key, Vec::new().into(), release),
            KeyQuery::Exists => SsdCommand::Exist { key, release },
            KeyQuery::Delete => SsdCommand::Delete { key, condition: WriteCondition::Always },
        };
        match step.databases.execute(step.namespace, command) {
            Ok(completion) if completion.status.is_success() => {
                found += 1;
                bytes += completion.sink.len();
                values.push(RespReply::Bulk(completion.sink));
            }
            Ok(_) => values.push(RespReply::Null),
            Err(status) => return errors::from_status(status).into(),
        }
    }
    if query != KeyQuery::Value {
        return RespReply::Integer(found);
    }
    step.shared.counters.hits += found.unsigned_abs();
    step.shared.counters.misses += values.len() as u64 - found.unsigned_abs();
    let mut header = Vec::new();
    ReplyEncoder::new(&mut header, step.protocol).array(values.len());
    values.insert(0, RespReply::Encoded(header));
    RespReply::Parts(values)
}

/// Drives an operation to its end, or until it must wait. The view completes each command before the next drive, so that
/// no drive is in vain.
pub(crate) fn run_operation(mut operation: Box<RespOperation>, step: &mut StepContext<'_>) -> StepResult {
    let (mut in_flight, mut locks, mut watched) = (0, 0, WatchedKeys::default());
    // The commands of the view are none of the device's.
    let device_in_flight = std::mem::take(&mut step.shared.in_flight);
    let result = loop {
        let mut context = OperationContext {
            device: &mut *step.databases,
            shared: &mut *step.shared,
            in_flight: &mut in_flight,
            locks: &mut locks,
            watched: &mut watched,
            token: VIEW_TOKEN,
            protocol: step.protocol,
            replies: None,
            own_replies: 0,
            unsent: 0,
            operation: step.operation,
        };
        let driven = match operation.drive(&mut context) {
            DriveResult::Done(reply) => break StepResult::Done(reply),
            other => other,
        };
        let front_end = step.shared.front_end;
        let mut any = false;
        while let Some(completion) = step.databases.next_completion(front_end) {
            any = true;
            step.shared.large_writes.end(completion.token);
            operation.accept(completion, step.shared);
        }
        if !any {
            let goes_on = matches!(driven, DriveResult::Again | DriveResult::Until(_));
            assert!(
                goes_on || step.databases.listing().is_some(),
                "an operation of a transaction waits, and nothing is in flight"
            );
            break StepResult::Suspended(operation, driven);
        }
    };
    step.shared.in_flight = device_in_flight;
    result
}
