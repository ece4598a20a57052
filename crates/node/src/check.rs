//! `headwater device check`: checks the flash file of a stopped node without a write.
//!
//! Input: a flash file, opened read-only. Output: a [`CheckReport`]: the checksum and key hash of every record that the
//! index names, the checkpoint, and the comparison of its index with the index of the whole log. The report holds
//! hashes, locations and lengths, no bytes of keys or values.

use headwater_ssd::engine::inspection::{
    CheckpointFound, IndexDifference, MediumInspection, RecordFault, RecordLocation, inspect,
};
use headwater_ssd::engine::{DeviceConfig, StartTime};
use headwater_ssd::media::Media;
use headwater_ssd::media::unreadable::UnreadablePage;
use serde::Serialize;
use std::fmt;

/// The results for one namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NamespaceCheck {
    /// Number of the namespace, from 1; the last one is the table of namespaces itself.
    pub namespace: usize,
    /// Keys or blocks that the index names.
    pub counted: u64,
    /// Keys or blocks whose record is whole.
    pub whole: u64,
    /// Bytes of their values.
    pub bytes: u64,
    /// Keys or blocks whose record is damaged, or belongs to another key.
    pub damaged: u64,
    /// Expired keys whose record is whole.
    pub expired: u64,
}

/// The location of a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckLocation {
    /// Number of its namespace.
    pub namespace: u8,
    /// Hash of its key, or number of its logical block, in hexadecimal.
    pub hash: String,
    /// The flash block.
    pub block: u32,
    /// The page of the block on which the record begins.
    pub page: u8,
    /// Offset of the record in the block, in bytes.
    pub offset: usize,
}

/// A record that does not match the index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckFault {
    /// `damaged`, `unreadable` (one of its pages), or `foreign`: a whole record of another key.
    pub fault: &'static str,
    /// Location of the record.
    #[serde(flatten)]
    pub location: CheckLocation,
}

/// A record for which the checkpoint and the log give different locations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IndexDisagreement {
    /// Location by the checkpoint and the log after it.
    pub by_checkpoint: Option<CheckLocation>,
    /// Location by the whole log.
    pub by_log: Option<CheckLocation>,
}

/// A page that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckPage {
    /// The flash block.
    pub block: u32,
    /// The page of the block.
    pub page: u8,
    /// The kernel's error number; `None` if the medium itself says that the page is lost.
    pub errno: Option<i32>,
    /// The purpose of the read: `block survey`, `checkpoint`, `log`, `index` or `record`.
    pub needed_for: &'static str,
}

/// The results of a check.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CheckReport {
    /// True if the check found no fault.
    pub is_whole: bool,
    /// Every namespace that has keys or blocks.
    pub namespaces: Vec<NamespaceCheck>,
    /// Number of records that do not match the index.
    pub faults: u64,
    /// The first of them.
    pub first_faults: Vec<CheckFault>,
    /// `intact`, `none`, `unfinished` (interrupted by a power cut; nothing is lost) or `damaged`.
    pub checkpoint: &'static str,
    /// Number of entries that differ between the checkpoint and the whole log.
    pub disagreements: u64,
    /// The first of them.
    pub first_disagreements: Vec<IndexDisagreement>,
    /// Records with a wrong checksum in the whole log, live or not.
    pub damaged_records: u64,
    /// Records of batches that a power cut left incomplete.
    pub discarded_records: u64,
    /// Blocks that hold data of which no page can be read.
    pub unreadable_blocks: u32,
    /// Number of pages that cannot be read.
    pub unreadable_pages: u64,
    /// The first of them.
    pub first_unreadable_pages: Vec<CheckPage>,
    /// Number of those that a start needs: it is refused until their loss is accepted.
    pub opening_losses: u64,
    /// The digest that accepts their loss; `None` if a start needs none.
    pub loss_digest: Option<String>,
    /// Bytes of live records.
    pub live_bytes: u64,
    /// Free blocks.
    pub free_blocks: u32,
}

/// Checks a device; `progress` receives the stage, the steps done and their total.
///
/// # Errors
/// When the medium cannot be read, or holds no device.
pub fn check<M: Media>(
    media: M,
    config: &DeviceConfig,
    start: StartTime,
    progress: &mut dyn FnMut(&'static str, u64, u64),
) -> Result<CheckReport, String> {
    let found = inspect(media, config, start, &mut |step| progress(step.stage, step.done, step.total));
    found.map(|(found, _)| CheckReport::of(&found)).map_err(|error| error.reason.to_string())
}

impl CheckReport {
    fn of(found: &MediumInspection) -> Self {
        let namespaces: Vec<NamespaceCheck> = (1..)
            .zip(&found.namespaces)
            .filter(|(_, found)| found.records > 0)
            .map(|(namespace, found)| NamespaceCheck {
                namespace,
                counted: found.records,
                whole: found.intact,
                bytes: found.bytes,
                damaged: found.damaged,
                expired: found.expired,
            })
            .collect();
        let all_whole = namespaces.iter().all(|found| found.counted == found.whole + found.expired);
        Self {
            is_whole: all_whole
                && found.faults.count == 0
                && found.differences.count == 0
                && found.checkpoint != CheckpointFound::Damaged
                && found.unreadable_blocks == 0
                && found.unreadable_pages.count == 0,
            namespaces,
            faults: found.faults.count,
            first_faults: found.faults.first.iter().map(|(place, fault)| fault_of(place, *fault)).collect(),
            checkpoint: match found.checkpoint {
                CheckpointFound::Whole => "whole",
                CheckpointFound::None => "none",
                CheckpointFound::Unfinished => "unfinished",
                CheckpointFound::Damaged => "damaged",
            },
            disagreements: found.differences.count,
            first_disagreements: found.differences.first.iter().map(disagreement).collect(),
            damaged_records: found.damaged_records,
            discarded_records: found.discarded_records,
            unreadable_blocks: found.unreadable_blocks,
            unreadable_pages: found.unreadable_pages.count,
            first_unreadable_pages: found.unreadable_pages.first.iter().map(page).collect(),
            opening_losses: found.opening_losses.pages.len() as u64,
            loss_digest: (!found.opening_losses.pages.is_empty())
                .then(|| found.opening_losses.digest.to_string()),
            live_bytes: found.live_bytes,
            free_blocks: found.free_blocks,
        }
    }
}

fn page(found: &UnreadablePage) -> CheckPage {
    CheckPage {
        block: found.page.block.0,
        page: found.page.page,
        errno: found.errno,
        needed_for: found.need.as_str(),
    }
}

fn location(found: &RecordLocation) -> CheckLocation {
    CheckLocation {
        namespace: found.namespace,
        hash: format!("{:#018x}", found.hash.0),
        block: found.page.block.0,
        page: found.page.page,
        offset: found.offset,
    }
}

fn fault_of(found: &RecordLocation, fault: RecordFault) -> CheckFault {
    let fault = match fault {
        RecordFault::Damaged => "damaged",
        RecordFault::Unreadable => "unreadable",
        RecordFault::OtherKey => "foreign",
    };
    CheckFault { fault, location: location(found) }
}

fn disagreement(found: &IndexDifference) -> IndexDisagreement {
    IndexDisagreement {
        by_checkpoint: found.by_checkpoint.as_ref().map(location),
        by_log: found.by_log.as_ref().map(location),
    }
}

impl fmt::Display for CheckLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, hash, block, page, offset } = self;
        write!(f, "namespace {namespace} hash {hash} at block {block} page {page} byte {offset}")
    }
}

impl fmt::Display for CheckPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { block, page, errno, needed_for } = self;
        write!(f, "block {block} page {page}, read for the {needed_for}")?;
        errno.map_or(Ok(()), |errno| write!(f, ", errno {errno}"))
    }
}

fn or_nowhere(place: Option<&CheckLocation>) -> String {
    place.map_or_else(|| "nowhere".to_owned(), CheckLocation::to_string)
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:>9} {:>12} {:>12} {:>10} {:>10} {:>16}",
            "namespace", "counted", "whole", "damaged", "expired", "value bytes"
        )?;
        for found in &self.namespaces {
            writeln!(
                f,
                "{:>9} {:>12} {:>12} {:>10} {:>10} {:>16}",
                found.namespace, found.counted, found.whole, found.damaged, found.expired, found.bytes
            )?;
        }
        for found in &self.first_faults {
            let what = match found.fault {
                "damaged" => "a damaged record",
                "unreadable" => "a record that cannot be read",
                _ => "another key's record",
            };
            writeln!(f, "{what}: {}", found.location)?;
        }
        for found in &self.first_disagreements {
            let (by_checkpoint, by_log) = (found.by_checkpoint.as_ref(), found.by_log.as_ref());
            let (by_checkpoint, by_log) = (or_nowhere(by_checkpoint), or_nowhere(by_log));
            writeln!(f, "locations differ: checkpoint {by_checkpoint}, log {by_log}")?;
        }
        for found in &self.first_unreadable_pages {
            writeln!(f, "an unreadable page: {found}")?;
        }
        if let Some(digest) = &self.loss_digest {
            writeln!(
                f,
                "a start needs {} of {} unreadable pages and is refused; a later one may succeed, or give them up with \
                 `headwater serve --accept-loss={digest}`",
                self.opening_losses, self.unreadable_pages
            )?;
        }
        writeln!(
            f,
            "checkpoint {}, {} faults, {} differences between checkpoint and log, {} unreadable blocks",
            self.checkpoint, self.faults, self.disagreements, self.unreadable_blocks
        )?;
        write!(
            f,
            "{} records with a wrong checksum, {} of incomplete batches, {} bytes live, {} blocks free: {}",
            self.damaged_records,
            self.discarded_records,
            self.live_bytes,
            self.free_blocks,
            if self.is_whole { "whole" } else { "NOT WHOLE" }
        )
    }
}
