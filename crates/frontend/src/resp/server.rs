//! COMMAND, CONFIG, SLOWLOG, TIME and LASTSAVE.
//!
//! In: a request. Out: a reply made from the command table, the settings and the slow log.

use super::command_table::{Entry, TABLE, Verb, lookup};
use super::errors::{self, Failure};
use super::parser::integer;
use super::reply::{Encoder, Protocol, Reply};
use super::request::Request;
use super::settings;
use super::shared::{Counters, Shared};

/// Entries of SLOWLOG GET that names no count.
const SLOWLOG_GET: usize = 10;

/// Answers a command about the node.
pub(crate) fn answer(
    verb: Verb,
    request: &Request<'_>,
    protocol: Protocol,
    shared: &mut Shared,
) -> Result<Reply, Failure> {
    let mut out = Vec::new();
    let mut encoder = Encoder::new(&mut out, protocol);
    match verb {
        Verb::Time => {
            let wall = shared.wall.0;
            encoder.array(2);
            encoder.text(&(wall / 1_000).to_string());
            encoder.text(&(wall % 1_000 * 1_000).to_string());
        }
        Verb::LastSave => encoder.count(shared.last_save.0 / 1_000),
        Verb::Command => command(request, &mut encoder)?,
        Verb::Config => config(request, &mut encoder, shared)?,
        Verb::SlowLog => slowlog(request, &mut encoder, shared)?,
        other => return Err(Failure::told(format!("ERR '{}' has no answer", other.name()))),
    }
    Ok(Reply::Encoded(out))
}

fn arity(request: &Request<'_>, right: bool) -> Result<(), Failure> {
    if right {
        return Ok(());
    }
    let name = format!("{}|{}", request.text(0), request.text(1)).to_ascii_lowercase();
    Err(errors::wrong_arity(&name))
}

fn command(request: &Request<'_>, out: &mut Encoder<'_>) -> Result<(), Failure> {
    if request.len() == 1 {
        out.array(TABLE.len());
        TABLE.iter().for_each(|entry| write_info(entry, out));
        return Ok(());
    }
    let named = || (2..request.len()).map(|at| lookup(request.arg(at)).map(Verb::entry));
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
                    None => out.null_array(),
                }
            }
        }
        b"docs" => {
            let all = request.len() == 2;
            let entries: Vec<&Entry> = if all { TABLE.iter().collect() } else { named().flatten().collect() };
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

fn write_info(entry: &Entry, out: &mut Encoder<'_>) {
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

fn write_docs(entry: &Entry, out: &mut Encoder<'_>) {
    out.text(entry.name);
    out.map(3);
    for (name, value) in
        [("summary", entry.summary), ("since", entry.since), ("group", entry.category.group())]
    {
        out.text(name);
        out.text(value);
    }
}

fn get_keys(request: &Request<'_>, out: &mut Encoder<'_>) -> Result<(), Failure> {
    let entry = lookup(request.arg(2)).map(Verb::entry);
    let entry = entry.ok_or(Failure::fixed("ERR Invalid command specified"))?;
    let inner = request.skip(2);
    if entry.check_arity(inner.len()).is_err() {
        return Err(Failure::fixed("ERR Invalid number of arguments specified for command"));
    }
    let positions: Vec<usize> = entry.key_positions(&inner).collect();
    if positions.is_empty() {
        return Err(Failure::fixed("ERR The command has no key arguments"));
    }
    out.array(positions.len());
    positions.iter().for_each(|&at| out.bulk(inner.arg(at)));
    Ok(())
}

fn config(request: &Request<'_>, out: &mut Encoder<'_>, shared: &mut Shared) -> Result<(), Failure> {
    match &request.lower(1)[..] {
        b"get" => {
            arity(request, request.len() > 2)?;
            let patterns: Vec<&[u8]> = (2..request.len()).map(|at| request.arg(at)).collect();
            let found = settings::get(&patterns, &shared.settings, &shared.slowlog);
            out.map(found.len());
            for (name, value) in found {
                out.text(name);
                out.text(&value);
            }
        }
        b"set" => {
            arity(request, request.len() > 3)?;
            if request.len() % 2 == 1 {
                return Err(errors::wrong_arity("config|set"));
            }
            let pairs: Vec<(&[u8], &[u8])> =
                (2..request.len()).step_by(2).map(|at| (request.arg(at), request.arg(at + 1))).collect();
            settings::set(&pairs, &mut shared.settings, &mut shared.slowlog)?;
            out.ok();
        }
        b"resetstat" => {
            arity(request, request.len() == 2)?;
            shared.counters = Counters::new();
            out.ok();
        }
        b"rewrite" => return Err(Failure::fixed("ERR The server is running without a config file")),
        _ => return Err(errors::unknown_subcommand("CONFIG", request.arg(1))),
    }
    Ok(())
}

fn slowlog(request: &Request<'_>, out: &mut Encoder<'_>, shared: &mut Shared) -> Result<(), Failure> {
    match &request.lower(1)[..] {
        b"get" => {
            arity(request, request.len() <= 3)?;
            let count = match request.len() {
                3 => match integer(request.arg(2)) {
                    Some(-1) => usize::MAX,
                    Some(count @ 0..) => usize::try_from(count).unwrap_or(usize::MAX),
                    _ => return Err(Failure::fixed("ERR count should be greater than or equal to -1")),
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
