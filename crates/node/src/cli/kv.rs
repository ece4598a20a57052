//! `headwater kv`: single keys, scans, loads and dumps, on a live node or the data directory of a stopped one.
//!
//! Input: arguments, standard input. Output: values and tables on standard output; exit code 1 when a key does not
//! exist.

use super::failure::{CommandFailure, write_json, write_line, write_output};
use crate::config::read_client_password;
use crate::kv::resp_client::NodeEndpoint;
use crate::kv::target::live::LiveTarget;
use crate::kv::target::{KeyValueRecord, KvRange, KvTarget, ScanCursor, StoreResult};
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, Subcommand};
use headwater_ssd::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::io::Read as _;
use std::os::unix::ffi::{OsStrExt, OsStringExt as _};
use std::path::PathBuf;
use std::time::Duration;

/// Arguments of `headwater kv`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  headwater kv put greeting hello           store a value
  headwater kv put photo @cat.jpg           store a file
  headwater kv get photo > cat.jpg          read it back
  headwater kv get photo --offset 6 --length 4    read a part of it
  headwater kv scan --match 'user:*'        list keys
  headwater kv load /usr/share --manifest share.jsonl
  headwater kv dump --verify share.jsonl    check every acknowledged file
  headwater kv --data ./data get greeting   read from a stopped node's data directory")]
pub struct KvArgs {
    /// Live node: HOST:PORT or unix:PATH
    #[arg(
        long,
        global = true,
        value_name = "ADDR",
        default_value = "127.0.0.1:7379",
        env = "HEADWATER_RESP"
    )]
    pub resp: NodeEndpoint,
    /// File whose first line is the password of the live node
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "HEADWATER_RESP_PASSWORD",
        conflicts_with = "data"
    )]
    pub resp_password: Option<PathBuf>,
    /// Data directory of a stopped node, instead of a live one
    #[arg(long, global = true, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Namespace, 1 to 16
    #[arg(short, long, global = true, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub namespace: u8,
    /// Maximum wait for one reply, in seconds
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,
    /// Operation to run
    #[command(subcommand)]
    pub op: KvOp,
}

/// One `kv` operation.
#[derive(Debug, Subcommand)]
pub enum KvOp {
    /// Store a value
    Put {
        /// Key
        #[arg(value_parser = key_parser())]
        key: KeyArgument,
        /// Value; `@FILE` reads a file, `-` or no value reads standard input
        value: Option<OsString>,
        /// Seconds after which the key expires
        #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3_153_600_000))]
        ttl: Option<u64>,
    },
    /// Print a value as it is; exit code 1 when the key does not exist
    Get {
        /// Key
        #[arg(value_parser = key_parser())]
        key: KeyArgument,
        /// Write to this file instead of standard output
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
        /// First byte of the value to print; nothing from its end on
        #[arg(long, value_name = "BYTES")]
        offset: Option<u32>,
        /// Maximum number of bytes to print
        #[arg(long, value_name = "BYTES")]
        length: Option<u32>,
    },
    /// Delete keys; `-` reads them from standard input, one a line
    Del {
        /// Keys
        #[arg(required = true, value_parser = key_parser())]
        keys: Vec<KeyArgument>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show which keys exist; exit code 1 unless all do
    Exists {
        /// Keys; `-` reads them from standard input, one a line
        #[arg(required = true, value_parser = key_parser())]
        keys: Vec<KeyArgument>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List keys, one a line
    Scan {
        /// Only keys that match this pattern (* ? [a-z])
        #[arg(long = "match", value_name = "PATTERN")]
        pattern: Option<OsString>,
        /// Maximum number of keys
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
        /// Print JSON; keys that are not UTF-8 are printed as base64
        #[arg(long)]
        json: bool,
    },
    /// Load a folder or a record file
    Load(super::kv_transfer::LoadArgs),
    /// Write records to a folder or a record file, or check them against a manifest
    Dump(super::kv_transfer::DumpArgs),
}

/// Runs `headwater kv`.
///
/// # Errors
/// Names the operation that failed.
pub fn run(args: KvArgs) -> Result<(), CommandFailure> {
    let mut target = open(&args)?;
    let target = target.as_mut();
    let done = execute_operation(target, args.op);
    // Also after a failure: records stored before it are made durable.
    let closed = target.close();
    done?;
    Ok(closed?)
}

fn execute_operation(target: &mut dyn KvTarget, op: KvOp) -> Result<(), CommandFailure> {
    match op {
        KvOp::Put { key, value, ttl } => put(target, key, value, ttl),
        KvOp::Get { key, output, offset: None, length: None } => get(target, key, output),
        KvOp::Get { key: KeyArgument(key), output, offset, length } => {
            let range = KvRange { offset: offset.unwrap_or(0), bytes_max: length.unwrap_or(u32::MAX) };
            write_value(target.get_range(&key, range)?, output)
        }
        KvOp::Del { keys, json } => del(target, &keys, json),
        KvOp::Exists { keys, json } => exists(target, &keys, json),
        KvOp::Scan { pattern, limit, json } => scan(target, pattern.as_deref(), limit, json),
        KvOp::Load(load) => super::kv_transfer::load(target, &load),
        KvOp::Dump(dump) => super::kv_transfer::dump(target, &dump),
    }
}

fn open(args: &KvArgs) -> Result<Box<dyn KvTarget>, CommandFailure> {
    match &args.data {
        Some(path) => super::embedded::open_kv_target(path, args.namespace),
        None => {
            let limit = Duration::from_secs(args.timeout);
            let password = args.resp_password.as_deref().map(read_client_password).transpose();
            let password = password.map_err(CommandFailure::failed)?;
            Ok(Box::new(LiveTarget::connect(&args.resp, limit, args.namespace, password.as_deref())?))
        }
    }
}

fn put(
    target: &mut dyn KvTarget,
    KeyArgument(key): KeyArgument,
    value: Option<OsString>,
    ttl: Option<u64>,
) -> Result<(), CommandFailure> {
    let value = read_value(value)?;
    if value.len() > VALUE_BYTES_MAX {
        return Err(CommandFailure::failed(format!(
            "the value is larger than {} MiB, the maximum",
            VALUE_BYTES_MAX >> 20
        )));
    }
    let now = headwater_host::clock::Clock::start().wall().0;
    let expiry_ms = ttl.map(|seconds| now.saturating_add(seconds.saturating_mul(1_000)));
    let record = KeyValueRecord { key, value, expiry_ms };
    let mut refused = None;
    target.set(std::slice::from_ref(&record), &mut |_index, stored| {
        if let StoreResult::Refused(why) = stored {
            refused = Some(why);
        }
        Ok(())
    })?;
    refused.map_or(Ok(()), |why| Err(CommandFailure::failed(format!("the value was not stored: {why}"))))
}

fn read_value(value: Option<OsString>) -> Result<Vec<u8>, CommandFailure> {
    // One byte above the limit is enough to detect that a value is too large.
    let limit = VALUE_BYTES_MAX as u64 + 1;
    let mut bytes = Vec::new();
    match value.as_deref().map(OsStrExt::as_bytes) {
        None | Some(b"-") => {
            std::io::stdin().lock().take(limit).read_to_end(&mut bytes)?;
        }
        Some([b'@', path @ ..]) => {
            let path = OsStr::from_bytes(path);
            let failed = |error| CommandFailure::failed(format!("{}: {error}", path.display()));
            std::fs::File::open(path).map_err(failed)?.take(limit).read_to_end(&mut bytes).map_err(failed)?;
        }
        Some(value) => bytes.extend_from_slice(value),
    }
    Ok(bytes)
}

fn get(
    target: &mut dyn KvTarget,
    KeyArgument(key): KeyArgument,
    output: Option<PathBuf>,
) -> Result<(), CommandFailure> {
    let mut found = None;
    target.get(std::slice::from_ref(&key), &mut |_index, value| {
        found = value;
        Ok(())
    })?;
    write_value(found, output)
}

fn write_value(found: Option<Vec<u8>>, output: Option<PathBuf>) -> Result<(), CommandFailure> {
    let value = found.ok_or_else(|| CommandFailure::failed("no such key"))?;
    match output {
        None => write_output(&value),
        Some(path) => std::fs::write(&path, value)
            .map_err(|error| CommandFailure::failed(format!("{}: {error}", path.display()))),
    }
}

fn del(target: &mut dyn KvTarget, keys: &[KeyArgument], json: bool) -> Result<(), CommandFailure> {
    let keys = keys_of(keys)?;
    let mut deleted = 0;
    for keys in keys.chunks(crate::kv::target::BATCH_ITEMS) {
        deleted += target.del(keys)?;
    }
    if json {
        return write_json(&serde_json::json!({ "deleted": deleted, "asked": keys.len() }));
    }
    write_line(&format!("{deleted} of {} deleted", keys.len()))
}

#[derive(Serialize)]
struct KeyRow {
    #[serde(flatten)]
    key: KeyText,
    #[serde(skip_serializing_if = "Option::is_none")]
    exists: Option<bool>,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum KeyText {
    Key(String),
    KeyBase64(String),
}

impl KeyText {
    fn of(key: &[u8]) -> Self {
        use base64::Engine as _;
        match std::str::from_utf8(key) {
            Ok(text) => Self::Key(text.to_owned()),
            Err(_) => Self::KeyBase64(base64::engine::general_purpose::STANDARD.encode(key)),
        }
    }
}

fn exists(target: &mut dyn KvTarget, keys: &[KeyArgument], json: bool) -> Result<(), CommandFailure> {
    let keys = keys_of(keys)?;
    let mut found = Vec::with_capacity(keys.len());
    for keys in keys.chunks(crate::kv::target::BATCH_ITEMS) {
        found.extend(target.exists(keys)?);
    }
    if json {
        let rows: Vec<KeyRow> = keys
            .iter()
            .zip(&found)
            .map(|(key, exists)| KeyRow { key: KeyText::of(key), exists: Some(*exists) })
            .collect();
        write_json(&rows)?;
    } else {
        let mut text = Vec::new();
        for (key, exists) in keys.iter().zip(&found) {
            text.extend_from_slice(if *exists { b"yes  " } else { b"no   " });
            text.extend_from_slice(key);
            text.push(b'\n');
        }
        write_output(&text)?;
    }
    if found.iter().all(|exists| *exists) { Ok(()) } else { Err(CommandFailure::negative_result()) }
}

fn scan(
    target: &mut dyn KvTarget,
    pattern: Option<&OsStr>,
    limit: Option<u64>,
    json: bool,
) -> Result<(), CommandFailure> {
    let mut left = limit.unwrap_or(u64::MAX);
    let mut rows = Vec::new();
    let mut cursor = Some(ScanCursor::START);
    let mut seen = std::collections::BTreeSet::new();
    while let Some(from) = cursor.filter(|_| left > 0) {
        let (keys, next) = target.scan(from, pattern.map(OsStrExt::as_bytes))?;
        cursor = next;
        let mut text = Vec::new();
        for key in keys {
            if left == 0 || seen.contains(&key) {
                continue;
            }
            left -= 1;
            if json {
                rows.push(KeyRow { key: KeyText::of(&key), exists: None });
            } else {
                text.extend_from_slice(&key);
                text.push(b'\n');
            }
            seen.insert(key);
        }
        write_output(&text)?;
    }
    if json { write_json(&rows) } else { Ok(()) }
}

fn keys_of(arguments: &[KeyArgument]) -> Result<Vec<Vec<u8>>, CommandFailure> {
    let mut keys = Vec::new();
    for argument in arguments {
        if argument.0 == b"-" {
            let mut text = Vec::new();
            std::io::stdin().lock().read_to_end(&mut text)?;
            for line in text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
                keys.push(
                    KeyArgument::checked(line.to_vec())
                        .map_err(|error| CommandFailure::usage(error.to_string()))?
                        .0,
                );
            }
        } else {
            keys.push(argument.0.clone());
        }
    }
    Ok(keys)
}

/// A key from the command line, of a valid length.
#[derive(Clone, Debug)]
pub struct KeyArgument(Vec<u8>);

/// The error of a key of an invalid length.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("a key has 1 to {KEY_BYTES_MAX} bytes, the given one has {bytes}")]
struct KeyError {
    bytes: usize,
}

impl KeyArgument {
    fn checked(key: Vec<u8>) -> Result<Self, KeyError> {
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(KeyError { bytes: key.len() });
        }
        Ok(Self(key))
    }
}

fn key_parser() -> impl TypedValueParser<Value = KeyArgument> {
    OsStringValueParser::new().try_map(|text| KeyArgument::checked(text.into_vec()))
}
