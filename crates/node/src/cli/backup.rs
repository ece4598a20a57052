//! `headwater backup` and `headwater restore`.
//!
//! Input: arguments. Output: one line with the size of the backup, or a list of backups; progress on standard error.

use super::failure::{CommandFailure, write_json, write_line};
use super::progress::ProgressDisplay;
use crate::backup::folder::BackupFolder;
use crate::backup::{restore, take};
use crate::config::ByteSize;
use clap::Args;
use headwater_host::clock::Clock;
use serde::Serialize;
use std::path::PathBuf;

/// Arguments of `headwater backup`.
#[derive(Debug, Args)]
#[command(after_help = "\
A backup is the state of all namespaces at one moment: every write that was answered before the command began is in it.
The node goes on serving; it keeps the blocks that are being copied from reuse, and gives them up before a client would
have to wait for one. Then the rest is copied from a newer moment. The first backup copies every block that holds data,
later ones what was written since. A run that is killed changes no backup.

Examples:
  headwater backup /mnt/backups/kv                    of the node that serves from ./data
  headwater backup /mnt/backups/kv --data /srv/kv --keep 7
  headwater backup /mnt/backups/kv --list
  headwater restore /mnt/backups/kv --data /srv/new")]
pub struct BackupArgs {
    /// Folder of the backups; it is made if it is missing
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Data directory of the running node
    #[arg(long, value_name = "DIR", default_value = "data")]
    data: PathBuf,
    /// Keep this many backups, and delete older ones afterwards
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    keep: Option<u32>,
    /// List the backups of the folder instead
    #[arg(long, conflicts_with = "keep")]
    list: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `headwater restore`.
#[derive(Debug, Args)]
#[command(after_help = "\
Every page is verified against the checksum of the backup. A directory with a flash file is refused: a restore overwrites
nothing. The restored node has the identity of the one that was backed up: do not run both as one service.

Examples:
  headwater restore /mnt/backups/kv --data /srv/new
  headwater restore /mnt/backups/kv --data /srv/new --number 3
  headwater serve --data /srv/new")]
pub struct RestoreArgs {
    /// Folder of the backups
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// New data directory
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Number of the backup [default: the newest]
    #[arg(long, value_name = "N")]
    number: Option<u32>,
}

/// A line of the list.
#[derive(Debug, Serialize)]
struct BackupLine {
    number: u32,
    /// Milliseconds since 1970.
    taken_ms: u64,
    sequence: u64,
    bytes: u64,
}

/// Runs `headwater backup`.
///
/// # Errors
/// When no backup could be taken, or the folder cannot be read.
pub fn run(args: &BackupArgs) -> Result<(), CommandFailure> {
    if args.list {
        return list(args);
    }
    let folder = BackupFolder::create(&args.folder)?;
    let mut display = ProgressDisplay::start("copying");
    let wall_ms = Clock::start().wall().0;
    let taken = take::take(&args.data, &folder, wall_ms, &mut |done, total| {
        display.total(Some(total));
        display.set(done, done);
    })?;
    drop(display);
    if let Some(keep) = args.keep {
        folder.prune(Some(keep as usize))?;
    }
    if args.json {
        return write_json(&serde_json::json!({
            "number": taken.number, "sequence": taken.sequence, "copied_bytes": taken.copied,
            "bytes": taken.total, "snapshots_lost": taken.lost,
        }));
    }
    write_line(&format!(
        "backup {} of {}: sequence {}, {}, of which {} were copied now",
        taken.number,
        args.data.display(),
        taken.sequence,
        ByteSize(taken.total),
        ByteSize(taken.copied)
    ))
}

fn list(args: &BackupArgs) -> Result<(), CommandFailure> {
    let folder = BackupFolder::open(&args.folder)?;
    let mut lines = Vec::new();
    for number in folder.numbers()? {
        let manifest = folder.manifest(number)?;
        let bytes = manifest.page_bytes_total();
        let (taken_ms, sequence) = (manifest.wall_ms, manifest.sequence);
        lines.push(BackupLine { number, taken_ms, sequence, bytes });
    }
    if args.json {
        return write_json(&lines);
    }
    if lines.is_empty() {
        return write_line(&format!("{}: no backup is in this folder", args.folder.display()));
    }
    let now = Clock::start().wall().0;
    lines.iter().try_for_each(|line| {
        let minutes = now.saturating_sub(line.taken_ms) / 60_000;
        let age = if minutes < 120 { format!("{minutes} min") } else { format!("{} h", minutes / 60) };
        write_line(&format!(
            "{:>6}  {age} ago  sequence {}  {}",
            line.number,
            line.sequence,
            ByteSize(line.bytes)
        ))
    })
}

/// Runs `headwater restore`.
///
/// # Errors
/// When the backup is damaged, or the data directory cannot take it.
pub fn run_restore(args: &RestoreArgs) -> Result<(), CommandFailure> {
    let folder = BackupFolder::open(&args.folder)?;
    let mut display = ProgressDisplay::start("restoring");
    let manifest = restore::restore(&folder, args.number, &args.data, &mut |done, total| {
        display.total(Some(total));
        display.set(done, done);
    })?;
    drop(display);
    write_line(&format!(
        "restored backup {} into {}: sequence {}; start it with `headwater serve --data {}`",
        manifest.number,
        args.data.display(),
        manifest.sequence,
        args.data.display()
    ))
}
