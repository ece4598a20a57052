//! The parameters of CONFIG GET and CONFIG SET.
//!
//! Input: the configuration of the front end. Output: values by name, and checked changes of the variable ones. A
//! change of a fixed parameter is refused, never silently accepted.

use super::config::RespConfig;
use super::errors::ErrorReply;
use super::glob::{self, CaseSensitivity};
use super::kept_settings::KeptValues;
use super::limits::{BULK_BYTES_MAX, CLIENTS_CEILING, CLIENTS_MAX, DATABASES, SLOWLOG_ENTRIES_MAX};
use super::parser::integer;
use super::password::{PasswordSecrets, RespPassword};
use super::password_hash::{SaltedHash, SaltedHashError};
use super::reply_budget::ReplyLimits;
use super::reply_limits;
use super::slowlog::SlowLog;
use headwater_host::clock::Nanos;
use headwater_ssd::engine::Durability;
use std::collections::BTreeSet;
use std::path::PathBuf;
use zeroize::Zeroizing;

/// The parameters of a front end; some can be changed by CONFIG SET.
#[derive(Debug)]
pub(crate) struct RespSettings {
    /// Password that AUTH requires.
    pub(crate) password: Option<RespPassword>,
    /// The secrets that passwords are hashed with.
    pub(crate) secrets: PasswordSecrets,
    /// The file that CONFIG REWRITE writes; `None` without a data directory.
    pub(crate) kept_path: Option<PathBuf>,
    /// The parameters that CONFIG SET has changed, or that were kept: CONFIG REWRITE keeps them.
    pub(crate) changed: BTreeSet<&'static str>,
    /// True if other machines can reach a listener: there must be a password.
    pub(crate) is_exposed: bool,
    /// Maximum number of connected clients.
    pub(crate) clients_max: usize,
    /// Longest argument, in bytes.
    pub(crate) bulk_bytes_max: usize,
    /// Longest idle time of a client, in seconds; 0 for no limit.
    pub(crate) timeout_seconds: u64,
    /// Limits of the unread replies of one client.
    pub(crate) reply_limits: ReplyLimits,
    /// Durability mode of the first namespace.
    pub(crate) durability: Durability,
    /// First TCP port; 0 without one.
    pub(crate) port: u16,
    /// Path of the Unix socket, empty without one.
    pub(crate) unix_path: String,
    /// IP addresses of the listeners, separated by blanks.
    pub(crate) bind: String,
}

impl RespSettings {
    /// Creates the initial parameters of a front end.
    pub(crate) fn new(config: &RespConfig, secrets: PasswordSecrets) -> Self {
        Self {
            password: None,
            secrets,
            kept_path: config.kept_settings.clone(),
            changed: BTreeSet::new(),
            is_exposed: config.listen.iter().any(|address| !address.ip().is_loopback()),
            clients_max: CLIENTS_MAX,
            bulk_bytes_max: BULK_BYTES_MAX,
            timeout_seconds: 0,
            reply_limits: ReplyLimits::default(),
            durability: config.durability,
            port: 0,
            unix_path: String::new(),
            bind: String::new(),
        }
    }

    /// Returns the value of `appendfsync` for the durability mode.
    fn append_sync(&self) -> &'static str {
        match self.durability {
            Durability::Always => "always",
            Durability::Interval(_) => "everysec",
            Durability::OnFlush => "no",
        }
    }
}

/// The names of all parameters.
const NAMES: &[&str] = &[
    "appendfsync",
    "appendonly",
    "bind",
    "client-output-buffer-limit",
    "client-query-buffer-limit",
    "databases",
    "maxclients",
    "maxmemory",
    "maxmemory-policy",
    "port",
    "proto-max-bulk-len",
    "requirepass",
    "save",
    "slowlog-log-slower-than",
    "slowlog-max-len",
    "tcp-keepalive",
    "timeout",
    "unixsocket",
];

/// The names of the parameters that CONFIG SET can change.
const VARIABLE: &[&str] = &[
    "client-output-buffer-limit",
    "maxclients",
    "proto-max-bulk-len",
    "requirepass",
    "slowlog-log-slower-than",
    "slowlog-max-len",
    "timeout",
];

/// Returns the value of a parameter as CONFIG GET shows it.
fn value(name: &str, settings: &RespSettings, slowlog: &SlowLog) -> String {
    match name {
        "appendfsync" => settings.append_sync().to_owned(),
        "appendonly" => "yes".to_owned(),
        "bind" => settings.bind.clone(),
        "client-output-buffer-limit" => settings.reply_limits.to_string(),
        "client-query-buffer-limit" => super::limits::QUERY_BUFFER_BYTES_MAX.to_string(),
        "databases" => DATABASES.to_string(),
        "maxclients" => settings.clients_max.to_string(),
        "maxmemory" | "tcp-keepalive" => "0".to_owned(),
        "maxmemory-policy" => "noeviction".to_owned(),
        "port" => settings.port.to_string(),
        "proto-max-bulk-len" => settings.bulk_bytes_max.to_string(),
        // The password itself is not known.
        "requirepass" => {
            let salted = settings.password.as_ref().and_then(RespPassword::salted);
            salted.map_or_else(String::new, SaltedHash::to_string)
        }
        "slowlog-log-slower-than" => {
            slowlog.threshold.map_or_else(|| "-1".to_owned(), |threshold| (threshold.0 / 1_000).to_string())
        }
        "slowlog-max-len" => slowlog.entries_max.to_string(),
        "timeout" => settings.timeout_seconds.to_string(),
        "unixsocket" => settings.unix_path.clone(),
        _ => String::new(),
    }
}

/// Returns the parameters whose names match one of the patterns, each once, with their values.
pub(crate) fn get(
    patterns: &[&[u8]],
    settings: &RespSettings,
    slowlog: &SlowLog,
) -> Vec<(&'static str, String)> {
    NAMES
        .iter()
        .filter(|name| {
            patterns
                .iter()
                .any(|pattern| glob::matches(pattern, name.as_bytes(), CaseSensitivity::Insensitive))
        })
        .map(|name| (*name, value(name, settings, slowlog)))
        .collect()
}

/// Returns the parameters that CONFIG SET has changed, with their values, which [`restore`] takes.
pub(crate) fn kept(settings: &RespSettings, slowlog: &SlowLog) -> KeptValues {
    settings.changed.iter().map(|name| ((*name).to_owned(), value(name, settings, slowlog))).collect()
}

/// Sets the parameters that were kept.
///
/// # Errors
/// A parameter that cannot be kept, or a value that it cannot have.
pub(crate) fn restore(
    kept: &KeptValues,
    settings: &mut RespSettings,
    slowlog: &mut SlowLog,
) -> Result<(), String> {
    for (name, text) in kept {
        let known = VARIABLE.iter().find(|known| *known == name);
        let known = known.ok_or_else(|| format!("no setting {name} can be kept"))?;
        match *known {
            // Whether a node may be without one is known when it listens.
            "requirepass" if text.is_empty() => {}
            "requirepass" if !SaltedHash::is_hash(text.as_bytes()) => {
                return Err("requirepass is no hash".to_owned());
            }
            known => {
                check(known, text.as_bytes(), settings, slowlog).map_err(|why| format!("{name}: {why}"))?;
            }
        }
        apply(known, text.as_bytes(), settings, slowlog);
        settings.changed.insert(known);
    }
    Ok(())
}

/// Changes parameters, all or none. Returns a new password in plain, which the caller is to hash.
///
/// # Errors
/// Redis's text for an unknown name, an immutable parameter, or an invalid value.
pub(crate) fn set(
    pairs: &[(&[u8], &[u8])],
    settings: &mut RespSettings,
    slowlog: &mut SlowLog,
) -> Result<Option<Zeroizing<Vec<u8>>>, ErrorReply> {
    for (at, (name, text)) in pairs.iter().enumerate() {
        let Some(known) = NAMES.iter().find(|known| name.eq_ignore_ascii_case(known.as_bytes())) else {
            let text = "ERR Unknown option or number of arguments for CONFIG SET - '";
            return Err(ErrorReply::quoting(text, name, "'"));
        };
        if pairs[..at].iter().any(|(before, _)| before.eq_ignore_ascii_case(name)) {
            return Err(failed(known, "duplicate parameter"));
        }
        check(known, text, settings, slowlog).map_err(|why| failed(known, why))?;
    }
    let mut password = None;
    for (name, text) in pairs {
        let Some(known) = VARIABLE.iter().find(|known| name.eq_ignore_ascii_case(known.as_bytes())) else {
            continue;
        };
        apply(known, text, settings, slowlog);
        settings.changed.insert(known);
        if *known == "requirepass" && !text.is_empty() && !SaltedHash::is_hash(text) {
            password = Some(Zeroizing::new(text.to_vec()));
        }
    }
    Ok(password)
}

fn parsed_hash(text: &[u8]) -> Result<SaltedHash, SaltedHashError> {
    let text = std::str::from_utf8(text).map_err(|_| SaltedHashError::Malformed)?;
    SaltedHash::parse(text)
}

fn failed(name: &str, why: &str) -> ErrorReply {
    ErrorReply::formatted(format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}"))
}

fn check(name: &str, text: &[u8], settings: &RespSettings, slowlog: &SlowLog) -> Result<(), &'static str> {
    let number = integer(text);
    let between = |low: i64, high: usize| match number {
        None => Err("argument couldn't be parsed into an integer"),
        Some(number) if number < low || usize::try_from(number).unwrap_or(0) > high => {
            Err("argument is out of the allowed range")
        }
        Some(_) => Ok(()),
    };
    match name {
        "maxclients" => between(1, CLIENTS_CEILING),
        "proto-max-bulk-len" => between(1 << 20, BULK_BYTES_MAX),
        "client-output-buffer-limit" => reply_limits::parse(text, settings.reply_limits).map(|_limits| ()),
        "timeout" => between(0, i32::MAX as usize),
        "slowlog-log-slower-than" => between(-1, usize::MAX),
        "slowlog-max-len" => between(0, SLOWLOG_ENTRIES_MAX),
        "requirepass" if text.is_empty() && settings.is_exposed => {
            Err("other machines can reach this node, which serves no client without a password")
        }
        "requirepass" if SaltedHash::is_hash(text) => match parsed_hash(text) {
            Ok(_) => Ok(()),
            Err(SaltedHashError::Malformed) => Err("it starts with $scrypt$ as a hash does, and is none"),
            Err(SaltedHashError::TooCostly) => Err("a check of this hash takes too much memory or time"),
        },
        "requirepass" => Ok(()),
        "bind" | "databases" | "port" | "unixsocket" => Err("can't set immutable config"),
        // The other parameters are fixed; setting one to its current value is accepted.
        _ if text.eq_ignore_ascii_case(value(name, settings, slowlog).as_bytes()) => Ok(()),
        "appendfsync" | "appendonly" => Err("durability is chosen when the node starts, by --durability"),
        "save" => Err("every write goes to the log; there are no snapshots to schedule"),
        _ => Err("this node cannot change it"),
    }
}

fn apply(name: &str, text: &[u8], settings: &mut RespSettings, slowlog: &mut SlowLog) {
    if name == "client-output-buffer-limit"
        && let Ok(limits) = reply_limits::parse(text, settings.reply_limits)
    {
        settings.reply_limits = limits;
    }
    let number = integer(text);
    let size = number.and_then(|number| usize::try_from(number).ok());
    match (name, size) {
        ("maxclients", Some(count)) => settings.clients_max = count,
        ("proto-max-bulk-len", Some(bytes)) => settings.bulk_bytes_max = bytes,
        ("timeout", Some(seconds)) => settings.timeout_seconds = seconds as u64,
        ("slowlog-max-len", Some(count)) => slowlog.entries_max = count,
        ("slowlog-log-slower-than", _) => {
            let micros = number.and_then(|number| u64::try_from(number).ok());
            slowlog.threshold = micros.map(|micros| Nanos(micros.saturating_mul(1_000)));
        }
        ("requirepass", _) => {
            settings.password = match parsed_hash(text) {
                _ if text.is_empty() => None,
                Ok(salted) if SaltedHash::is_hash(text) => Some(RespPassword::from_salted(salted)),
                _ => Some(RespPassword::from_plain(text, &settings.secrets)),
            };
        }
        _ => {}
    }
}
