//! The commands COMMAND, CONFIG, SLOWLOG, TIME and LASTSAVE.
//!
//! Input: a request. Output: a reply made from the command table, the settings and the slow log.

use super::command_table::{CommandEntry, RespCommand, TABLE, lookup};
use super::connection::RespConnection;
use super::errors::{self, ErrorReply};
use super::output_queue::ReplyEncoder;
use super::parser::integer;
use super::reply::{RespReply, RespVersion};
use super::request::RespRequest;
use super::settings;
use super::slow_work::SlowAnswer;
use super::state::RespState;
use headwater_host::width::to_usize;

/// The number of entries that SLOWLOG GET returns without a count.
const SLOWLOG_GET: usize = 10;

/// Executes a server command.
pub(crate) fn answer(
    verb: RespCommand,
    request: &RespRequest<'_>,
    protocol: RespVersion,
    shared: &mut RespState,
) -> Result<RespReply, ErrorReply> {
    let mut out = Vec::new();
    let mut encoder = ReplyEncoder::new(&mut out, protocol);
    match verb {
        RespCommand::Time => {
            let micros = shared.wall_estimate.micros(shared.now, shared.wall);
            encoder.array(2);
            encoder.text(&(micros / 1_000_000).to_string());
            encoder.text(&(micros % 1_000_000).to_string());
        }
        RespCommand::LastSave => encoder.count(shared.last_save.0 / 1_000),
        RespCommand::Command => command(request, &mut encoder)?,
        RespCommand::SlowLog => slowlog(request, &mut encoder, shared)?,
        other => return Err(ErrorReply::formatted(format!("ERR '{}' has no handler", other.name()))),
    }
    Ok(RespReply::Encoded(out))
}

fn arity(request: &RespRequest<'_>, right: bool) -> Result<(), ErrorReply> {
    if right {
        return Ok(());
    }
    let name = format!("{}|{}", request.text(0), request.text(1)).to_ascii_lowercase();
    Err(errors::wrong_arity(&name))
}

fn command(request: &RespRequest<'_>, out: &mut ReplyEncoder<'_>) -> Result<(), ErrorReply> {
    if request.len() == 1 {
        out.array(TABLE.len());
        TABLE.iter().for_each(|entry| write_info(entry, out));
        return Ok(());
    }
    let named = || (2..request.len()).map(|at| lookup(request.arg(at)).map(RespCommand::entry));
    match &request.lower(1)[..] {
        b"count" => {
            arity(request, request.len() == 2)?;
            out.count(TABLE.len() as u64);
        }
        b"info" if request.len() == 2 => {
            out.array(TABLE.len());
            TABLE.iter().for_each(|entry| write_info(entry, out));
        }
        b"info" => {
            out.array(request.len() - 2);
            for entry in named() {
                match entry {
                    Some(entry) => write_info(entry, out),
                    None => out.null(),
                }
            }
        }
        b"docs" => {
            let all = request.len() == 2;
            let entries: Vec<&CommandEntry> =
                if all { TABLE.iter().collect() } else { named().flatten().collect() };
            out.map(entries.len());
            entries.iter().for_each(|entry| write_docs(entry, out));
        }
        b"list" => {
            arity(request, request.len() == 2)?;
            out.array(TABLE.len());
            TABLE.iter().for_each(|entry| out.text(entry.name));
        }
        b"getkeys" => {
            arity(request, request.len() > 3)?;
            get_keys(request, out)?;
        }
        _ => return Err(errors::unknown_subcommand("COMMAND", request.arg(1))),
    }
    Ok(())
}

fn write_info(entry: &CommandEntry, out: &mut ReplyEncoder<'_>) {
    out.array(10);
    out.text(entry.name);
    out.integer(i64::from(entry.arity));
    out.set(entry.flag_words().count());
    entry.flag_words().for_each(|word| out.simple(word));
    for position in [entry.first_key, entry.last_key, entry.key_step] {
        out.integer(i64::from(position));
    }
    let categories = entry.access_categories();
    out.set(categories.len());
    categories.iter().for_each(|category| out.simple(category));
    // Tips, key specifications and subcommands: none.
    out.array(0);
    out.array(0);
    out.array(0);
}

fn write_docs(entry: &CommandEntry, out: &mut ReplyEncoder<'_>) {
    out.text(entry.name);
    out.map(3);
    for (name, value) in
        [("summary", entry.summary), ("since", entry.since), ("group", entry.category.group())]
    {
        out.text(name);
        out.text(value);
    }
}

fn get_keys(request: &RespRequest<'_>, out: &mut ReplyEncoder<'_>) -> Result<(), ErrorReply> {
    let entry = lookup(request.arg(2)).map(RespCommand::entry);
    let entry = entry.ok_or(ErrorReply::fixed("ERR Invalid command specified"))?;
    let inner = request.skip(2);
    if entry.check_arity(inner.len()).is_err() {
        return Err(ErrorReply::fixed("ERR Invalid number of arguments specified for command"));
    }
    let positions: Vec<usize> = entry.key_positions(&inner).collect();
    if positions.is_empty() {
        return Err(ErrorReply::fixed("ERR The command has no key arguments"));
    }
    out.array(positions.len());
    positions.iter().for_each(|&at| out.bulk(inner.arg(at)));
    Ok(())
}

/// Executes CONFIG. `expired` is the number of expired keys that the device has removed.
pub(crate) fn config(
    request: &RespRequest<'_>,
    connection: &mut RespConnection,
    shared: &mut RespState,
    expired: u64,
) -> Result<RespReply, ErrorReply> {
    match &request.lower(1)[..] {
        b"get" => {
            arity(request, request.len() > 2)?;
            let patterns: Vec<&[u8]> = (2..request.len()).map(|at| request.arg(at)).collect();
            let found = settings::get(&patterns, &shared.settings, &shared.slowlog);
            let mut out = Vec::new();
            let mut encoder = ReplyEncoder::new(&mut out, connection.protocol);
            encoder.map(found.len());
            for (name, value) in found {
                encoder.text(name);
                encoder.text(&value);
            }
            Ok(RespReply::Encoded(out))
        }
        b"set" => {
            arity(request, request.len() > 3)?;
            if request.len() % 2 == 1 {
                return Err(errors::wrong_arity("config|set"));
            }
            let pairs: Vec<(&[u8], &[u8])> =
                (2..request.len()).step_by(2).map(|at| (request.arg(at), request.arg(at + 1))).collect();
            if let Some(password) = settings::set(&pairs, &mut shared.settings, &mut shared.slowlog)? {
                shared.hash_password(password);
            }
            Ok(RespReply::Ok)
        }
        b"resetstat" => {
            arity(request, request.len() == 2)?;
            // The counters themselves only grow: the node's metrics contain them.
            shared.counters_at_reset = shared.counters.clone();
            shared.expired_at_reset = expired;
            Ok(RespReply::Ok)
        }
        b"rewrite" => {
            arity(request, request.len() == 2)?;
            match connection.slow.take() {
                Some(SlowAnswer::Kept(Ok(()))) => Ok(RespReply::Ok),
                Some(SlowAnswer::Kept(Err(error))) => {
                    Err(ErrorReply::formatted(format!("ERR Rewriting config file: {error}")))
                }
                Some(_) => Err(errors::NO_THREAD),
                None => Err(errors::NO_DIRECTORY),
            }
        }
        _ => Err(errors::unknown_subcommand("CONFIG", request.arg(1))),
    }
}

fn slowlog(
    request: &RespRequest<'_>,
    out: &mut ReplyEncoder<'_>,
    shared: &mut RespState,
) -> Result<(), ErrorReply> {
    match &request.lower(1)[..] {
        b"get" => {
            arity(request, request.len() <= 3)?;
            let count = match request.len() {
                3 => match integer(request.arg(2)) {
                    Some(-1) => usize::MAX,
                    Some(count @ 0..) => to_usize(count.unsigned_abs()),
                    _ => return Err(ErrorReply::fixed("ERR count should be greater than or equal to -1")),
                },
                _ => SLOWLOG_GET,
            };
            shared.slowlog.write(count, out);
        }
        b"len" => {
            arity(request, request.len() == 2)?;
            out.count(shared.slowlog.len() as u64);
        }
        b"reset" => {
            arity(request, request.len() == 2)?;
            shared.slowlog.reset();
            out.ok();
        }
        _ => return Err(errors::unknown_subcommand("SLOWLOG", request.arg(1))),
    }
    Ok(())
}
