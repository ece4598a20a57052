//! The texts of the errors of transactions, those of Redis 7.0 where Redis has one.
//!
//! Input: the cause. Output: an [`ErrorReply`]. A text that begins with `EXECABORT` says that nothing was written.

use super::command_table::CommandEntry;
use super::errors::ErrorReply;
use headwater_ssd::limits::BATCH_WRITES_MAX;

pub(crate) const NESTED_MULTI: ErrorReply = ErrorReply::fixed("ERR MULTI calls can not be nested");
pub(crate) const WATCH_INSIDE_MULTI: ErrorReply = ErrorReply::fixed("ERR WATCH inside MULTI is not allowed");
pub(crate) const EXEC_WITHOUT_MULTI: ErrorReply = ErrorReply::fixed("ERR EXEC without MULTI");
pub(crate) const DISCARD_WITHOUT_MULTI: ErrorReply = ErrorReply::fixed("ERR DISCARD without MULTI");
pub(crate) const PREVIOUS_ERRORS: ErrorReply =
    ErrorReply::fixed("EXECABORT Transaction discarded because of previous errors.");
pub(crate) const QUEUE_TOO_LONG: ErrorReply = ErrorReply::fixed(
    "ERR a transaction has at most 65536 commands and 32 MiB of arguments; send it in parts",
);
pub(crate) const WATCHED_TOO_MUCH: ErrorReply =
    ErrorReply::fixed("ERR the watched keys of a connection have at most 4 MiB; watch fewer");
pub(crate) const TOO_MUCH_READ: ErrorReply =
    ErrorReply::fixed("ERR the commands of a transaction read values of at most 64 MiB; send it in parts");
pub(crate) const REPLY_TOO_LONG: ErrorReply =
    ErrorReply::fixed("ERR the replies of a transaction have at most 64 MiB; send it in parts");

pub(crate) const NO_MEMORY: ErrorReply = ErrorReply::fixed(
    "ERR the values that the transaction reads and its replies exceed the limit of unread replies, 64 MiB unless \
     client-output-buffer-limit says otherwise, or the memory that clients have together; send it in parts",
);

/// Returns the error of an EXEC that discards its transaction because of another error.
pub(crate) fn exec_abort(cause: &ErrorReply) -> ErrorReply {
    let cause = cause.text().strip_prefix(b"ERR ").unwrap_or(cause.text());
    ErrorReply::quoting("EXECABORT Transaction discarded because of: ", cause, "")
}

/// Returns the error for a command that cannot be queued.
pub(crate) fn not_allowed(entry: &CommandEntry) -> ErrorReply {
    let name = entry.name;
    let text = format!(
        "ERR Command not allowed inside a transaction: '{name}' does not work on single keys; send it before MULTI or \
         after EXEC"
    );
    ErrorReply::formatted(text)
}

/// Returns the error for more keys than one batch of the device may have.
pub(crate) fn too_many_keys(keys: usize) -> ErrorReply {
    let text = format!(
        "ERR the transaction reads, writes and watches {keys} keys, and one all-or-nothing write of the device has at \
         most {BATCH_WRITES_MAX}; send it in parts"
    );
    exec_abort(&ErrorReply::formatted(text))
}

/// Returns the error for more bytes than one batch of the device may have.
pub(crate) fn too_many_bytes(bytes: usize, bytes_max: usize) -> ErrorReply {
    let text = format!(
        "ERR the transaction writes {bytes} bytes with keys and headers, and one all-or-nothing write of the device has \
         at most {bytes_max}; send it in parts"
    );
    exec_abort(&ErrorReply::formatted(text))
}
