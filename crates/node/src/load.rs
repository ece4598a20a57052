//! `kv load`: loads records from a folder or a record file into a target.
//!
//! Input: a [`LoadSource`] and a [`KvTarget`]. Output: a [`LoadReport`] and optionally a manifest of all acknowledged
//! records.
//! Invariant: a line of the manifest is written after the acknowledgement of its record, and reaches the kernel before
//! the next batch is sent, so that a manifest lists only acknowledged records.

pub mod dump;
pub mod manifest;
pub mod source;

pub use source::{LoadSource, SkipReason};

use crate::kv::target::{KeyValueRecord, KvError, KvTarget, StoreResult};
use manifest::ManifestLine;
use serde::Serialize;
use source::SourceItem;
use std::io::Write;
use std::path::Path;

/// Maximum number of complaints in a report; further ones are only counted.
pub const COMPLAINTS_MAX: usize = 20;

/// The results of a load.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LoadReport {
    /// Records acknowledged.
    pub stored: u64,
    /// Bytes of their values.
    pub bytes: u64,
    /// Skipped: larger than the maximum size of a value.
    pub too_large: u64,
    /// Skipped: links or special files.
    pub not_files: u64,
    /// Unreadable files and malformed records.
    pub unreadable: u64,
    /// Records refused by the target.
    pub refused: u64,
    /// The first complaints.
    pub complaints: Vec<String>,
}

/// The parameters of a load.
#[derive(Debug)]
pub struct LoadPlan<'a> {
    /// The source of records.
    pub source: &'a LoadSource,
    /// Prefix of every key.
    pub prefix: &'a [u8],
    /// Path of the manifest of acknowledged records.
    pub manifest: Option<&'a Path>,
}

/// A receiver of the progress of a load.
pub trait LoadProgress {
    /// Receives the expected items and bytes, before the first record.
    fn expect(&mut self, items: Option<u64>, bytes: Option<u64>);
    /// Receives the items and bytes of a finished batch.
    fn advance(&mut self, items: u64, bytes: u64);
}

/// The error of a load that ended early. Records acknowledged before it are in the report and the manifest.
#[derive(Debug, thiserror::Error)]
#[error("{reason} ({} records were acknowledged before)", report.stored)]
pub struct LoadError {
    /// The results until the error.
    pub report: LoadReport,
    reason: String,
}

/// Loads all records of the source.
///
/// # Errors
/// [`LoadError`] when the source or the target fails.
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
            SourceItem::Batch(records) => {
                let before = report.bytes;
                store(target, &records, report, manifest.as_mut()).map_err(|error| error.to_string())?;
                progress.advance(records.len() as u64, report.bytes - before);
            }
            SourceItem::Skipped(why, what) => report.count_skipped(why, what),
            SourceItem::Failed(what) => return Err(what),
        }
    }
    Ok(())
}

fn store(
    target: &mut dyn KvTarget,
    records: &[KeyValueRecord],
    report: &mut LoadReport,
    manifest: Option<&mut std::fs::File>,
) -> Result<(), KvError> {
    let mut lines = Vec::new();
    let stored = target.set(records, &mut |index, stored| {
        let Some(record) = records.get(index) else {
            return Ok(());
        };
        match stored {
            StoreResult::Acknowledged => {
                report.stored += 1;
                report.bytes += record.value.len() as u64;
                if manifest.is_some() {
                    serde_json::to_writer(&mut lines, &ManifestLine::from_record(record))
                        .map_err(std::io::Error::from)?;
                    lines.push(b'\n');
                }
            }
            StoreResult::Refused(why) => {
                report.refused += 1;
                report.add_complaint(format!("{}: {why}", String::from_utf8_lossy(&record.key)));
            }
        }
        Ok(())
    });
    // Also when the batch failed: the manifest lists the records acknowledged before the failure.
    if let Some(manifest) = manifest {
        manifest.write_all(&lines)?;
    }
    stored
}

impl LoadReport {
    /// Returns true if every record was loaded, apart from those that may be skipped.
    #[must_use]
    pub fn is_complete(&self, large: LargeFilePolicy) -> bool {
        self.unreadable == 0 && self.refused == 0 && (self.too_large == 0 || large == LargeFilePolicy::Skip)
    }

    fn count_skipped(&mut self, why: SkipReason, what: String) {
        match why {
            SkipReason::TooLarge => self.too_large += 1,
            SkipReason::NotAFile => {
                // Links and sockets in a folder are expected: counted, without a complaint.
                self.not_files += 1;
                return;
            }
            SkipReason::Unreadable => self.unreadable += 1,
        }
        self.add_complaint(what);
    }

    fn add_complaint(&mut self, what: String) {
        if self.complaints.len() < COMPLAINTS_MAX {
            self.complaints.push(what);
        }
    }
}

/// The treatment of files above the maximum size of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LargeFilePolicy {
    /// They make the load fail.
    Fail,
    /// They are skipped.
    Skip,
}

impl std::fmt::Display for LoadSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Folder(path) | Self::Records(path) => write!(f, "{}", path.display()),
            Self::Stdin => f.write_str("standard input"),
        }
    }
}
