//! What `CLIENT HELP` and its like answer.
//!
//! In: a command with subcommands. Out: a line for each of them. Only what is there is listed.

use super::command_table::Verb;
use super::reply::{Encoder, Protocol, Reply};

const CLIENT: &[&str] = &[
    "GETNAME: the name this connection was given",
    "ID: the number of this connection",
    "INFO: this connection in one line",
    "KILL <address> | ID <id> | ADDR <address> | LADDR <address> | SKIPME yes|no ...: close connections",
    "LIST [TYPE normal] [ID <id> ...]: all connections, a line each",
    "NO-EVICT on|off: remembered for CLIENT LIST",
    "REPLY on|off|skip: whether this connection is answered",
    "SETINFO LIB-NAME|LIB-VER <value>: say which library speaks",
    "SETNAME <name>: give this connection a name",
];
const COMMAND: &[&str] = &[
    "(none): every command with its arity, flags and keys",
    "COUNT: how many commands there are",
    "DOCS [<command> ...]: what commands do",
    "GETKEYS <command> <argument> ...: the keys in a command",
    "INFO [<command> ...]: arity, flags and keys",
    "LIST: names",
];
const CONFIG: &[&str] = &[
    "GET <pattern> ...: parameters and their values",
    "SET <name> <value> ...: change parameters, all or none",
    "RESETSTAT: set the counters of INFO to zero",
];
const DEBUG: &[&str] = &[
    "OBJECT <key>: how a value is held",
    "SLEEP <seconds>: let this connection, and no other, wait",
    "SET-ACTIVE-EXPIRE <0|1>: accepted; keys expire on time whatever it says",
];
const MEMORY: &[&str] = &["USAGE <key> [SAMPLES <count>]: bytes that key, value and record header take"];
const OBJECT: &[&str] = &["ENCODING <key>: how Redis would hold the value", "REFCOUNT <key>: always 1"];
const SLOWLOG: &[&str] = &[
    "GET [<count>]: the newest entries, 10 without a count, all with -1",
    "LEN: how many entries there are",
    "RESET: forget them",
];

/// The help of a command, if it has any.
pub(crate) fn answer(verb: Verb, protocol: Protocol) -> Option<Reply> {
    let lines = match verb {
        Verb::Client => CLIENT,
        Verb::Command => COMMAND,
        Verb::Config => CONFIG,
        Verb::Debug => DEBUG,
        Verb::Memory => MEMORY,
        Verb::Object => OBJECT,
        Verb::SlowLog => SLOWLOG,
        _ => return None,
    };
    let mut out = Vec::new();
    let mut encoder = Encoder::new(&mut out, protocol);
    encoder.array(lines.len() + 2);
    let name = verb.name().to_ascii_uppercase();
    encoder.simple(&format!("{name} <subcommand> [<argument> ...]. Subcommands are:"));
    lines.iter().for_each(|line| encoder.simple(line));
    encoder.simple("HELP: this");
    Some(Reply::Encoded(out))
}
