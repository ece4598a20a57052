//! The command CLIENT LIST: a line for each client, made in parts, so that many clients keep no other command waiting.
//!
//! Input: a request and the table of connections. Output: the lines of the chosen connections. Invariant: a connection
//! that is open from the first part to the last one has one line; one that opens or closes in between may have one.

use super::client::is_normal;
use super::client_lines::ClientLines;
use super::clients::ClientTable;
use super::command_table::RespCommand;
use super::connection::{ConnectionLife, RespConnection};
use super::errors::{self, ErrorReply};
use super::limits::LISTED_CLIENTS_MAX;
use super::parser::integer;
use super::reply::RespVersion;
use super::request::RespRequest;
use super::state::RespState;
use headwater_host::clock::Nanos;
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Parses the arguments of CLIENT LIST.
pub(super) fn parse(
    request: &RespRequest<'_>,
    connection: &RespConnection,
    shared: &RespState,
) -> Result<Box<ClientLines>, ErrorReply> {
    let mut wanted: Option<BTreeSet<u64>> = None;
    if request.len() == 4 && request.arg_is(2, "type") {
        if !is_normal(request.arg(3))? {
            wanted = Some(BTreeSet::new());
        }
    } else if request.len() > 3 && request.arg_is(2, "id") {
        let ids: Option<BTreeSet<u64>> = (3..request.len())
            .map(|at| integer(request.arg(at)).and_then(|id| u64::try_from(id).ok()))
            .collect();
        wanted = Some(ids.ok_or(ErrorReply::fixed("ERR Invalid client ID"))?);
    } else if request.len() > 2 {
        return Err(errors::SYNTAX);
    }
    let mut lines =
        Box::new(ClientLines { wanted, text: String::new(), own: String::new(), next: 0, is_whole: false });
    if lines.wants(connection.identity.id) && is_alive(connection) {
        lines.own = info_line(connection, shared);
    }
    Ok(lines)
}

/// Parses a command if it is a CLIENT LIST that is made in parts, because there are many clients.
pub(super) fn of_many(
    (verb, request): (RespCommand, &RespRequest<'_>),
    connection: &RespConnection,
    (clients, shared): (&ClientTable, &RespState),
) -> Option<Box<ClientLines>> {
    let is_long =
        verb == RespCommand::Client && clients.len() > LISTED_CLIENTS_MAX && request.arg_is(1, "list");
    if is_long { parse(request, connection, shared).ok() } else { None }
}

/// Adds the lines of the next clients.
pub(super) fn advance(lines: &mut ClientLines, clients: &ClientTable, shared: &RespState) {
    let end = lines.next + LISTED_CLIENTS_MAX;
    for other in clients.part(lines.next..end).filter(|other| is_alive(other)) {
        if lines.wants(other.identity.id) {
            lines.text.push_str(&info_line(other, shared));
        }
    }
    lines.next = end;
    lines.is_whole = end >= clients.slots();
}

/// Returns the flags of a client as Redis shows them.
fn flags(connection: &RespConnection) -> &'static str {
    match (connection.transaction.is_open(), connection.no_evict) {
        (false, false) => "N",
        (false, true) => "e",
        (true, false) => "x",
        (true, true) => "xe",
    }
}

/// Returns the line of a client.
pub(super) fn info_line(connection: &RespConnection, shared: &RespState) -> String {
    let identity = &connection.identity;
    let seconds = |since: Nanos| shared.now.since(since).0 / 1_000_000_000;
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "id={} addr={} laddr={} fd=-1 name={} age={} idle={} flags={} db={} sub=0 psub=0 multi={} watch={} qbuf={} \
         obl={} cmd={} user=default resp={} lib-name={} lib-ver={}",
        identity.id,
        identity.address,
        identity.local,
        String::from_utf8_lossy(&identity.name),
        seconds(identity.created),
        seconds(connection.last_active),
        flags(connection),
        connection.database,
        connection.transaction.queued().map_or_else(|| "-1".to_owned(), |queued| queued.to_string()),
        connection.transaction.watched.keys.len(),
        connection.input.len(),
        connection.output.pending(),
        connection.last_verb.map_or("NULL", RespCommand::name),
        if connection.protocol == RespVersion::Resp3 { 3 } else { 2 },
        String::from_utf8_lossy(&identity.library),
        String::from_utf8_lossy(&identity.library_version),
    );
    text
}

/// Returns true if a connection is neither closed nor killed.
pub(super) fn is_alive(connection: &RespConnection) -> bool {
    connection.socket.is_some() && connection.life != ConnectionLife::Dead
}
