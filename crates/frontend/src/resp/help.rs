//! The replies to `CLIENT HELP` and the other HELP subcommands.
//!
//! Input: a command with subcommands. Output: a line for each subcommand that exists here.

use super::command_table::RespCommand;
use super::output_queue::ReplyEncoder;
use super::reply::{RespReply, RespVersion};

const CLIENT: &[&str] = &[
    "GETNAME: the name of this connection",
    "ID: the number of this connection",
    "INFO: this connection in one line",
    "KILL <address> | ID <id> | ADDR <address> | LADDR <address> | TYPE <type> | USER <user> | MAXAGE <seconds> | SKIPME yes|no \
     ...: close connections",
    "LIST [TYPE normal] [ID <id> ...]: all connections, a line each",
    "NO-EVICT on|off: accepted; shown by CLIENT LIST",
    "REPLY on|off|skip: send or suppress replies on this connection",
    "SETINFO LIB-NAME|LIB-VER <value>: set the name or version of the client library",
    "SETNAME <name>: set the name of this connection",
];
const COMMAND: &[&str] = &[
    "(none): every command with its arity, flags and keys",
    "COUNT: the number of commands",
    "DOCS [<command> ...]: summaries of commands",
    "GETKEYS <command> <argument> ...: the keys in a command",
    "INFO [<command> ...]: arity, flags and keys",
    "LIST: the names of all commands",
];
const CONFIG: &[&str] = &[
    "GET <pattern> ...: parameters and their values",
    "SET <name> <value> ...: change parameters, all or none",
    "REWRITE: keep the changes of CONFIG SET over restarts",
    "RESETSTAT: set the counters of INFO to zero",
];
const DEBUG: &[&str] = &[
    "OBJECT <key>: encoding and length of a value",
    "SLEEP <seconds>: delay this connection only",
    "SET-ACTIVE-EXPIRE <0|1>: accepted without effect; keys always expire on time",
];
const MEMORY: &[&str] = &["USAGE <key> [SAMPLES <count>]: bytes of key, value and record header"];
const OBJECT: &[&str] = &["ENCODING <key>: the encoding that Redis would use", "REFCOUNT <key>: always 1"];
const SLOWLOG: &[&str] = &[
    "GET [<count>]: the newest entries, 10 without a count, all with -1",
    "LEN: the number of entries",
    "RESET: delete all entries",
];

/// Returns the help of a command, if it has subcommands.
pub(crate) fn answer(verb: RespCommand, protocol: RespVersion) -> Option<RespReply> {
    let lines = match verb {
        RespCommand::Client => CLIENT,
        RespCommand::Command => COMMAND,
        RespCommand::Config => CONFIG,
        RespCommand::Debug => DEBUG,
        RespCommand::Memory => MEMORY,
        RespCommand::Object => OBJECT,
        RespCommand::SlowLog => SLOWLOG,
        _ => return None,
    };
    let mut out = Vec::new();
    let mut encoder = ReplyEncoder::new(&mut out, protocol);
    encoder.array(lines.len() + 2);
    let name = verb.name().to_ascii_uppercase();
    encoder.simple(&format!("{name} <subcommand> [<argument> ...]. Subcommands are:"));
    lines.iter().for_each(|line| encoder.simple(line));
    encoder.simple("HELP: this text");
    Some(RespReply::Encoded(out))
}
