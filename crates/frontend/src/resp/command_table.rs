//! The table of commands: one row each, from which COMMAND's replies and the checks of a command are derived.
//!
//! Input: a command's name as the client wrote it. Output: its [`RespCommand`], and from there its [`CommandEntry`]. Arity is
//! Redis's: a positive number is exact, a negative one a minimum, the name included.

use super::errors::{self, ErrorReply};
use super::request::RespRequest;

/// The group of a command in Redis's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandGroup {
    /// Commands on string values.
    String,
    /// Commands on the bits of string values.
    Bitmap,
    /// Commands on keys of any type.
    Generic,
    /// Commands on the client's connection.
    Connection,
    /// Commands on the server.
    Server,
    /// Commands on transactions.
    Transactions,
}

impl CommandGroup {
    /// Returns the group's name in `COMMAND DOCS`.
    pub(crate) const fn group(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Bitmap => "bitmap",
            Self::Generic => "generic",
            Self::Connection => "connection",
            Self::Server => "server",
            Self::Transactions => "transactions",
        }
    }
}

/// The way a command is executed, and thus what it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandHandler {
    /// Planned from its arguments; runs concurrently with its neighbours if the plan allows.
    Plan,
    /// Answered immediately from the front end's own state.
    Session,
    /// Works on the transaction of the connection.
    Transaction,
    /// Answered as soon as every earlier command of the connection is answered.
    AfterEarlier,
}

/// The row of one command.
#[derive(Debug)]
pub(crate) struct CommandEntry {
    /// Name, lower case.
    pub(crate) name: &'static str,
    /// Number of arguments.
    pub(crate) arity: i8,
    /// Redis's flags, separated by blanks.
    pub(crate) flags: &'static str,
    /// Position of the first key, 0 for none.
    pub(crate) first_key: i8,
    /// Position of the last key; negative counts from the end.
    pub(crate) last_key: i8,
    /// Distance from key to key.
    pub(crate) key_step: i8,
    /// Group in Redis's documentation.
    pub(crate) category: CommandGroup,
    /// First Redis version with the command.
    pub(crate) since: &'static str,
    /// Summary for `COMMAND DOCS`.
    pub(crate) summary: &'static str,
    /// Way of execution.
    pub(crate) handler: CommandHandler,
}

/// The maximum length of a command name, in bytes.
const NAME_BYTES_MAX: usize = 16;

macro_rules! commands {
    ($($verb:ident $name:literal $arity:literal $flags:literal ($first:literal $last:literal $step:literal)
        $category:ident $since:literal $handler:ident $summary:literal;)*) => {
        /// The number of a command: its index in [`TABLE`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum RespCommand { $(
            #[doc = $summary]
            $verb,
        )* }

        /// The rows of all commands.
        pub(crate) static TABLE: &[CommandEntry] = &[$(CommandEntry {
            name: $name, arity: $arity, flags: $flags, first_key: $first, last_key: $last,
            key_step: $step, category: CommandGroup::$category, since: $since, summary: $summary,
            handler: CommandHandler::$handler,
        },)*];

        fn by_lower_name(name: &str) -> Option<RespCommand> {
            match name {
                $($name => Some(RespCommand::$verb),)*
                _ => None,
            }
        }
    };
}

commands! {
    Get "get" 2 "readonly fast" (1 1 1) String "1.0.0" Plan "Get the value of a key";
    Set "set" -3 "write denyoom" (1 1 1) String "1.0.0" Plan "Set the string value of a key";
    SetNx "setnx" 3 "write denyoom fast" (1 1 1) String "1.0.0" Plan "Set the value of a key, only if the key does not exist";
    SetEx "setex" 4 "write denyoom" (1 1 1) String "2.0.0" Plan "Set the value and expiration of a key";
    PSetEx "psetex" 4 "write denyoom" (1 1 1) String "2.6.0" Plan "Set the value and expiration in milliseconds of a key";
    GetSet "getset" 3 "write denyoom fast" (1 1 1) String "1.0.0" Plan "Set the string value of a key and return its old value";
    GetDel "getdel" 2 "write fast" (1 1 1) String "6.2.0" Plan "Get the value of a key and delete the key";
    GetEx "getex" -2 "write fast" (1 1 1) String "6.2.0" Plan "Get the value of a key and optionally set its expiration";
    MGet "mget" -2 "readonly fast" (1 -1 1) String "1.0.0" Plan "Get the values of all the given keys";
    MSet "mset" -3 "write denyoom" (1 -1 2) String "1.0.1" Plan "Set multiple keys to multiple values";
    MSetNx "msetnx" -3 "write denyoom" (1 -1 2) String "1.0.1" Plan "Set multiple keys to multiple values, only if none of the keys exist";
    Append "append" 3 "write denyoom fast" (1 1 1) String "2.0.0" Plan "Append a value to a key";
    StrLen "strlen" 2 "readonly fast" (1 1 1) String "2.2.0" Plan "Get the length of the value stored in a key";
    GetRange "getrange" 4 "readonly" (1 1 1) String "2.4.0" Plan "Get a substring of the string stored at a key";
    SubStr "substr" 4 "readonly" (1 1 1) String "1.0.0" Plan "Get a substring of the string stored at a key";
    SetRange "setrange" 4 "write denyoom" (1 1 1) String "2.2.0" Plan "Overwrite part of a string at key starting at the specified offset";
    SetBit "setbit" 4 "write denyoom" (1 1 1) Bitmap "2.2.0" Plan "Sets or clears the bit at offset in the string value stored at key";
    GetBit "getbit" 3 "readonly fast" (1 1 1) Bitmap "2.2.0" Plan "Returns the bit value at offset in the string value stored at key";
    BitCount "bitcount" -2 "readonly" (1 1 1) Bitmap "2.6.0" Plan "Count set bits in a string";
    BitPos "bitpos" -3 "readonly" (1 1 1) Bitmap "2.8.7" Plan "Find first bit set or clear in a string";
    BitOp "bitop" -4 "write denyoom" (2 -1 1) Bitmap "2.6.0" Plan "Perform bitwise operations between strings";
    BitField "bitfield" -2 "write denyoom" (1 1 1) Bitmap "3.2.0" Plan "Perform arbitrary bitfield integer operations on strings";
    BitFieldRo "bitfield_ro" -2 "readonly fast" (1 1 1) Bitmap "6.0.0" Plan "Perform arbitrary bitfield integer operations on strings. Read-only variant of BITFIELD";
    Lcs "lcs" -3 "readonly" (1 2 1) String "7.0.0" Plan "Find longest common substring";
    Incr "incr" 2 "write denyoom fast" (1 1 1) String "1.0.0" Plan "Increment the integer value of a key by one";
    Decr "decr" 2 "write denyoom fast" (1 1 1) String "1.0.0" Plan "Decrement the integer value of a key by one";
    IncrBy "incrby" 3 "write denyoom fast" (1 1 1) String "1.0.0" Plan "Increment the integer value of a key by the given amount";
    DecrBy "decrby" 3 "write denyoom fast" (1 1 1) String "1.0.0" Plan "Decrement the integer value of a key by the given number";
    IncrByFloat "incrbyfloat" 3 "write denyoom fast" (1 1 1) String "2.6.0" Plan "Increment the float value of a key by the given amount";
    Del "del" -2 "write" (1 -1 1) Generic "1.0.0" Plan "Delete a key";
    Unlink "unlink" -2 "write fast" (1 -1 1) Generic "4.0.0" Plan "Delete a key";
    Exists "exists" -2 "readonly fast" (1 -1 1) Generic "1.0.0" Plan "Determine if a key exists";
    Touch "touch" -2 "readonly fast" (1 -1 1) Generic "3.2.1" Plan "Count the given keys that exist";
    Expire "expire" -3 "write fast" (1 1 1) Generic "1.0.0" Plan "Set a key's time to live in seconds";
    PExpire "pexpire" -3 "write fast" (1 1 1) Generic "2.6.0" Plan "Set a key's time to live in milliseconds";
    ExpireAt "expireat" -3 "write fast" (1 1 1) Generic "1.2.0" Plan "Set the expiration for a key as a UNIX timestamp";
    PExpireAt "pexpireat" -3 "write fast" (1 1 1) Generic "2.6.0" Plan "Set the expiration for a key as a UNIX timestamp specified in milliseconds";
    Ttl "ttl" 2 "readonly fast" (1 1 1) Generic "1.0.0" Plan "Get the time to live for a key in seconds";
    PTtl "pttl" 2 "readonly fast" (1 1 1) Generic "2.6.0" Plan "Get the time to live for a key in milliseconds";
    ExpireTime "expiretime" 2 "readonly fast" (1 1 1) Generic "7.0.0" Plan "Get the expiration Unix timestamp for a key";
    PExpireTime "pexpiretime" 2 "readonly fast" (1 1 1) Generic "7.0.0" Plan "Get the expiration Unix timestamp for a key in milliseconds";
    Persist "persist" 2 "write fast" (1 1 1) Generic "2.2.0" Plan "Remove the expiration from a key";
    Scan "scan" -2 "readonly" (0 0 0) Generic "2.8.0" Plan "Incrementally iterate the keys space";
    Keys "keys" 2 "readonly" (0 0 0) Generic "1.0.0" Plan "Find all keys matching the given pattern";
    RandomKey "randomkey" 1 "readonly" (0 0 0) Generic "1.0.0" Plan "Return a random key from the keyspace";
    Rename "rename" 3 "write" (1 2 1) Generic "1.0.0" Plan "Rename a key";
    RenameNx "renamenx" 3 "write fast" (1 2 1) Generic "1.0.0" Plan "Rename a key, only if the new key does not exist";
    Copy "copy" -3 "write denyoom" (1 2 1) Generic "6.2.0" Plan "Copy a key";
    Type "type" 2 "readonly fast" (1 1 1) Generic "1.0.0" Plan "Determine the type stored at key";
    Object "object" -2 "readonly" (2 2 1) Generic "2.2.3" Plan "Inspect the internals of a value";
    Wait "wait" 3 "noscript" (0 0 0) Generic "3.0.0" AfterEarlier "Wait for the synchronous replication of the writes before it";
    DbSize "dbsize" 1 "readonly fast" (0 0 0) Server "1.0.0" Plan "Return the number of keys in the selected database";
    FlushDb "flushdb" -1 "write" (0 0 0) Server "1.0.0" Plan "Remove all keys from the current database";
    FlushAll "flushall" -1 "write" (0 0 0) Server "1.0.0" Plan "Remove all keys from all databases";
    Save "save" 1 "admin noscript no_multi" (0 0 0) Server "1.0.0" Plan "Make every write so far durable";
    BgSave "bgsave" -1 "admin noscript no_multi" (0 0 0) Server "1.0.0" Plan "Make every write so far durable";
    LastSave "lastsave" 1 "loading stale fast" (0 0 0) Server "1.0.0" Session "Get the UNIX time stamp of the last successful save";
    Memory "memory" -2 "readonly" (2 2 1) Server "4.0.0" Plan "Report the bytes that a key uses";
    Debug "debug" -2 "admin noscript loading stale no_multi" (0 0 0) Server "1.0.0" Plan "A few of Redis's debugging commands";
    Info "info" -1 "loading stale" (0 0 0) Server "1.0.0" AfterEarlier "Get information and statistics about the server";
    Config "config" -2 "admin noscript loading stale" (0 0 0) Server "2.0.0" Session "Read and change parameters";
    Command "command" -1 "loading stale" (0 0 0) Server "2.8.13" Session "Get array of command details";
    Time "time" 1 "loading stale fast" (0 0 0) Server "2.6.0" Session "Return the current server time";
    SlowLog "slowlog" -2 "admin loading stale" (0 0 0) Server "2.2.12" Session "Read and reset the slow log";
    Multi "multi" 1 "noscript loading stale fast allow_busy" (0 0 0) Transactions "1.2.0" Transaction "Mark the start of a transaction block";
    Exec "exec" 1 "noscript loading stale skip_slowlog" (0 0 0) Transactions "1.2.0" Transaction "Execute all commands issued after MULTI";
    Discard "discard" 1 "noscript loading stale fast allow_busy" (0 0 0) Transactions "2.0.0" Transaction "Discard all commands issued after MULTI";
    Watch "watch" -2 "noscript loading stale fast allow_busy" (1 -1 1) Transactions "2.2.0" Transaction "Watch the given keys to determine execution of the MULTI/EXEC block";
    UnWatch "unwatch" 1 "noscript loading stale fast allow_busy" (0 0 0) Transactions "2.2.0" Transaction "Forget about all watched keys";
    Ping "ping" -1 "fast" (0 0 0) Connection "1.0.0" Session "Ping the server";
    Echo "echo" 2 "fast" (0 0 0) Connection "1.0.0" Session "Echo the given string";
    Hello "hello" -1 "noscript loading stale fast no_auth allow_busy no_multi" (0 0 0) Connection "6.0.0" AfterEarlier "Handshake with Redis";
    Auth "auth" -2 "noscript loading stale fast no_auth allow_busy no_multi" (0 0 0) Connection "1.0.0" Session "Authenticate to the server";
    Select "select" 2 "loading stale fast" (0 0 0) Connection "1.0.0" Session "Change the selected database for the current connection";
    Reset "reset" 1 "noscript loading stale fast no_auth allow_busy" (0 0 0) Connection "6.2.0" AfterEarlier "Reset the connection";
    Quit "quit" -1 "noscript loading stale fast no_auth allow_busy" (0 0 0) Connection "1.0.0" Session "Close the connection";
    Client "client" -2 "noscript loading stale" (0 0 0) Connection "2.4.0" Session "List and manage client connections";
}

impl RespCommand {
    /// Returns the command's row.
    #[inline]
    pub(crate) fn entry(self) -> &'static CommandEntry {
        &TABLE[self as usize]
    }

    /// Returns the command's name, lower case.
    pub(crate) fn name(self) -> &'static str {
        self.entry().name
    }
}

/// Finds a command by its name in any case.
#[inline]
pub(crate) fn lookup(name: &[u8]) -> Option<RespCommand> {
    if name.len() == 3 {
        if name.eq_ignore_ascii_case(b"get") {
            return Some(RespCommand::Get);
        }
        if name.eq_ignore_ascii_case(b"set") {
            return Some(RespCommand::Set);
        }
    }
    let mut lower = [0_u8; NAME_BYTES_MAX];
    let lower = lower.get_mut(..name.len())?;
    lower.copy_from_slice(name);
    lower.make_ascii_lowercase();
    by_lower_name(std::str::from_utf8(lower).ok()?)
}

impl CommandEntry {
    /// Checks the number of arguments.
    ///
    /// # Errors
    /// The error reply when the number is wrong.
    #[inline]
    pub(crate) fn check_arity(&self, arguments: usize) -> Result<(), ErrorReply> {
        let wanted = usize::from(self.arity.unsigned_abs());
        if arguments == wanted || (self.arity < 0 && arguments > wanted) {
            Ok(())
        } else {
            Err(errors::wrong_arity(self.name))
        }
    }

    /// Returns true if a client may use the command before it authenticates.
    pub(crate) fn allowed_before_auth(&self) -> bool {
        self.flags.contains("no_auth")
    }

    /// Returns the flags one by one.
    pub(crate) fn flag_words(&self) -> impl Iterator<Item = &'static str> {
        self.flags.split(' ')
    }

    /// Returns the access categories, derived as in Redis.
    pub(crate) fn access_categories(&self) -> Vec<String> {
        let mut categories = Vec::new();
        for (flag, category) in [("write", "@write"), ("readonly", "@read"), ("admin", "@admin")] {
            if self.flag_words().any(|word| word == flag) {
                categories.push(category.to_owned());
            }
        }
        categories.push(match self.category {
            CommandGroup::String => "@string".to_owned(),
            CommandGroup::Bitmap => "@bitmap".to_owned(),
            CommandGroup::Generic => "@keyspace".to_owned(),
            CommandGroup::Connection => "@connection".to_owned(),
            CommandGroup::Server => "@dangerous".to_owned(),
            CommandGroup::Transactions => "@transaction".to_owned(),
        });
        let fast = self.flag_words().any(|word| word == "fast");
        categories.push(if fast { "@fast".to_owned() } else { "@slow".to_owned() });
        categories
    }

    /// Returns the positions of the keys in a request.
    pub(crate) fn key_positions(&self, request: &RespRequest<'_>) -> impl Iterator<Item = usize> + use<> {
        let first = usize::from(self.first_key.unsigned_abs());
        let behind = usize::from(self.last_key.unsigned_abs());
        let last = if self.last_key < 0 { request.len().saturating_sub(behind) } else { behind };
        let last = last.min(request.len().saturating_sub(1));
        let step = usize::from(self.key_step.unsigned_abs()).max(1);
        (first..=last).step_by(step).filter(move |_| first > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found_by_its_name_in_any_case() {
        for (at, entry) in TABLE.iter().enumerate() {
            for name in [entry.name.to_owned(), entry.name.to_ascii_uppercase()] {
                assert_eq!(lookup(name.as_bytes()).map(|verb| verb as usize), Some(at));
            }
        }
        for name in [&b""[..], b"ge", b"lpush", b"a name longer than any command", b"\xff\xff"] {
            assert_eq!(lookup(name), None);
        }
    }
}
