//! What a client is told when a command cannot be done, word for word as Redis 7.0 says it.
//!
//! In: what went wrong. Out: a [`Failure`], the text of an error reply without its dash. Line ends in a text become
//! blanks when it is encoded, so no argument can forge a reply.

use super::request::Request;
use headwater_nvme::spec::status::Status;
use headwater_ssd::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use std::borrow::Cow;

/// The text of an error reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure(pub(crate) Cow<'static, str>);

impl Failure {
    /// An error whose text never changes.
    pub(crate) const fn fixed(text: &'static str) -> Self {
        Self(Cow::Borrowed(text))
    }

    /// An error that names what it is about.
    pub(crate) fn told(text: String) -> Self {
        Self(Cow::Owned(text))
    }
}

pub(crate) const SYNTAX: Failure = Failure::fixed("ERR syntax error");
pub(crate) const NOT_AN_INTEGER: Failure = Failure::fixed("ERR value is not an integer or out of range");
pub(crate) const NOT_A_FLOAT: Failure = Failure::fixed("ERR value is not a valid float");
pub(crate) const NOT_FINITE: Failure = Failure::fixed("ERR increment would produce NaN or Infinity");
pub(crate) const OVERFLOW: Failure = Failure::fixed("ERR increment or decrement would overflow");
pub(crate) const DECREMENT_OVERFLOW: Failure = Failure::fixed("ERR decrement would overflow");
pub(crate) const TOO_LONG: Failure =
    Failure::fixed("ERR string exceeds maximum allowed size (proto-max-bulk-len)");
pub(crate) const OFFSET: Failure = Failure::fixed("ERR offset is out of range");
pub(crate) const BIT: Failure = Failure::fixed("ERR bit is not an integer or out of range");
pub(crate) const BIT_OFFSET: Failure = Failure::fixed("ERR bit offset is not an integer or out of range");
pub(crate) const NO_SUCH_KEY: Failure = Failure::fixed("ERR no such key");
pub(crate) const SAME_OBJECT: Failure = Failure::fixed("ERR source and destination objects are the same");
pub(crate) const DATABASE: Failure = Failure::fixed("ERR DB index is out of range");
pub(crate) const CURSOR: Failure = Failure::fixed("ERR invalid cursor");
pub(crate) const NOAUTH: Failure = Failure::fixed("NOAUTH Authentication required.");
pub(crate) const WRONGPASS: Failure =
    Failure::fixed("WRONGPASS invalid username-password pair or user is disabled.");
pub(crate) const NO_PASSWORD: Failure = Failure::fixed(
    "ERR AUTH <password> called without any password configured for the default user. \
     Are you sure your configuration is correct?",
);
pub(crate) const NOPROTO: Failure = Failure::fixed("NOPROTO unsupported protocol version");
pub(crate) const PROTO_NOT_INTEGER: Failure =
    Failure::fixed("ERR Protocol version is not an integer or out of range");
pub(crate) const HELLO_NOAUTH: Failure = Failure::fixed(
    "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> \
     <pass> option can be used to authenticate the client and select the RESP protocol version at the same time",
);
pub(crate) const CLIENT_NAME: Failure =
    Failure::fixed("ERR Client names cannot contain spaces, newlines or special characters.");
pub(crate) const CONTENDED: Failure =
    Failure::fixed("ERR the key was changed by other clients each time this command read it; try again");
pub(crate) const BATCH_TOO_LARGE: Failure =
    Failure::fixed("ERR too many keys or bytes for one all-or-nothing write; split the command");

/// A command nobody knows, with as much of its arguments as Redis shows.
pub(crate) fn unknown_command(request: &Request<'_>) -> Failure {
    let mut shown: Vec<u8> = Vec::new();
    for at in 1..request.len() {
        if shown.len() >= 128 {
            break;
        }
        let argument = c_string(request.arg(at));
        let room = 128 - shown.len();
        shown.push(b'\'');
        shown.extend_from_slice(&argument[..argument.len().min(room)]);
        shown.extend_from_slice(b"' ");
    }
    let name = c_string(request.arg(0));
    Failure::told(format!(
        "ERR unknown command '{}', with args beginning with: {}",
        String::from_utf8_lossy(&name[..name.len().min(128)]),
        String::from_utf8_lossy(&shown)
    ))
}

fn c_string(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    &bytes[..end]
}

/// Too few or too many arguments for `name`, which may be `command|subcommand`.
pub(crate) fn wrong_arity(name: &str) -> Failure {
    Failure::told(format!("ERR wrong number of arguments for '{name}' command"))
}

/// A subcommand nobody knows.
pub(crate) fn unknown_subcommand(command: &str, subcommand: &[u8]) -> Failure {
    let subcommand = c_string(subcommand);
    Failure::told(format!(
        "ERR unknown subcommand '{}'. Try {command} HELP.",
        String::from_utf8_lossy(&subcommand[..subcommand.len().min(128)])
    ))
}

/// A time to live that is not positive or does not fit.
pub(crate) fn invalid_expire(command: &str) -> Failure {
    Failure::told(format!("ERR invalid expire time in '{command}' command"))
}

/// What a device's refusal means to a client.
pub(crate) fn from_status(status: Status) -> Failure {
    match status {
        Status::INVALID_KEY_SIZE => Failure::told(format!("ERR a key has 1 to {KEY_BYTES_MAX} bytes")),
        Status::INVALID_VALUE_SIZE => {
            Failure::told(format!("ERR a value has at most {VALUE_BYTES_MAX} bytes"))
        }
        Status::CAPACITY_EXCEEDED => {
            Failure::fixed("OOM command not allowed: the device is full; delete keys or wait for collection")
        }
        other => Failure::told(format!("ERR device: {other}")),
    }
}
