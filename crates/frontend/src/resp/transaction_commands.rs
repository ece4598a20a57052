//! The commands MULTI, EXEC, DISCARD, WATCH and UNWATCH, and the queueing of commands between MULTI and EXEC.
//!
//! Input: a request and its connection. Output: a reply, or an operation of the connection. Only commands that work on
//! single keys, and those that only read the state of the front end, can be queued.

use super::command_table::{CommandHandler, RespCommand};
use super::connection::RespConnection;
use super::dispatch::{RespOutcome, TurnContext};
use super::errors::{self, ErrorReply};
use super::operation::RespOperation;
use super::output_queue::append_reply;
use super::reply::RespReply;
use super::request::RespRequest;
use super::session;
use super::transaction::{ConnectionTransaction, TransactionQueue, WatchedKeys};
use super::transaction_errors;
use super::transaction_run::TransactionRun;
use super::watch::KeyWatch;
use crate::core_device::CoreDevice;
use bytes::Bytes;
use std::collections::BTreeMap;

/// Returns true if a command is executed at once even inside MULTI.
pub(crate) fn is_immediate(verb: RespCommand) -> bool {
    matches!(
        verb,
        RespCommand::Multi
            | RespCommand::Exec
            | RespCommand::Discard
            | RespCommand::Watch
            | RespCommand::Quit
            | RespCommand::Reset
    )
}

/// Checks that a command can be part of a transaction.
fn check_allowed(verb: RespCommand, request: &RespRequest<'_>) -> Result<(), ErrorReply> {
    let entry = verb.entry();
    let is_word = |words: &[&str]| words.iter().any(|word| request.arg_is(1, word));
    let allowed = match verb {
        RespCommand::Client => is_word(&["id", "getname", "info", "list", "help"]),
        RespCommand::Config => is_word(&["get", "help"]),
        RespCommand::SlowLog => is_word(&["get", "len", "help"]),
        _ => !entry.flags.contains("no_multi"),
    };
    if allowed { Ok(()) } else { Err(transaction_errors::not_allowed(entry)) }
}

impl<S: CoreDevice> TurnContext<'_, S> {
    /// Queues a command between MULTI and EXEC.
    pub(crate) fn queue_command(
        &mut self,
        connection: &mut RespConnection,
        verb: RespCommand,
        request: &RespRequest<'_>,
    ) {
        let checked = check_allowed(verb, request)
            .and_then(|()| connection.transaction.check_room(request))
            .and_then(|bytes| {
                let admitted = self.shared.client_memory.admits(connection.held_bytes(), bytes);
                if admitted { Ok(()) } else { Err(errors::from_status(errors::CLIENT_MEMORY)) }
            });
        let reply = match checked {
            Ok(()) => {
                connection.transaction.push(verb, request, connection.database);
                RespReply::Simple("QUEUED")
            }
            Err(failure) => {
                connection.transaction.refuse();
                self.shared.count_rejected(Some(verb));
                failure.into()
            }
        };
        connection.answer_uncounted(reply, self.shared);
    }

    /// Returns the error for a command that is refused before it is executed. It ends the transaction that it is in, if
    /// any: EXEC at once, any other command when EXEC follows.
    pub(crate) fn refuse_transaction(
        &mut self,
        connection: &mut RespConnection,
        verb: Option<RespCommand>,
        failure: ErrorReply,
    ) -> ErrorReply {
        connection.transaction.refuse();
        if verb != Some(RespCommand::Exec) {
            return failure;
        }
        connection.transaction = ConnectionTransaction::default();
        transaction_errors::exec_abort(&failure)
    }

    /// Executes a command on the transaction of a connection.
    pub(crate) fn execute_transaction_command(
        &mut self,
        connection: &mut RespConnection,
        verb: RespCommand,
        request: &RespRequest<'_>,
    ) -> RespOutcome {
        let waits = matches!(verb, RespCommand::Watch | RespCommand::Exec);
        if waits && !connection.slots.is_empty() {
            return RespOutcome::Retry;
        }
        let reply = match verb {
            RespCommand::Multi => connection.transaction.begin().map(|()| RespReply::Ok),
            RespCommand::Discard => {
                let ended = connection.transaction.take();
                ended.map(|_| RespReply::Ok).ok_or(transaction_errors::DISCARD_WITHOUT_MULTI)
            }
            RespCommand::Watch => return self.watch(connection, request),
            RespCommand::Exec => match connection.transaction.take() {
                None => Err(transaction_errors::EXEC_WITHOUT_MULTI),
                Some((queue, _)) if queue.refused => Err(transaction_errors::PREVIOUS_ERRORS),
                Some((queue, watched)) => {
                    self.begin_transaction(connection, queue, watched);
                    return RespOutcome::Taken;
                }
            },
            _ => {
                connection.transaction.watched = WatchedKeys::default();
                Ok(RespReply::Ok)
            }
        };
        connection.answer(verb, reply.unwrap_or_else(RespReply::Error), self.shared);
        RespOutcome::Taken
    }

    fn watch(&mut self, connection: &mut RespConnection, request: &RespRequest<'_>) -> RespOutcome {
        let keys: Vec<Bytes> = (1..request.len()).map(|at| Bytes::copy_from_slice(request.arg(at))).collect();
        let checked = if connection.transaction.is_open() {
            Err(transaction_errors::WATCH_INSIDE_MULTI)
        } else {
            connection.transaction.watched.check_room(&keys)
        };
        match checked {
            Ok(()) => {
                let watch = KeyWatch::new(connection.namespace(), keys);
                self.begin(
                    connection,
                    (RespCommand::Watch, request.len()),
                    Box::new(RespOperation::Watch(watch)),
                );
            }
            Err(failure) => connection.answer(RespCommand::Watch, failure.into(), self.shared),
        }
        RespOutcome::Taken
    }

    fn begin_transaction(
        &mut self,
        connection: &mut RespConnection,
        queue: TransactionQueue,
        watched: WatchedKeys,
    ) {
        let held = queue.bytes + watched.bytes;
        let mut answers = BTreeMap::new();
        for (at, command) in queue.commands.iter().enumerate() {
            let reply = match command.verb.entry().handler {
                CommandHandler::Plan => continue,
                // UNWATCH: EXEC ends the watch anyway.
                CommandHandler::Transaction => RespReply::Ok,
                // It takes effect when the transaction does.
                CommandHandler::Session if command.verb == RespCommand::Select => {
                    command.request().database(1).map_or_else(RespReply::Error, |_| RespReply::Ok)
                }
                CommandHandler::Session | CommandHandler::AfterEarlier => {
                    session::answer(command.verb, &command.request(), connection, self)
                        .unwrap_or_else(RespReply::Error)
                }
            };
            let mut out = Vec::new();
            append_reply(reply, &mut out, connection.protocol, &mut self.shared.value_buffers);
            answers.insert(at, out);
        }
        let slot = connection.next_slot();
        let run = TransactionRun::new(queue.commands, watched, answers, queue.selected);
        self.begin(connection, (RespCommand::Exec, 1), Box::new(RespOperation::Transaction(Box::new(run))));
        connection.hold(slot, held);
    }
}
