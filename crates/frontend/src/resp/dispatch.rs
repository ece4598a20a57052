//! Dispatch of one command of one connection: a reply, a slot in flight, or "not yet".
//!
//! Input: the next request of a connection and the turn. Output: [`RespOutcome`]. Commands on single keys run concurrently,
//! since the device keeps the order of each key; a command on several keys or a namespace waits until the connection
//! has nothing in flight and delays the commands behind it. Invariant: "not yet" has no effect except that the
//! connection is queued to be run again.

use super::client_list;
use super::command_table::{CommandHandler, RespCommand, lookup};
use super::connection::{
    AwaitedKey, ConnectionLife, ParsedCommands, PipelineSlotState, ReplyMode, RespConnection,
};
use super::edit::KeyEdit;
use super::errors::{self, ErrorReply};
use super::gather::KeyGather;
use super::help;
use super::large_writes::LargeWrites;
use super::limits::{
    APPENDS_TOGETHER_MAX, BATCH_COMMANDS_MAX, COUNTED_CHUNK_BYTES_MIN, IN_FLIGHT_MAX, QUERY_BUFFER_BYTES_MAX,
    STREAM_PART_BYTES,
};
use super::locks::{KeyAccess, LockView};
use super::operation::RespOperation;
use super::parser::{AuthState, ParserLimits};
use super::plan::{CommandPlan, PlanContext, plan};
use super::reply::RespReply;
use super::reply_form::ReplyForm;
use super::request::RespRequest;
use super::session;
use super::slow_work::{SlowReadiness, SlowState};
use super::state::RespState;
use super::transaction_commands::is_immediate;
use crate::core_device::CoreDevice;
use bytes::Bytes;
use headwater_host::clock::Nanos;
use headwater_ssd::command::{SsdCommand, SubmitError};

/// Time between two log lines about clients that send HTTP.
const HTTP_WARNING_INTERVAL: Nanos = Nanos::from_millis(60_000);

/// Returns true if a command is a line of an HTTP request that carries commands in its body.
fn is_http(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

/// The outcome of dispatching a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RespOutcome {
    /// The request is answered or in flight.
    Taken,
    /// The request must be dispatched again; the connection is run when that can succeed.
    Retry,
}

/// The device and the state that the connections share.
pub(crate) struct TurnContext<'a, S> {
    pub(crate) device: &'a mut S,
    pub(crate) shared: &'a mut RespState,
    pub(crate) clients: &'a mut super::clients::ClientTable,
}

impl<S: CoreDevice> TurnContext<'_, S> {
    /// Executes the commands in a connection's input until the input is empty or a command must wait.
    pub(crate) fn run(&mut self, connection: &mut RespConnection) {
        if let Some(slot) = connection.barrier
            && connection.awaits_room
        {
            self.drive(connection, slot);
        }
        let mut pending = std::mem::take(&mut connection.pending);
        while connection.life == ConnectionLife::Open {
            if pending.is_done() {
                pending.batch.clear();
                pending.chunk = Bytes::new();
                pending.cursor = 0;
                if !parse_more(connection, &mut pending, self.shared) {
                    break;
                }
                continue;
            }
            if connection.is_held()
                || self.is_still_locked(connection)
                || connection.share.is_used_up(self.shared.turn)
                || self.shared.gate.stops(connection.index)
            {
                break;
            }
            let request = RespRequest::new(&pending.chunk, pending.batch.command(pending.cursor));
            let mode = connection.reply_mode;
            let slot = connection.next_slot();
            let before = (slot, connection.in_flight);
            let output_before = connection.output.pending();
            let appends = following_appends(connection, &pending);
            if self.execute(connection, &request) == RespOutcome::Retry {
                let now = (connection.next_slot(), connection.in_flight);
                assert!(now == before, "a command that is to be run again has had an effect");
                break;
            }
            connection.received = None;
            if pending.chunk.len() >= COUNTED_CHUNK_BYTES_MIN {
                connection.hold(slot, request.argument_bytes());
            }
            let made = connection.output.pending().saturating_sub(output_before);
            connection.share.count(self.shared.turn, made);
            pending.cursor += 1;
            // The APPEND commands that were executed with this one.
            for _ in connection.following_appends.len()..appends {
                let request = RespRequest::new(&pending.chunk, pending.batch.command(pending.cursor));
                if pending.chunk.len() >= COUNTED_CHUNK_BYTES_MIN {
                    connection.hold(slot, request.argument_bytes());
                }
                self.shared.count_command(RespCommand::Append, Nanos::ZERO, false);
                connection.share.count(self.shared.turn, 0);
                pending.cursor += 1;
            }
            if mode == ReplyMode::SkipNext && connection.reply_mode == mode {
                connection.reply_mode = ReplyMode::On;
            }
        }
        if pending.is_done()
            && connection.life == ConnectionLife::Open
            && let Some(error) = connection.protocol_error.take()
        {
            self.shared.counters.errors += 1;
            connection.answer_uncounted(ErrorReply::formatted(format!("ERR {error}")).into(), self.shared);
            connection.life = ConnectionLife::Closing;
        }
        connection.pending = pending;
    }

    /// Closes a connection on which HTTP arrives: a web page could send commands through a browser behind a firewall.
    fn close_http(&mut self, connection: &mut RespConnection) {
        self.shared.count_rejected(None);
        let last = &mut self.shared.http_warned_at;
        if last.is_none_or(|at| self.shared.now.since(at) >= HTTP_WARNING_INTERVAL) {
            *last = Some(self.shared.now);
            tracing::warn!(
                client = %connection.identity.address,
                "a client sent an HTTP request (POST or Host:) to the RESP port and was disconnected: a web page may \
                 try to reach this node through a browser"
            );
        }
        connection.life = ConnectionLife::Closing;
    }

    fn execute(&mut self, connection: &mut RespConnection, request: &RespRequest<'_>) -> RespOutcome {
        let Some(verb) = lookup(request.arg(0)) else {
            if is_http(request.arg(0)) {
                self.close_http(connection);
                return RespOutcome::Taken;
            }
            self.shared.count_rejected(None);
            let arguments = (1..request.len()).map(|at| request.arg(at));
            let failure = errors::no_scripts(request.arg(0))
                .unwrap_or_else(|| errors::unknown_command(request.arg(0), arguments));
            let failure = self.refuse_transaction(connection, None, failure);
            connection.answer_uncounted(failure.into(), self.shared);
            return RespOutcome::Taken;
        };
        let entry = verb.entry();
        let refusal = entry.check_arity(request.len()).err().or_else(|| {
            let locked_out = !connection.authenticated
                && self.shared.settings.password.is_some()
                && !entry.allowed_before_auth();
            locked_out.then_some(errors::NOAUTH)
        });
        if let Some(failure) = refusal {
            let failure = self.refuse_transaction(connection, Some(verb), failure);
            self.shared.count_rejected(Some(verb));
            connection.answer_uncounted(failure.into(), self.shared);
            return RespOutcome::Taken;
        }
        connection.last_verb = Some(verb);
        if connection.transaction.is_open() && !is_immediate(verb) {
            self.queue_command(connection, verb, request);
            return RespOutcome::Taken;
        }
        if request.len() == 2
            && request.arg_is(1, "help")
            && let Some(reply) = help::answer(verb, connection.protocol)
        {
            connection.answer(verb, reply, self.shared);
            return RespOutcome::Taken;
        }
        let may_be_slow = matches!(verb, RespCommand::Auth | RespCommand::Hello | RespCommand::Config);
        if may_be_slow && self.prepare(connection, verb, request) == SlowReadiness::Later {
            return RespOutcome::Retry;
        }
        match entry.handler {
            CommandHandler::Plan => self.execute_plan(connection, verb, request),
            CommandHandler::AfterEarlier if !connection.slots.is_empty() => RespOutcome::Retry,
            CommandHandler::Session | CommandHandler::AfterEarlier | CommandHandler::Transaction
                if !self.admits_reply(connection, request.argument_bytes()) =>
            {
                RespOutcome::Retry
            }
            CommandHandler::Transaction => self.execute_transaction_command(connection, verb, request),
            CommandHandler::Session | CommandHandler::AfterEarlier => {
                let tables = (&*self.clients, &*self.shared);
                if let Some(listing) = client_list::of_many((verb, request), connection, tables) {
                    self.begin(connection, (verb, request.len()), Box::new(RespOperation::Clients(listing)));
                    return RespOutcome::Taken;
                }
                let reply = session::answer(verb, request, connection, self).unwrap_or_else(RespReply::Error);
                connection.slow = SlowState::Idle;
                connection.answer(verb, reply, self.shared);
                RespOutcome::Taken
            }
        }
    }

    fn execute_plan(
        &mut self,
        connection: &mut RespConnection,
        verb: RespCommand,
        request: &RespRequest<'_>,
    ) -> RespOutcome {
        let mut planned = plan(verb, request, &self.plan_context(connection));
        if let (Ok(planned), Some(received)) = (&mut planned, &connection.received) {
            planned.put_received(received);
        }
        let (namespace, own) = (connection.namespace(), connection.reply_bytes());
        let mut bytes = planned.as_ref().map_or(0, |planned| self.reply_bytes_of(own, namespace, planned));
        if bytes > STREAM_PART_BYTES
            && connection.reply_mode == ReplyMode::On
            && let Ok(planned) = &mut planned
        {
            planned.stream(namespace, &mut bytes);
        }
        if !self.admits_reply(connection, bytes) {
            return RespOutcome::Retry;
        }
        connection.admitted_reply = bytes;
        let outcome = self.start(connection, (verb, request), planned);
        connection.admitted_reply = 0;
        outcome
    }

    fn start(
        &mut self,
        connection: &mut RespConnection,
        (verb, request): (RespCommand, &RespRequest<'_>),
        planned: Result<CommandPlan, ErrorReply>,
    ) -> RespOutcome {
        match planned {
            Ok(CommandPlan::Single { access, key_at, command, wait }) => {
                if self.is_locked(connection, (request, key_at), access) {
                    return RespOutcome::Retry;
                }
                let outcome = self.submit_one(connection, (verb, request.len()), command, wait);
                if outcome == RespOutcome::Taken {
                    self.pass_on_key(connection);
                }
                outcome
            }
            Ok(CommandPlan::Stream { key_at, stream }) => {
                if self.is_locked(connection, (request, key_at), KeyAccess::Read) {
                    return RespOutcome::Retry;
                }
                self.begin(connection, (verb, request.len()), Box::new(RespOperation::Stream(stream)));
                self.pass_on_key(connection);
                RespOutcome::Taken
            }
            Ok(CommandPlan::Edit(key, mut change)) => {
                let namespace = connection.namespace();
                if !self.shared.locks.acquire(namespace, &key, connection.index) {
                    self.shared.locks.add_waiter(namespace, &key, connection.index);
                    connection.awaited_key = Some(AwaitedKey { namespace, key, access: KeyAccess::Write });
                    return RespOutcome::Retry;
                }
                connection.awaited_key = None;
                connection.locks_held += 1;
                change.add_appends(&mut connection.following_appends);
                let edit = KeyEdit::new(namespace, key, change);
                self.begin(connection, (verb, request.len()), Box::new(RespOperation::Edit(edit)));
                RespOutcome::Taken
            }
            Ok(CommandPlan::Gather(gather)) => self.begin_gather(connection, (verb, request.len()), gather),
            Ok(CommandPlan::Exclusive(_)) if !connection.slots.is_empty() => RespOutcome::Retry,
            Ok(CommandPlan::Exclusive(operation)) => {
                self.begin(connection, (verb, request.len()), operation);
                RespOutcome::Taken
            }
            Ok(CommandPlan::Answer(reply)) => {
                connection.answer(verb, reply, self.shared);
                RespOutcome::Taken
            }
            Err(failure) => {
                connection.answer(verb, failure.into(), self.shared);
                RespOutcome::Taken
            }
        }
    }

    /// Passes a key on that was promised to a connection, which needed it only to submit.
    #[inline]
    fn pass_on_key(&mut self, connection: &mut RespConnection) {
        if let Some(waits) = connection.awaited_key.take() {
            self.shared.stop_waiting(waits.namespace, &waits.key, connection.index);
        }
    }

    #[inline]
    fn plan_context(&mut self, connection: &RespConnection) -> PlanContext {
        PlanContext {
            namespace: connection.namespace(),
            now: self.shared.now,
            wall: self.shared.wall,
            random: self.shared.random.u64(..),
        }
    }

    /// Returns true if the next command's key is still locked. This check costs less than planning the command again.
    #[inline]
    fn is_still_locked(&self, connection: &RespConnection) -> bool {
        connection.awaited_key.as_ref().is_some_and(|waits| {
            let found = self.shared.locks.view(waits.namespace, &waits.key, connection.index);
            must_wait(found, waits.access)
        })
    }

    /// Returns true if a read-modify-write has read the key and not yet written it, and this command must not overtake
    /// it or run between its read and its write. Queues the connection as a waiter then.
    #[inline]
    fn is_locked(
        &mut self,
        connection: &mut RespConnection,
        (request, key_at): (&RespRequest<'_>, usize),
        access: KeyAccess,
    ) -> bool {
        if self.shared.locks.is_empty() {
            return false;
        }
        let namespace = connection.namespace();
        let key = request.arg(key_at);
        let must_wait = must_wait(self.shared.locks.view(namespace, key, connection.index), access);
        if must_wait {
            self.shared.locks.add_waiter(namespace, key, connection.index);
            connection.awaited_key = Some(AwaitedKey { namespace, key: request.bytes(key_at), access });
        }
        must_wait
    }

    #[inline]
    fn submit_one(
        &mut self,
        connection: &mut RespConnection,
        call: (RespCommand, usize),
        mut command: SsdCommand,
        wait: ReplyForm,
    ) -> RespOutcome {
        if let SsdCommand::Retrieve { sink, .. } = &mut command {
            *sink = self.shared.value_buffers.take().into();
        }
        let token = connection.token(connection.next_slot());
        let long = LargeWrites::of(connection.namespace(), &command);
        let submitted = if self.shared.in_flight < IN_FLIGHT_MAX {
            self.device.submit(self.shared.front_end, connection.namespace(), token, command)
        } else {
            Err(SubmitError::Busy(IN_FLIGHT_MAX))
        };
        match submitted {
            Ok(()) => {
                self.shared.large_writes.begin(token, long);
                self.shared.in_flight += 1;
                connection.in_flight += 1;
                connection.open_slot(PipelineSlotState::Waiting(wait), call.0, call.1, self.shared.now);
                RespOutcome::Taken
            }
            Err(SubmitError::Busy(_)) => {
                self.shared.busy.push_back(connection.index);
                RespOutcome::Retry
            }
            Err(SubmitError::Refused(status)) => {
                connection.answer(call.0, errors::from_status(status).into(), self.shared);
                RespOutcome::Taken
            }
        }
    }

    /// Answers a client whose next argument is too long for the memory of clients, and returns true. The connection ends,
    /// because the bytes of the argument would follow.
    pub(crate) fn refuse_argument(&mut self, connection: &mut RespConnection) -> bool {
        let missing = connection.missing_room();
        let refused = missing > 0 && !self.shared.client_memory.admits(connection.held_bytes(), missing);
        if refused {
            self.shared.counters.errors += 1;
            connection.answer_uncounted(errors::from_status(errors::CLIENT_MEMORY).into(), self.shared);
            connection.life = ConnectionLife::Closing;
        }
        refused
    }

    fn begin_gather(
        &mut self,
        connection: &mut RespConnection,
        call: (RespCommand, usize),
        mut gather: KeyGather,
    ) -> RespOutcome {
        // The gather would overtake an edit that has not written yet.
        if connection.locks_held > 0 {
            return RespOutcome::Retry;
        }
        gather.streams_long_values = connection.reply_mode == ReplyMode::On;
        self.begin(connection, call, Box::new(RespOperation::Gather(gather)));
        RespOutcome::Taken
    }
}

/// Sets the values of the APPEND commands that follow one to the same key, and returns their number: each would read and
/// write the whole value.
fn following_appends(connection: &mut RespConnection, pending: &ParsedCommands) -> usize {
    connection.following_appends.clear();
    let command = |at| RespRequest::new(&pending.chunk, pending.batch.command(at));
    let is_append = |request: &RespRequest<'_>| request.len() == 3 && request.arg_is(0, "append");
    let first = command(pending.cursor);
    if connection.reply_mode != ReplyMode::On || !is_append(&first) {
        return 0;
    }
    for at in pending.cursor + 1..pending.batch.len() {
        let next = command(at);
        if !is_append(&next)
            || next.arg(1) != first.arg(1)
            || connection.following_appends.len() == APPENDS_TOGETHER_MAX
        {
            break;
        }
        connection.following_appends.push(next.bytes(2));
    }
    connection.following_appends.len()
}

/// Returns true if a command must wait for a key in this lock state. A read waits only for the connection's own writes.
fn must_wait(found: LockView, access: KeyAccess) -> bool {
    match found {
        LockView::Free | LockView::Promised => false,
        LockView::Own => true,
        LockView::Taken => access == KeyAccess::Write,
    }
}

/// Parses the received bytes. Returns true if there is a command to execute.
fn parse_more(connection: &mut RespConnection, pending: &mut ParsedCommands, shared: &mut RespState) -> bool {
    if connection.input.is_empty() || connection.protocol_error.is_some() || connection.is_receiving() {
        return false;
    }
    let known = connection.authenticated || shared.settings.password.is_none();
    let rules = ParserLimits {
        bulk_bytes_max: shared.settings.bulk_bytes_max,
        // Before AUTH, one command may change the limits of the next.
        commands_max: if known { BATCH_COMMANDS_MAX } else { 1 },
        auth: if known { AuthState::Authenticated } else { AuthState::Unauthenticated },
    };
    let parsed = connection.parser.parse(&mut connection.input, &rules, &mut pending.batch);
    connection.protocol_error = parsed.error;
    // An empty piece of the input would keep its buffer from being used again.
    if parsed.consumed > 0 {
        pending.chunk = connection.input.split_to(parsed.consumed).freeze();
        connection.leave_long_input(&mut shared.receive_buffers);
    }
    if connection.input.len() > QUERY_BUFFER_BYTES_MAX {
        connection.life = ConnectionLife::Dead;
    }
    !pending.batch.is_empty()
}
