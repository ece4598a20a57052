//! One command of one connection: from its arguments to a reply, a slot, or "not yet".
//!
//! In: the next request of a connection and the turn. Out: [`Outcome`]. Commands on single keys flow beside each other, since
//! the device keeps the order of each key; what touches several keys or a namespace waits until the connection has nothing in
//! flight and holds back what follows. Invariant: "not yet" changes nothing and leaves a mark by which the connection is
//! looked at again.

use super::command_table::{Handler, Verb, lookup};
use super::connection::{Connection, Life, Pending, ReplyMode, State, WaitsFor};
use super::edit::Edit;
use super::errors::{self, Failure};
use super::gather::Gather;
use super::help;
use super::limits::{BATCH_COMMANDS_MAX, IN_FLIGHT_MAX, QUERY_BUFFER_BYTES_MAX};
use super::locks::Found;
use super::operation::{Drive, Lane, Operation, again};
use super::parser::{Rules, Standing};
use super::plan::{Access, Place, Plan, plan};
use super::reply::Reply;
use super::request::Request;
use super::session;
use super::shared::Shared;
use super::wait::Wait;
use crate::core_device::CoreDevice;
use bytes::Bytes;
use headwater_ssd::command::{Command, SubmitError};

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is answered or under way.
    Taken,
    /// It must be tried again; the connection will be looked at when that can help.
    NotYet,
}

/// The device and everything the face's connections share.
pub(crate) struct Turn<'a, S> {
    pub(crate) store: &'a mut S,
    pub(crate) shared: &'a mut Shared,
    pub(crate) clients: &'a mut super::clients::Clients,
}

impl<S: CoreDevice> Turn<'_, S> {
    /// Carries out what a connection has in its input as far as it goes now.
    pub(crate) fn run(&mut self, connection: &mut Connection) {
        let mut pending = std::mem::take(&mut connection.pending);
        while connection.life == Life::Open {
            if pending.is_done() {
                pending.batch.clear();
                pending.chunk = Bytes::new();
                pending.cursor = 0;
                if !parse_more(connection, &mut pending, self.shared) {
                    break;
                }
                continue;
            }
            if connection.is_held() || self.still_waits(connection) {
                break;
            }
            let request = Request::new(&pending.chunk, pending.batch.command(pending.cursor));
            let mode = connection.reply_mode;
            if self.execute(connection, &request) == Outcome::NotYet {
                break;
            }
            pending.cursor += 1;
            if mode == ReplyMode::SkipNext && connection.reply_mode == mode {
                connection.reply_mode = ReplyMode::On;
            }
        }
        if pending.is_done()
            && connection.life == Life::Open
            && let Some(error) = connection.protocol_error.take()
        {
            self.shared.counters.errors += 1;
            connection.answer_unaccounted(Failure::told(format!("ERR {error}")).into(), self.shared);
            connection.life = Life::Closing;
        }
        connection.pending = pending;
    }

    fn execute(&mut self, connection: &mut Connection, request: &Request<'_>) -> Outcome {
        let Some(verb) = lookup(request.arg(0)) else {
            self.shared.reject(None);
            connection.answer_unaccounted(errors::unknown_command(request).into(), self.shared);
            return Outcome::Taken;
        };
        let entry = verb.entry();
        let refusal = entry.check_arity(request.len()).err().or_else(|| {
            let locked_out =
                !connection.authenticated && self.shared.settings.password.is_some() && !entry.open_to_all();
            locked_out.then_some(errors::NOAUTH)
        });
        if let Some(failure) = refusal {
            self.shared.reject(Some(verb));
            connection.answer_unaccounted(failure.into(), self.shared);
            return Outcome::Taken;
        }
        connection.last_verb = Some(verb);
        if request.len() == 2
            && request.is(1, "help")
            && let Some(reply) = help::answer(verb, connection.protocol)
        {
            connection.answer(verb, reply, self.shared);
            return Outcome::Taken;
        }
        match entry.handler {
            Handler::Plan => self.carry_out(connection, verb, request),
            Handler::Settled if !connection.slots.is_empty() => Outcome::NotYet,
            Handler::Session | Handler::Settled => {
                let reply = session::answer(verb, request, connection, self).unwrap_or_else(Reply::Error);
                connection.answer(verb, reply, self.shared);
                Outcome::Taken
            }
        }
    }

    fn carry_out(&mut self, connection: &mut Connection, verb: Verb, request: &Request<'_>) -> Outcome {
        match plan(verb, request, &self.place(connection)) {
            Ok(Plan::One { access, key_at, command, wait }) => {
                if self.is_locked(connection, (request, key_at), access) {
                    return Outcome::NotYet;
                }
                let outcome = self.submit_one(connection, (verb, request.len()), command, wait);
                if outcome == Outcome::Taken
                    && let Some(waits) = connection.waits_for.take()
                {
                    // Its turn had come and it needed the key only for this moment.
                    self.shared.abandon(waits.namespace, &waits.key, connection.index);
                }
                outcome
            }
            Ok(Plan::Edit(key, change)) => {
                let namespace = connection.namespace();
                if !self.shared.locks.acquire(namespace, &key, connection.index) {
                    self.shared.locks.wait(namespace, &key, connection.index);
                    connection.waits_for = Some(WaitsFor { namespace, key, access: Access::Write });
                    return Outcome::NotYet;
                }
                connection.waits_for = None;
                connection.locks += 1;
                let edit = Edit::new(namespace, key, change);
                self.begin(connection, (verb, request.len()), Operation::Edit(edit));
                Outcome::Taken
            }
            Ok(Plan::Gather(gather)) => self.begin_gather(connection, (verb, request.len()), gather),
            Ok(Plan::Alone(_)) if !connection.slots.is_empty() => Outcome::NotYet,
            Ok(Plan::Alone(operation)) => {
                self.begin(connection, (verb, request.len()), operation);
                Outcome::Taken
            }
            Ok(Plan::Answer(reply)) => {
                connection.answer(verb, reply, self.shared);
                Outcome::Taken
            }
            Err(failure) => {
                connection.answer(verb, failure.into(), self.shared);
                Outcome::Taken
            }
        }
    }

    #[inline]
    fn place(&mut self, connection: &Connection) -> Place {
        Place {
            namespace: connection.namespace(),
            now: self.shared.now,
            wall: self.shared.wall,
            random: self.shared.random.u64(..),
        }
    }

    /// Whether the key that the next command needs is still not to be had: a look that costs less than planning it again.
    #[inline]
    fn still_waits(&self, connection: &Connection) -> bool {
        connection.waits_for.as_ref().is_some_and(|waits| {
            let found = self.shared.locks.look(waits.namespace, &waits.key, connection.index);
            must_wait(found, waits.access)
        })
    }

    /// Whether a key is between the reading and the writing of a read-modify-write that this command must not overtake or slip
    /// into.
    #[inline]
    fn is_locked(
        &mut self,
        connection: &mut Connection,
        (request, key_at): (&Request<'_>, usize),
        access: Access,
    ) -> bool {
        if self.shared.locks.is_empty() {
            return false;
        }
        let namespace = connection.namespace();
        let key = request.arg(key_at);
        let must_wait = must_wait(self.shared.locks.look(namespace, key, connection.index), access);
        if must_wait {
            self.shared.locks.wait(namespace, key, connection.index);
            connection.waits_for = Some(WaitsFor { namespace, key: request.bytes(key_at), access });
        }
        must_wait
    }

    #[inline]
    fn submit_one(
        &mut self,
        connection: &mut Connection,
        told: (Verb, usize),
        mut command: Command,
        wait: Wait,
    ) -> Outcome {
        if let Command::Retrieve { sink, .. } = &mut command {
            *sink = self.shared.sinks.take().into();
        }
        let token = connection.token(connection.next_slot());
        let submitted = if self.shared.in_flight < IN_FLIGHT_MAX {
            self.store.submit(self.shared.face, connection.namespace(), token, command)
        } else {
            Err(SubmitError::Busy(IN_FLIGHT_MAX))
        };
        match submitted {
            Ok(()) => {
                self.shared.in_flight += 1;
                connection.in_flight += 1;
                connection.open_slot(State::Waiting(wait), told.0, told.1, self.shared.now);
                Outcome::Taken
            }
            Err(SubmitError::Busy(_)) => {
                self.shared.busy.push_back(connection.index);
                Outcome::NotYet
            }
            Err(SubmitError::Refused(status)) => {
                connection.answer(told.0, errors::from_status(status).into(), self.shared);
                Outcome::Taken
            }
        }
    }

    fn begin_gather(&mut self, connection: &mut Connection, told: (Verb, usize), gather: Gather) -> Outcome {
        // An edit that has not written yet would be overtaken.
        if connection.locks > 0 {
            return Outcome::NotYet;
        }
        self.begin(connection, told, Operation::Gather(gather));
        Outcome::Taken
    }

    fn begin(&mut self, connection: &mut Connection, told: (Verb, usize), operation: Operation) {
        let slot = connection.next_slot();
        let state = State::Working(Box::new(operation));
        connection.open_slot(state, told.0, told.1, self.shared.now);
        self.drive(connection, slot);
    }

    /// Lets an operation submit what is due, and settles it when it is done.
    pub(crate) fn drive(&mut self, connection: &mut Connection, slot: u64) {
        let Some(place) = slot.checked_sub(connection.base).and_then(|place| usize::try_from(place).ok())
        else {
            return;
        };
        let token = connection.token(slot);
        let Some(State::Working(operation)) = connection.slots.get_mut(place).map(|slot| &mut slot.state)
        else {
            return;
        };
        let mut lane = Lane {
            store: &mut *self.store,
            shared: &mut *self.shared,
            in_flight: &mut connection.in_flight,
            locks: &mut connection.locks,
            token,
            protocol: connection.protocol,
        };
        let driven = operation.drive(&mut lane);
        let holds = operation.holds_connection() && !matches!(driven, Drive::Done(_));
        if holds {
            connection.barrier = Some(slot);
        } else if connection.barrier == Some(slot) {
            connection.barrier = None;
        }
        let again = again(connection.index, connection.identity.id, slot);
        match driven {
            Drive::Waiting => {}
            Drive::Busy => self.shared.busy_operations.push_back(again),
            Drive::Until(time) => self.shared.sleepers.push((time, again)),
            Drive::Done(reply) => connection.settle(place, reply, self.shared),
        }
    }
}

/// Whether a command has to wait for a key it found so. A read only has to come behind the connection's own writes.
fn must_wait(found: Found, access: Access) -> bool {
    match found {
        Found::Free | Found::Promised => false,
        Found::Own => true,
        Found::Taken => access == Access::Write,
    }
}

/// Parses what has arrived. Whether there is a command now.
fn parse_more(connection: &mut Connection, pending: &mut Pending, shared: &mut Shared) -> bool {
    if connection.input.is_empty() || connection.protocol_error.is_some() {
        return false;
    }
    let known = connection.authenticated || shared.settings.password.is_none();
    let rules = Rules {
        bulk_bytes_max: shared.settings.bulk_bytes_max,
        // Before AUTH the next command may change what the one behind it may be.
        commands_max: if known { BATCH_COMMANDS_MAX } else { 1 },
        standing: if known { Standing::Authenticated } else { Standing::Unknown },
    };
    let parsed = connection.parser.parse(&mut connection.input, &rules, &mut pending.batch);
    connection.protocol_error = parsed.error;
    pending.chunk = connection.input.split_to(parsed.consumed).freeze();
    if connection.input.len() > QUERY_BUFFER_BYTES_MAX {
        connection.life = Life::Dead;
    }
    !pending.batch.is_empty()
}
