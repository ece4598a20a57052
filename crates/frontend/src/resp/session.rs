//! Commands about the session and the node that need no device command: PING to HELLO, and who answers the others.
//!
//! In: a request, its connection, the turn. Out: a reply. Nothing here waits.

use super::command_table::Verb;
use super::connection::{Connection, Life, ReplyMode};
use super::dispatch::Turn;
use super::errors::{self, Failure};
use super::reply::{Encoder, Protocol, Reply};
use super::request::Request;
use super::shared::Shared;
use super::{client, info, server};
use crate::core_device::CoreDevice;

/// The Redis version whose behaviour and texts are kept to.
pub(crate) const REDIS_VERSION: &str = "7.0.15";

/// Answers a command of the session or the node.
pub(crate) fn answer<S: CoreDevice>(
    verb: Verb,
    request: &Request<'_>,
    connection: &mut Connection,
    turn: &mut Turn<'_, S>,
) -> Result<Reply, Failure> {
    match verb {
        Verb::Ping => ping(request),
        Verb::Echo => Ok(Reply::Bulk(request.arg(1).to_vec())),
        Verb::Quit => {
            connection.life = Life::Closing;
            Ok(Reply::Ok)
        }
        Verb::Select => {
            connection.database = request.database(1)?;
            Ok(Reply::Ok)
        }
        Verb::Auth => auth(request, connection, turn.shared),
        Verb::Hello => hello(request, connection, turn.shared),
        Verb::Reset => Ok(reset(connection, turn.shared)),
        Verb::Client => client::answer(request, connection, turn.clients, turn.shared),
        Verb::Info => Ok(info::answer(request, connection.protocol, turn)),
        Verb::DbSize => {
            let keys = turn.store.stats().keys[connection.namespace().index()];
            Ok(Reply::Integer(i64::try_from(keys).unwrap_or(i64::MAX)))
        }
        Verb::Wait => {
            let (replicas, timeout) = (request.integer(1)?, request.integer(2));
            match timeout {
                Ok(0..) => {}
                Ok(_) => return Err(Failure::fixed("ERR timeout is negative")),
                Err(_) => return Err(Failure::fixed("ERR timeout is not an integer or out of range")),
            }
            // There are no replicas to wait for, so the answer is known before any timeout.
            let _ = replicas;
            Ok(Reply::Integer(0))
        }
        other => server::answer(other, request, connection.protocol, turn.shared),
    }
}

/// Whether two passwords are the same, in a time that does not tell where they differ.
fn same(left: &[u8], right: &[u8]) -> bool {
    left.len() == right.len() && left.iter().zip(right).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

fn ping(request: &Request<'_>) -> Result<Reply, Failure> {
    match request.len() {
        1 => Ok(Reply::Simple("PONG")),
        2 => Ok(Reply::Bulk(request.arg(1).to_vec())),
        _ => Err(errors::wrong_arity("ping")),
    }
}

fn check_password(user: &[u8], password: &[u8], shared: &Shared) -> Result<(), Failure> {
    let right = user == b"default"
        && shared.settings.password.as_ref().is_none_or(|expected| same(expected, password));
    if right { Ok(()) } else { Err(errors::WRONGPASS) }
}

fn auth(request: &Request<'_>, connection: &mut Connection, shared: &Shared) -> Result<Reply, Failure> {
    match request.len() {
        2 if shared.settings.password.is_none() => return Err(errors::NO_PASSWORD),
        2 => check_password(b"default", request.arg(1), shared)?,
        3 => check_password(request.arg(1), request.arg(2), shared)?,
        _ => return Err(errors::SYNTAX),
    }
    connection.authenticated = true;
    Ok(Reply::Ok)
}

fn hello(request: &Request<'_>, connection: &mut Connection, shared: &Shared) -> Result<Reply, Failure> {
    let mut protocol = connection.protocol;
    if request.len() > 1 {
        protocol = match request.integer(1).map_err(|_| errors::PROTO_NOT_INTEGER)? {
            2 => Protocol::Resp2,
            3 => Protocol::Resp3,
            _ => return Err(errors::NOPROTO),
        };
    }
    let mut name = None;
    let mut proved = connection.authenticated || shared.settings.password.is_none();
    let mut at = 2;
    while at < request.len() {
        let more = request.len() - at - 1;
        if request.is(at, "auth") && more >= 2 {
            check_password(request.arg(at + 1), request.arg(at + 2), shared)?;
            proved = true;
            at += 3;
        } else if request.is(at, "setname") && more >= 1 {
            name = Some(client::checked_name(request.arg(at + 1))?);
            at += 2;
        } else {
            let text = format!("ERR Syntax error in HELLO option '{}'", request.text(at));
            return Err(Failure::told(text));
        }
    }
    if !proved {
        return Err(errors::HELLO_NOAUTH);
    }
    connection.authenticated = true;
    connection.protocol = protocol;
    if let Some(name) = name {
        connection.identity.name = name;
    }
    Ok(greeting(connection))
}

fn greeting(connection: &Connection) -> Reply {
    let mut out = Vec::new();
    let mut encoder = Encoder::new(&mut out, connection.protocol);
    encoder.map(7);
    for (name, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
        encoder.text(name);
        encoder.text(value);
    }
    encoder.text("proto");
    encoder.integer(if connection.protocol == Protocol::Resp3 { 3 } else { 2 });
    encoder.text("id");
    encoder.count(connection.identity.id);
    for (name, value) in [("mode", "standalone"), ("role", "master")] {
        encoder.text(name);
        encoder.text(value);
    }
    encoder.text("modules");
    encoder.array(0);
    Reply::Encoded(out)
}

fn reset(connection: &mut Connection, shared: &Shared) -> Reply {
    connection.database = 0;
    connection.protocol = Protocol::Resp2;
    connection.authenticated = shared.settings.password.is_none();
    connection.reply_mode = ReplyMode::On;
    connection.no_evict = false;
    connection.identity.name.clear();
    Reply::Simple("RESET")
}
