//! `kv load`: records from a folder or a record file into a target.
//!
//! In: a [`Source`] and a [`KvTarget`]. Out: a [`LoadReport`] and, if asked for, a manifest of everything acknowledged.
//! Invariant: a line of the manifest is written only after the record was acknowledged, and reaches the system before
//! the next batch is sent, so that a manifest never promises what the target did not.

pub mod dump;
pub mod manifest;
pub mod source;

pub use source::{LeftOut, Source};

use crate::kv::target::{KvError, KvTarget, Record, Stored};
use manifest::ManifestLine;
use serde::Serialize;
use source::Piece;
use std::io::Write;
use std::path::Path;

/// Complaints kept word for word; more are only counted.
pub const COMPLAINTS_MAX: usize = 20;

/// What a load did.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LoadReport {
    /// Records acknowledged.
    pub stored: u64,
    /// Bytes of their values.
    pub bytes: u64,
    /// Left out because they are larger than a value may be.
    pub too_large: u64,
    /// Left out because they are links or special files.
    pub not_files: u64,
    /// Could not be read, or are no records.
    pub unreadable: u64,
    /// Refused by the target.
    pub refused: u64,
    /// The first complaints, word for word.
    pub complaints: Vec<String>,
}

/// What a load is told.
#[derive(Debug)]
pub struct LoadPlan<'a> {
    /// What to read.
    pub source: &'a Source,
    /// Put before every key.
    pub prefix: &'a [u8],
    /// Where acknowledged records are listed.
    pub manifest: Option<&'a Path>,
}

/// Hears how far a load has come: items and bytes done of those expected.
pub trait LoadProgress {
    /// Before the first record.
    fn expect(&mut self, items: Option<u64>, bytes: Option<u64>);
    /// After a batch.
    fn advance(&mut self, items: u64, bytes: u64);
}

/// Why a load ended early. What was acknowledged before is in the report and the manifest.
#[derive(Debug, thiserror::Error)]
#[error("{reason} ({} records were acknowledged before)", report.stored)]
pub struct LoadError {
    /// What had been done.
    pub report: LoadReport,
    reason: String,
}

/// Loads everything.
///
/// # Errors
/// [`LoadError`] when the source or the target cannot go on.
pub fn load(
    target: &mut dyn KvTarget,
    plan: &LoadPlan<'_>,
    progress: &mut dyn LoadProgress,
) -> Result<LoadReport, LoadError> {
    let mut report = LoadReport::default();
    match run(target, plan, progress, &mut report) {
        Ok(()) => Ok(report),
        Err(reason) => Err(LoadError { report, reason }),
    }
}

fn run(
    target: &mut dyn KvTarget,
    plan: &LoadPlan<'_>,
    progress: &mut dyn LoadProgress,
    report: &mut LoadReport,
) -> Result<(), String> {
    let mut manifest = plan
        .manifest
        .map(|path| std::fs::File::create(path).map_err(|error| format!("{}: {error}", path.display())))
        .transpose()?;
    let (expectation, pieces) =
        source::start(plan.source, plan.prefix).map_err(|error| format!("{}: {error}", plan.source))?;
    progress.expect(expectation.items, expectation.bytes);
    for piece in pieces {
        match piece {
            Piece::Batch(records) => {
                let before = report.bytes;
                store(target, &records, report, manifest.as_mut()).map_err(|error| error.to_string())?;
                progress.advance(u64::try_from(records.len()).unwrap_or(0), report.bytes - before);
            }
            Piece::LeftOut(why, what) => report.leave_out(why, what),
            Piece::Failed(what) => return Err(what),
        }
    }
    Ok(())
}

fn store(
    target: &mut dyn KvTarget,
    records: &[Record],
    report: &mut LoadReport,
    manifest: Option<&mut std::fs::File>,
) -> Result<(), KvError> {
    let mut lines = Vec::new();
    let stored = target.set(records, &mut |index, stored| {
        let Some(record) = records.get(index) else {
            return Ok(());
        };
        match stored {
            Stored::Acknowledged => {
                report.stored += 1;
                report.bytes += u64::try_from(record.value.len()).unwrap_or(0);
                if manifest.is_some() {
                    serde_json::to_writer(&mut lines, &ManifestLine::of(record))
                        .map_err(std::io::Error::from)?;
                    lines.push(b'\n');
                }
            }
            Stored::Refused(why) => {
                report.refused += 1;
                report.complain(format!("{}: {why}", String::from_utf8_lossy(&record.key)));
            }
        }
        Ok(())
    });
    // Also when the batch broke off: what was acknowledged is on record.
    if let Some(manifest) = manifest {
        manifest.write_all(&lines)?;
    }
    stored
}

impl LoadReport {
    /// Whether everything that was meant to be loaded was.
    #[must_use]
    pub fn complete(&self, large: IfLarge) -> bool {
        self.unreadable == 0 && self.refused == 0 && (self.too_large == 0 || large == IfLarge::Skip)
    }

    fn leave_out(&mut self, why: LeftOut, what: String) {
        match why {
            LeftOut::TooLarge => self.too_large += 1,
            LeftOut::NotAFile => {
                // Links and sockets in a folder are no surprise: counted, not complained about.
                self.not_files += 1;
                return;
            }
            LeftOut::Unreadable => self.unreadable += 1,
        }
        self.complain(what);
    }

    fn complain(&mut self, what: String) {
        if self.complaints.len() < COMPLAINTS_MAX {
            self.complaints.push(what);
        }
    }
}

/// Whether files above the largest value are a failure of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfLarge {
    /// They are.
    Fail,
    /// They are left out without one.
    Skip,
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Folder(path) | Self::Records(path) => write!(f, "{}", path.display()),
            Self::Stdin => f.write_str("standard input"),
        }
    }
}
