//! `headwater kv load` and `headwater kv dump`: arguments, progress and the report.
//!
//! Input: arguments. Output: the report as text or JSON on standard output; messages on standard error; exit code 1
//! unless every record was transferred and every check passed.

use super::failure::{CommandFailure, write_json, write_line};
use super::progress::ProgressDisplay;
use crate::config::ByteSize;
use crate::kv::target::KvTarget;
use crate::load::dump::{DumpReport, DumpSink};
use crate::load::{LargeFilePolicy, LoadPlan, LoadReport, LoadSource};
use clap::Args;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::BufReader;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Arguments of `kv load`.
#[derive(Debug, Args)]
#[command(after_help = "\
A folder: every regular file becomes a key, named by its path below the folder. Links are not followed.
A record file: one JSON object a line, {\"key\": .., \"value\": ..}, with `key_base64` and `value_base64` for bytes that
are not UTF-8, and `expiry_ms` (wall time) if the record expires. `-` reads records from standard input.

Examples:
  headwater kv load /usr/share --prefix share/ --manifest share.jsonl
  headwater kv dump - | headwater kv --resp other:7379 load -")]
pub struct LoadArgs {
    /// Folder, record file (JSON lines), or `-`
    #[arg(value_name = "FOLDER|RECORDS.jsonl|-")]
    source: PathBuf,
    /// Prefix of every key
    #[arg(long, value_name = "TEXT", default_value = "")]
    prefix: OsString,
    /// File that lists every acknowledged record: {key, len, blake3}, one JSON object a line
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// Skip files above the maximum size of a value, without a failure
    #[arg(long)]
    skip_large: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `kv dump`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  headwater kv dump restored/                      one file a key; the folder must be empty or new
  headwater kv dump backup.jsonl                   every key, value and expiry, as JSON lines
  headwater kv dump --verify share.jsonl           write nothing, check the records that `kv load` listed
  headwater kv dump restored/ --verify share.jsonl write and check")]
pub struct DumpArgs {
    /// Folder, record file (a name that ends in .jsonl), or `-` for records on standard output
    #[arg(value_name = "FOLDER|RECORDS.jsonl|-", required_unless_present = "verify")]
    sink: Option<PathBuf>,
    /// Only keys that match this pattern (* ? [a-z])
    #[arg(long = "match", value_name = "PATTERN")]
    pattern: Option<OsString>,
    /// Check the length and BLAKE3 of every key of this manifest
    #[arg(long, value_name = "MANIFEST")]
    verify: Option<PathBuf>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// Runs `kv load`.
///
/// # Errors
/// When a record was not loaded.
pub fn load(target: &mut dyn KvTarget, args: &LoadArgs) -> Result<(), CommandFailure> {
    let source = source_of(&args.source)?;
    let large = if args.skip_large { LargeFilePolicy::Skip } else { LargeFilePolicy::Fail };
    let plan =
        LoadPlan { source: &source, prefix: args.prefix.as_bytes(), manifest: args.manifest.as_deref() };
    let mut progress = ProgressDisplay::start("loading");
    let loaded = crate::load::load(target, &plan, &mut progress);
    let seconds = progress.seconds();
    drop(progress);
    let (report, broken) = match loaded {
        Ok(report) => (report, None),
        Err(error) => (error.report.clone(), Some(CommandFailure::from(error))),
    };
    print_complaints(&report.complaints);
    if args.json {
        write_json(&report)?;
    } else {
        write_line(&load_text(&report, seconds))?;
    }
    match broken {
        Some(failure) => Err(failure),
        None if report.is_complete(large) => Ok(()),
        None => Err(CommandFailure::failed(format!(
            "not everything was loaded: {} too large, {} unreadable, {} refused",
            report.too_large, report.unreadable, report.refused
        ))),
    }
}

fn load_text(report: &LoadReport, seconds: f64) -> String {
    let mut text = format!("{} stored, {}, {seconds:.1} s", report.stored, ByteSize(report.bytes));
    for (count, what) in [
        (report.not_files, "links and special files skipped"),
        (report.too_large, "too large"),
        (report.unreadable, "unreadable"),
        (report.refused, "refused"),
    ] {
        if count > 0 {
            text.push_str(&format!(", {count} {what}"));
        }
    }
    text
}

fn source_of(path: &Path) -> Result<LoadSource, CommandFailure> {
    if path == Path::new("-") {
        return Ok(LoadSource::Stdin);
    }
    let metadata = std::fs::metadata(path).map_err(|error| {
        CommandFailure::failed(format!("{}: {error}; give a folder, a record file or -", path.display()))
    })?;
    Ok(if metadata.is_dir() {
        LoadSource::Folder(path.to_owned())
    } else {
        LoadSource::Records(path.to_owned())
    })
}

/// Runs `kv dump`.
///
/// # Errors
/// When a record was not written, or differs from the manifest.
pub fn dump(target: &mut dyn KvTarget, args: &DumpArgs) -> Result<(), CommandFailure> {
    let mut expected = match &args.verify {
        None => BTreeMap::new(),
        Some(path) => {
            let named = |what: String| CommandFailure::failed(format!("{}: {what}", path.display()));
            let file = std::fs::File::open(path).map_err(|error| named(error.to_string()))?;
            crate::load::manifest::read_manifest(BufReader::new(file))
                .map_err(|error| named(error.to_string()))?
        }
    };
    let mut progress = ProgressDisplay::start("dumping");
    let total = if args.sink.is_some() { target.key_count()? } else { expected.len() as u64 };
    progress.total(Some(total));
    let mut done = 0;
    let mut advance = |items: u64, bytes: u64| {
        done += items;
        progress.set(done, bytes);
    };
    let pattern = args.pattern.as_deref().map(OsStrExt::as_bytes);
    let to_stdout = args.sink.as_deref() == Some(Path::new("-"));
    let mut out: std::io::BufWriter<Box<dyn std::io::Write>>;
    let mut sink = match args.sink.as_deref() {
        None => DumpSink::ManifestOnly,
        Some(path) if to_stdout || path.extension().is_some_and(|end| end == "jsonl") => {
            out = std::io::BufWriter::new(record_file(path)?);
            DumpSink::Records(&mut out)
        }
        Some(path) => {
            create_empty_folder(path)?;
            DumpSink::Folder(path)
        }
    };
    let report = crate::load::dump::dump(target, pattern, &mut sink, &mut expected, &mut advance)?;
    if let DumpSink::Records(out) = &mut sink {
        out.flush()?;
    }
    let seconds = progress.seconds();
    drop(progress);
    print_complaints(&report.complaints);
    // With records on standard output the report would be mixed with them.
    if !to_stdout {
        if args.json {
            write_json(&report)?;
        } else {
            write_line(&dump_text(&report, args.verify.is_some(), seconds))?;
        }
    }
    if report.is_complete() {
        return Ok(());
    }
    Err(CommandFailure::failed(format!(
        "{} not written, {} different, {} missing",
        report.not_written, report.different, report.missing
    )))
}

fn dump_text(report: &DumpReport, verified: bool, seconds: f64) -> String {
    let mut text = format!("{} written, {}, {seconds:.1} s", report.written, ByteSize(report.bytes));
    if verified {
        text.push_str(&format!(
            "; {} byte-identical, {} different, {} missing",
            report.verified, report.different, report.missing
        ));
    }
    text
}

fn record_file(path: &Path) -> Result<Box<dyn std::io::Write>, CommandFailure> {
    if path == Path::new("-") {
        return Ok(Box::new(std::io::stdout()));
    }
    let file = std::fs::File::create_new(path).map_err(|error| {
        CommandFailure::failed(format!(
            "{}: {error}; a dump never overwrites a file, give a new name",
            path.display()
        ))
    })?;
    Ok(Box::new(file))
}

fn create_empty_folder(path: &Path) -> Result<(), CommandFailure> {
    let named = |error: std::io::Error| CommandFailure::failed(format!("{}: {error}", path.display()));
    std::fs::create_dir_all(path).map_err(named)?;
    // An empty folder holds no link that could lead a file elsewhere and nothing that could be overwritten.
    if std::fs::read_dir(path).map_err(named)?.next().is_some() {
        return Err(CommandFailure::failed(format!(
            "{}: not empty; give an empty or new folder",
            path.display()
        )));
    }
    Ok(())
}

#[expect(clippy::print_stderr, reason = "messages of the command line go to standard error")]
fn print_complaints(complaints: &[String]) {
    for complaint in complaints {
        eprintln!("headwater: {complaint}");
    }
}
