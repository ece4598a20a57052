//! The texts of error replies, byte for byte those of Redis 7.0 where Redis has one.
//!
//! Input: the cause of an error. Output: a [`ErrorReply`], the text of an error reply without its dash. The encoder
//! replaces line ends in a text with blanks, so that no argument can forge a reply.

use headwater_nvme::spec::status::Status;
use headwater_ssd::limits::{
    BATCH_BYTES_MAX, BATCH_WRITES_MAX, KEY_BYTES_MAX, LOG_VALUE_BYTES_MAX, VALUE_BYTES_MAX,
};
use std::borrow::Cow;

/// The text of an error reply: bytes, because it may repeat an argument as the client sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ErrorReply(Cow<'static, [u8]>);

impl ErrorReply {
    /// Creates an error with a constant text.
    pub(crate) const fn fixed(text: &'static str) -> Self {
        Self(Cow::Borrowed(text.as_bytes()))
    }

    /// Creates an error with a formatted text.
    pub(crate) fn formatted(text: String) -> Self {
        Self(Cow::Owned(text.into_bytes()))
    }

    /// Creates an error that repeats an argument, up to a zero byte, between two texts.
    pub(crate) fn quoting(before: &str, argument: &[u8], after: &str) -> Self {
        Self(Cow::Owned([before.as_bytes(), c_string(argument), after.as_bytes()].concat()))
    }

    /// Returns the text.
    pub(crate) fn text(&self) -> &[u8] {
        &self.0
    }
}

pub(crate) const SYNTAX: ErrorReply = ErrorReply::fixed("ERR syntax error");
pub(crate) const NOT_AN_INTEGER: ErrorReply =
    ErrorReply::fixed("ERR value is not an integer or out of range");
pub(crate) const NOT_A_FLOAT: ErrorReply = ErrorReply::fixed("ERR value is not a valid float");
pub(crate) const NOT_FINITE: ErrorReply = ErrorReply::fixed("ERR increment would produce NaN or Infinity");
pub(crate) const OVERFLOW: ErrorReply = ErrorReply::fixed("ERR increment or decrement would overflow");
pub(crate) const DECREMENT_OVERFLOW: ErrorReply = ErrorReply::fixed("ERR decrement would overflow");
pub(crate) const TOO_LONG: ErrorReply =
    ErrorReply::fixed("ERR string exceeds maximum allowed size (proto-max-bulk-len)");
pub(crate) const OFFSET: ErrorReply = ErrorReply::fixed("ERR offset is out of range");
pub(crate) const BIT: ErrorReply = ErrorReply::fixed("ERR bit is not an integer or out of range");
pub(crate) const BIT_OFFSET: ErrorReply =
    ErrorReply::fixed("ERR bit offset is not an integer or out of range");
pub(crate) const SEARCHED_BIT: ErrorReply = ErrorReply::fixed("ERR The bit argument must be 1 or 0.");
pub(crate) const BITOP_NOT: ErrorReply =
    ErrorReply::fixed("ERR BITOP NOT must be called with a single source key.");
pub(crate) const BITFIELD_TYPE: ErrorReply = ErrorReply::fixed(
    "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.",
);
pub(crate) const BITFIELD_OVERFLOW: ErrorReply = ErrorReply::fixed("ERR Invalid OVERFLOW type specified");
pub(crate) const BITFIELD_READ_ONLY: ErrorReply =
    ErrorReply::fixed("ERR BITFIELD_RO only supports the GET subcommand");
pub(crate) const NO_SUCH_KEY: ErrorReply = ErrorReply::fixed("ERR no such key");
pub(crate) const SAME_OBJECT: ErrorReply =
    ErrorReply::fixed("ERR source and destination objects are the same");
pub(crate) const DATABASE: ErrorReply = ErrorReply::fixed("ERR DB index is out of range");
pub(crate) const CURSOR: ErrorReply = ErrorReply::fixed("ERR invalid cursor");
pub(crate) const NOAUTH: ErrorReply = ErrorReply::fixed("NOAUTH Authentication required.");
pub(crate) const WRONGPASS: ErrorReply =
    ErrorReply::fixed("WRONGPASS invalid username-password pair or user is disabled.");
pub(crate) const TOO_MANY_PASSWORDS: ErrorReply =
    ErrorReply::fixed("ERR too many wrong passwords from this address; wait 10 seconds");
pub(crate) const NO_THREAD: ErrorReply =
    ErrorReply::fixed("ERR the node cannot start a thread for this command; raise its limit of processes");
pub(crate) const NO_DIRECTORY: ErrorReply = ErrorReply::fixed(
    "ERR The server is running without a config file: this node has no data directory that could keep settings",
);
pub(crate) const NO_PASSWORD: ErrorReply = ErrorReply::fixed(
    "ERR AUTH <password> called without any password configured for the default user. \
     Are you sure your configuration is correct?",
);
pub(crate) const NOPROTO: ErrorReply = ErrorReply::fixed("NOPROTO unsupported protocol version");
pub(crate) const PROTO_NOT_INTEGER: ErrorReply =
    ErrorReply::fixed("ERR Protocol version is not an integer or out of range");
pub(crate) const HELLO_NOAUTH: ErrorReply = ErrorReply::fixed(
    "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> \
     <pass> option can be used to authenticate the client and select the RESP protocol version at the same time",
);
pub(crate) const CLIENT_NAME: ErrorReply =
    ErrorReply::fixed("ERR Client names cannot contain spaces, newlines or special characters.");
pub(crate) const CONTENDED: ErrorReply =
    ErrorReply::fixed("ERR the key was changed by other clients each time this command read it; try again");
/// The status of a value or a command for which the memory of clients has no room. Only this front end makes it.
pub(crate) const CLIENT_MEMORY: Status = Status { code_type: 7, code: 0xC1, do_not_retry: false };
pub(crate) const TOO_MANY_KEYS: ErrorReply = ErrorReply::fixed(
    "ERR the keys exceed the memory for one reply; use SCAN, or receive your replies and try again",
);

/// Returns the error for an unknown command, with as much of its arguments as Redis shows.
pub(crate) fn unknown_command<'a>(name: &[u8], arguments: impl Iterator<Item = &'a [u8]>) -> ErrorReply {
    let mut shown: Vec<u8> = Vec::new();
    for argument in arguments {
        if shown.len() >= 128 {
            break;
        }
        let argument = c_string(argument);
        let room = 128 - shown.len();
        shown.push(b'\'');
        shown.extend_from_slice(&argument[..argument.len().min(room)]);
        shown.extend_from_slice(b"' ");
    }
    let after = b"', with args beginning with: ";
    let text = [&b"ERR unknown command '"[..], shortened(name), after, &shown].concat();
    ErrorReply(Cow::Owned(text))
}

/// Returns the error for a command that would run a script or a function; `None` for any other command.
pub(crate) fn no_scripts(name: &[u8]) -> Option<ErrorReply> {
    const NAMES: [&str; 8] =
        ["eval", "evalsha", "eval_ro", "evalsha_ro", "script", "function", "fcall", "fcall_ro"];
    let known = NAMES.iter().any(|known| name.eq_ignore_ascii_case(known.as_bytes()));
    known.then(|| {
        let after = "': scripts and functions are not supported; use MULTI and EXEC, with WATCH where a value decides";
        ErrorReply::quoting("ERR unknown command '", name, after)
    })
}

/// Returns an argument up to a zero byte, and at most the 128 bytes that Redis shows.
fn shortened(bytes: &[u8]) -> &[u8] {
    let bytes = c_string(bytes);
    &bytes[..bytes.len().min(128)]
}

fn c_string(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    &bytes[..end]
}

/// Returns the error for a wrong number of arguments of `name`, which may be `command|subcommand`.
pub(crate) fn wrong_arity(name: &str) -> ErrorReply {
    ErrorReply::formatted(format!("ERR wrong number of arguments for '{name}' command"))
}

/// Returns the error for a write of too many keys at once.
pub(crate) fn batch_of_too_many(keys: usize) -> ErrorReply {
    ErrorReply::formatted(format!(
        "ERR {keys} keys are more than one all-or-nothing write may have ({BATCH_WRITES_MAX}); split the command"
    ))
}

/// Returns the error for a write of too many bytes at once.
pub(crate) fn batch_too_large(bytes: usize, bytes_max: usize) -> ErrorReply {
    let more_memory = if bytes_max < BATCH_BYTES_MAX && bytes <= BATCH_BYTES_MAX {
        ", or start the node with more --memory"
    } else {
        ""
    };
    ErrorReply::formatted(format!(
        "ERR keys, values and headers of {bytes} bytes are more than one all-or-nothing write may have ({bytes_max}); \
         split the command{more_memory}"
    ))
}

/// Returns the error for an unknown subcommand.
pub(crate) fn unknown_subcommand(command: &str, subcommand: &[u8]) -> ErrorReply {
    ErrorReply::quoting("ERR unknown subcommand '", shortened(subcommand), &format!("'. Try {command} HELP."))
}

/// Returns the error for a time to live that is not positive or out of range.
pub(crate) fn invalid_expire(command: &str) -> ErrorReply {
    ErrorReply::formatted(format!("ERR invalid expire time in '{command}' command"))
}

/// Returns the error for a device status.
pub(crate) fn from_status(status: Status) -> ErrorReply {
    match status {
        Status::INVALID_KEY_SIZE => {
            ErrorReply::formatted(format!("ERR a key has 1 to {KEY_BYTES_MAX} bytes"))
        }
        Status::INVALID_VALUE_SIZE => ErrorReply::formatted(format!(
            "ERR a value has at most {VALUE_BYTES_MAX} bytes, and {LOG_VALUE_BYTES_MAX} where it is written together with \
             other keys or changed in part"
        )),
        Status::INVALID_NAMESPACE => ErrorReply::fixed(
            "ERR the database is a block namespace, and has no keys; SELECT one that `headwater namespace list` does not show \
             as blocks",
        ),
        Status::NAMESPACE_WRITE_PROTECTED => ErrorReply::fixed(
            "ERR the flash file has format version 1 and is only read; stop the node and run `headwater device upgrade`",
        ),
        Status::CAPACITY_EXCEEDED => ErrorReply::fixed(
            "OOM command not allowed: the device, or the file system beneath it, is full; delete keys, wait for collection, \
             or free space (/healthz says which)",
        ),
        CLIENT_MEMORY => ErrorReply::fixed(
            "OOM the clients of the node hold too much memory; receive your replies, or request less at a time, and try \
             again",
        ),
        Status::MEDIUM_FAILED => ErrorReply::fixed(
            "MISCONF a write or a flush of the flash failed, and the node refuses writes; reads go on; /healthz and the \
             log name the error: repair the disk and restart the node",
        ),
        Status::WRITE_FAULT => ErrorReply::fixed(
            "ERR write fault: collection cannot free a block, because pages of quarantined blocks cannot be read; run \
             `headwater device check`",
        ),
        other => ErrorReply::formatted(format!("ERR device: {other}")),
    }
}
