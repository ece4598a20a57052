//! The command CLIENT: lists, names and kills connections.
//!
//! Input: a request and the table of connections. Output: a reply; a connection to be killed is marked, and the turn
//! closes it.

use super::client_lines::verbatim_reply;
use super::client_list::{self, info_line, is_alive};
use super::clients::ClientTable;
use super::connection::{ConnectionLife, ReplyMode, RespConnection};
use super::errors::{self, ErrorReply};
use super::parser::integer;
use super::reply::RespReply;
use super::request::RespRequest;
use super::state::RespState;
use headwater_host::clock::Nanos;

/// Returns a client's name if it has only characters that CLIENT LIST can show.
pub(crate) fn checked_name(name: &[u8]) -> Result<Vec<u8>, ErrorReply> {
    if name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        Ok(name.to_vec())
    } else {
        Err(errors::CLIENT_NAME)
    }
}

/// Executes CLIENT.
pub(crate) fn answer(
    request: &RespRequest<'_>,
    connection: &mut RespConnection,
    clients: &mut ClientTable,
    shared: &mut RespState,
) -> Result<RespReply, ErrorReply> {
    let word = request.lower(1);
    let arity = |right: bool| {
        if right {
            Ok(())
        } else {
            Err(errors::wrong_arity(&format!("client|{}", String::from_utf8_lossy(&word))))
        }
    };
    let count = request.len();
    match &word[..] {
        b"id" => arity(count == 2).map(|()| RespReply::count(connection.identity.id)),
        b"getname" => arity(count == 2).map(|()| match &connection.identity.name[..] {
            [] => RespReply::Null,
            name => RespReply::Bulk(name.to_vec()),
        }),
        b"setname" => {
            arity(count == 3)?;
            connection.identity.name = checked_name(request.arg(2))?;
            Ok(RespReply::Ok)
        }
        b"setinfo" => {
            arity(count == 4)?;
            set_info(request, connection)
        }
        b"info" => {
            arity(count == 2).map(|()| verbatim_reply(&info_line(connection, shared), connection.protocol))
        }
        b"list" => {
            let mut lines = client_list::parse(request, connection, shared)?;
            while !lines.is_whole {
                client_list::advance(&mut lines, clients, shared);
            }
            Ok(lines.take_reply(connection.protocol))
        }
        b"kill" => {
            arity(count >= 3)?;
            kill(request, connection, clients, shared)
        }
        b"no-evict" => {
            arity(count == 3)?;
            connection.no_evict = parse_on_off(request.arg(2))?;
            Ok(RespReply::Ok)
        }
        b"reply" => {
            arity(count == 3)?;
            reply_mode(request, connection)
        }
        _ => Err(errors::unknown_subcommand("CLIENT", request.arg(1))),
    }
}

fn parse_on_off(word: &[u8]) -> Result<bool, ErrorReply> {
    if word.eq_ignore_ascii_case(b"on") {
        Ok(true)
    } else if word.eq_ignore_ascii_case(b"off") {
        Ok(false)
    } else {
        Err(errors::SYNTAX)
    }
}

fn reply_mode(request: &RespRequest<'_>, connection: &mut RespConnection) -> Result<RespReply, ErrorReply> {
    connection.reply_mode = match (&request.lower(2)[..], connection.reply_mode) {
        (b"on", _) => ReplyMode::On,
        (b"off", _) | (b"skip", ReplyMode::Off) => ReplyMode::Off,
        (b"skip", _) => ReplyMode::SkipNext,
        _ => return Err(errors::SYNTAX),
    };
    Ok(RespReply::Ok)
}

fn set_info(request: &RespRequest<'_>, connection: &mut RespConnection) -> Result<RespReply, ErrorReply> {
    let value = request.arg(3);
    if !value.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        let text = " cannot contain spaces, newlines or special characters.";
        return Err(ErrorReply::quoting("ERR ", request.arg(2), text));
    }
    if request.arg_is(2, "lib-name") {
        connection.identity.library = value.to_vec();
    } else if request.arg_is(2, "lib-ver") {
        connection.identity.library_version = value.to_vec();
    } else {
        return Err(ErrorReply::quoting("ERR Unrecognized option '", request.arg(2), "'"));
    }
    Ok(RespReply::Ok)
}

/// Returns true if the client type is that of this node's clients.
///
/// # Errors
/// There is no such type.
pub(super) fn is_normal(kind: &[u8]) -> Result<bool, ErrorReply> {
    let is = |word: &str| kind.eq_ignore_ascii_case(word.as_bytes());
    if !["normal", "master", "replica", "slave", "pubsub"].into_iter().any(is) {
        return Err(ErrorReply::quoting("ERR Unknown client type '", kind, "'"));
    }
    Ok(is("normal"))
}

/// The filter of CLIENT KILL.
#[derive(Debug, Default)]
struct KillFilter {
    id: Option<u64>,
    address: Option<Vec<u8>>,
    local: Option<Vec<u8>>,
    skip_me: bool,
    other_type: bool,
    /// The least age in seconds.
    age_min: u64,
}

impl KillFilter {
    fn matches(&self, connection: &RespConnection, now: Nanos) -> bool {
        let same = |wanted: &Option<Vec<u8>>, text: &str| {
            wanted.as_ref().is_none_or(|wanted| wanted.as_slice() == text.as_bytes())
        };
        self.id.is_none_or(|id| id == connection.identity.id)
            && same(&self.address, &connection.identity.address)
            && same(&self.local, &connection.identity.local)
            && !self.other_type
            && now.since(connection.identity.created).0 / 1_000_000_000 >= self.age_min
            && is_alive(connection)
    }
}

fn kill(
    request: &RespRequest<'_>,
    connection: &mut RespConnection,
    clients: &mut ClientTable,
    shared: &mut RespState,
) -> Result<RespReply, ErrorReply> {
    let by_address = request.len() == 3;
    let filter = if by_address {
        KillFilter { address: Some(request.arg(2).to_vec()), ..KillFilter::default() }
    } else {
        filter(request)?
    };
    let mut killed = 0;
    let now = shared.now;
    for other in clients.iter_mut().filter(|other| filter.matches(other, now)) {
        other.life = ConnectionLife::Dead;
        shared.dirty.push_back(other.index);
        killed += 1;
    }
    if filter.matches(connection, now) && (by_address || !filter.skip_me) {
        connection.life = ConnectionLife::Closing;
        killed += 1;
    }
    match (by_address, killed) {
        (true, 0) => Err(ErrorReply::fixed("ERR No such client")),
        (true, _) => Ok(RespReply::Ok),
        (false, killed) => Ok(RespReply::Integer(killed)),
    }
}

fn filter(request: &RespRequest<'_>) -> Result<KillFilter, ErrorReply> {
    let mut filter = KillFilter { skip_me: true, ..KillFilter::default() };
    if request.len() % 2 == 1 {
        return Err(errors::SYNTAX);
    }
    for at in (2..request.len()).step_by(2) {
        let value = request.arg(at + 1);
        match &request.lower(at)[..] {
            b"id" => {
                let id = integer(value).and_then(|id| u64::try_from(id).ok()).filter(|&id| id > 0);
                filter.id = Some(id.ok_or(ErrorReply::fixed("ERR client-id should be greater than 0"))?);
            }
            b"addr" => filter.address = Some(value.to_vec()),
            b"laddr" => filter.local = Some(value.to_vec()),
            b"user" if value != b"default" => {
                return Err(ErrorReply::quoting("ERR No such user '", value, "'"));
            }
            b"user" => {}
            b"type" => filter.other_type |= !is_normal(value)?,
            b"maxage" => {
                let age = integer(value);
                let age = age.ok_or(ErrorReply::fixed("ERR maxage is not an integer or out of range"))?;
                let age = u64::try_from(age).ok().filter(|&age| age > 0);
                filter.age_min = age.ok_or(ErrorReply::fixed("ERR maxage should be greater than 0"))?;
            }
            b"skipme" if value.eq_ignore_ascii_case(b"yes") => filter.skip_me = true,
            b"skipme" if value.eq_ignore_ascii_case(b"no") => filter.skip_me = false,
            _ => return Err(errors::SYNTAX),
        }
    }
    Ok(filter)
}
