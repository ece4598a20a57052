//! The commands that need no device command: session commands such as PING and HELLO, and server commands.
//!
//! Input: a request, its connection, the turn. Output: a reply. Invariant: none of them blocks or waits.

use super::command_table::RespCommand;
use super::connection::{ConnectionLife, ReplyMode, RespConnection};
use super::dispatch::TurnContext;
use super::errors::{self, ErrorReply};
use super::info::{self, REDIS_VERSION};
use super::output_queue::ReplyEncoder;
use super::password::PasswordVerdict;
use super::reply::{RespReply, RespVersion};
use super::request::RespRequest;
use super::slow_work::SlowAnswer;
use super::state::RespState;
use super::transaction::ConnectionTransaction;
use super::{client, server};
use crate::core_device::CoreDevice;

/// Executes a session or server command.
pub(crate) fn answer<S: CoreDevice>(
    verb: RespCommand,
    request: &RespRequest<'_>,
    connection: &mut RespConnection,
    turn: &mut TurnContext<'_, S>,
) -> Result<RespReply, ErrorReply> {
    match verb {
        RespCommand::Ping => ping(request),
        RespCommand::Echo => Ok(RespReply::Bulk(request.arg(1).to_vec())),
        RespCommand::Quit => {
            connection.life = ConnectionLife::Closing;
            Ok(RespReply::Ok)
        }
        RespCommand::Select => {
            connection.database = request.database(1)?;
            Ok(RespReply::Ok)
        }
        RespCommand::Auth => auth(request, connection, turn.shared),
        RespCommand::Hello => hello(request, connection, turn.shared),
        RespCommand::Reset => Ok(reset(connection, turn.shared)),
        RespCommand::Client => client::answer(request, connection, turn.clients, turn.shared),
        RespCommand::Info => {
            let (stats, clients) = (turn.device.stats(), turn.clients.len());
            Ok(info::answer(request, connection.protocol, turn.shared, &stats, clients))
        }
        RespCommand::Wait => {
            let (replicas, timeout) = (request.integer(1)?, request.integer(2));
            match timeout {
                Ok(0..) => {}
                Ok(_) => return Err(ErrorReply::fixed("ERR timeout is negative")),
                Err(_) => return Err(ErrorReply::fixed("ERR timeout is not an integer or out of range")),
            }
            // There are no replicas to wait for, so the reply needs no timeout.
            let _ = replicas;
            Ok(RespReply::Integer(0))
        }
        RespCommand::Config => {
            let expired = turn.device.stats().expired;
            server::config(request, connection, turn.shared, expired)
        }
        other => server::answer(other, request, connection.protocol, turn.shared),
    }
}

fn ping(request: &RespRequest<'_>) -> Result<RespReply, ErrorReply> {
    match request.len() {
        1 => Ok(RespReply::Simple("PONG")),
        2 => Ok(RespReply::Bulk(request.arg(1).to_vec())),
        _ => Err(errors::wrong_arity("ping")),
    }
}

/// Checks the password of a client. A slow check was made before ([`TurnContext::prepare`]).
///
/// # Errors
/// It is wrong, or the address sent too many wrong ones.
fn check_password(
    user: &[u8],
    password: &[u8],
    connection: &mut RespConnection,
    shared: &mut RespState,
) -> Result<(), ErrorReply> {
    let Some(expected) = &shared.settings.password else {
        return if user == b"default" { Ok(()) } else { Err(errors::WRONGPASS) };
    };
    match connection.slow.take() {
        Some(SlowAnswer::Password(true)) => return Ok(()),
        // It was counted when the check ended.
        Some(SlowAnswer::Password(false)) => return Err(errors::WRONGPASS),
        Some(SlowAnswer::NoThread) => return Err(errors::NO_THREAD),
        Some(SlowAnswer::Kept(_)) | None => {}
    }
    let address = &connection.identity.address;
    if !shared.wrong_passwords.may_try(address, shared.now) {
        return Err(errors::TOO_MANY_PASSWORDS);
    }
    if user == b"default" && expected.verdict(password, &shared.settings.secrets) == PasswordVerdict::Right {
        return Ok(());
    }
    shared.wrong_passwords.count(address, shared.now);
    Err(errors::WRONGPASS)
}

fn auth(
    request: &RespRequest<'_>,
    connection: &mut RespConnection,
    shared: &mut RespState,
) -> Result<RespReply, ErrorReply> {
    match request.len() {
        2 if shared.settings.password.is_none() => return Err(errors::NO_PASSWORD),
        2 => check_password(b"default", request.arg(1), connection, shared)?,
        3 => check_password(request.arg(1), request.arg(2), connection, shared)?,
        _ => return Err(errors::SYNTAX),
    }
    connection.authenticated = true;
    Ok(RespReply::Ok)
}

fn hello(
    request: &RespRequest<'_>,
    connection: &mut RespConnection,
    shared: &mut RespState,
) -> Result<RespReply, ErrorReply> {
    let mut protocol = connection.protocol;
    if request.len() > 1 {
        protocol = match request.integer(1).map_err(|_| errors::PROTO_NOT_INTEGER)? {
            2 => RespVersion::Resp2,
            3 => RespVersion::Resp3,
            _ => return Err(errors::NOPROTO),
        };
    }
    let mut name = None;
    let mut proved = connection.authenticated || shared.settings.password.is_none();
    let mut at = 2;
    while at < request.len() {
        let more = request.len() - at - 1;
        if request.arg_is(at, "auth") && more >= 2 {
            check_password(request.arg(at + 1), request.arg(at + 2), connection, shared)?;
            proved = true;
            at += 3;
        } else if request.arg_is(at, "setname") && more >= 1 {
            name = Some(client::checked_name(request.arg(at + 1))?);
            at += 2;
        } else {
            return Err(ErrorReply::quoting("ERR Syntax error in HELLO option '", request.arg(at), "'"));
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

fn greeting(connection: &RespConnection) -> RespReply {
    let mut out = Vec::new();
    let mut encoder = ReplyEncoder::new(&mut out, connection.protocol);
    encoder.map(7);
    for (name, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
        encoder.text(name);
        encoder.text(value);
    }
    encoder.text("proto");
    encoder.integer(if connection.protocol == RespVersion::Resp3 { 3 } else { 2 });
    encoder.text("id");
    encoder.count(connection.identity.id);
    for (name, value) in [("mode", "standalone"), ("role", "master")] {
        encoder.text(name);
        encoder.text(value);
    }
    encoder.text("modules");
    encoder.array(0);
    RespReply::Encoded(out)
}

fn reset(connection: &mut RespConnection, shared: &RespState) -> RespReply {
    connection.database = 0;
    connection.protocol = RespVersion::Resp2;
    connection.authenticated = shared.settings.password.is_none();
    connection.reply_mode = ReplyMode::On;
    connection.no_evict = false;
    connection.identity.name.clear();
    connection.transaction = ConnectionTransaction::default();
    RespReply::Simple("RESET")
}
