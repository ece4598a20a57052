//! `headwater device check`: what the flash of a stopped node holds, looked at without a write.
//!
//! In: a flash file, opened to be read. Out: a [`CheckReport`]: every record that the index names read, summed and its key
//! hashed; the checkpoint; and whether the index that it gives is the one that the whole log gives. Of keys and values
//! only hashes, places and lengths are told.

use headwater_ssd::engine::inspection::{
    CheckpointFound, Difference, Inspection, RecordFault, Whereabouts, inspect,
};
use headwater_ssd::engine::{DeviceConfig, Start};
use headwater_ssd::media::Media;
use serde::Serialize;
use std::fmt;

/// What was found in one namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NamespaceCheck {
    /// Its number, from 1; the last one is the table of namespaces itself.
    pub namespace: usize,
    /// Keys or blocks that the index names.
    pub counted: u64,
    /// Those whose record is whole.
    pub whole: u64,
    /// Bytes of their values.
    pub bytes: u64,
    /// Those whose record is damaged, or another key's.
    pub damaged: u64,
    /// Those that have ceased to exist, and whose record is whole.
    pub expired: u64,
}

/// Where a record lies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// Whose it is.
    pub namespace: u8,
    /// The hash of its key, or the place of its block, in hexadecimal.
    pub hash: String,
    /// The block.
    pub block: u32,
    /// The page of the block on which it begins.
    pub page: u8,
    /// Where in the block it begins, in bytes.
    pub offset: usize,
}

/// A record that is not what the index says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// `damaged`, or `foreign`: whole, and another key's.
    pub fault: &'static str,
    /// Where.
    #[serde(flatten)]
    pub place: Place,
}

/// A record that the checkpoint and the log have in different places.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Disagreement {
    /// Where the checkpoint, and the log behind it, have it.
    pub by_checkpoint: Option<Place>,
    /// Where the whole log has it.
    pub by_log: Option<Place>,
}

/// What was found on a device.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CheckReport {
    /// Whether nothing is wrong.
    pub is_whole: bool,
    /// Each namespace that has keys or blocks.
    pub namespaces: Vec<NamespaceCheck>,
    /// Records that are not what the index says: how many.
    pub faults: u64,
    /// The first of them.
    pub first_faults: Vec<Fault>,
    /// `whole`, `none`, `unfinished` (a power cut came first; nothing is lost) or `damaged`.
    pub checkpoint: &'static str,
    /// Entries on which the checkpoint and the whole log disagree: how many.
    pub disagreements: u64,
    /// The first of them.
    pub first_disagreements: Vec<Disagreement>,
    /// Records anywhere that do not carry their checksum, whether a key needs them or not.
    pub damaged_records: u64,
    /// Records of batches that a power cut left incomplete.
    pub discarded_records: u64,
    /// Blocks that hold something of which no page can be read.
    pub unreadable_blocks: u32,
    /// Bytes of live records.
    pub live_bytes: u64,
    /// Blocks that hold nothing.
    pub free_blocks: u32,
}

/// Reads everything; `progress` hears what is being done, how far it is, and how far it has to go.
///
/// # Errors
/// When the medium cannot be read, or is no device.
pub fn check<M: Media>(
    media: M,
    config: &DeviceConfig,
    start: Start,
    progress: &mut dyn FnMut(&'static str, u64, u64),
) -> Result<CheckReport, String> {
    let found = inspect(media, config, start, &mut |step| progress(step.stage, step.done, step.total));
    found.map(|(found, _)| CheckReport::of(&found)).map_err(|error| error.reason.to_string())
}

impl CheckReport {
    fn of(found: &Inspection) -> Self {
        let namespaces: Vec<NamespaceCheck> = (1..)
            .zip(&found.namespaces)
            .filter(|(_, found)| found.counted > 0)
            .map(|(namespace, found)| NamespaceCheck {
                namespace,
                counted: found.counted,
                whole: found.whole,
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
                && found.unreadable_blocks == 0,
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
            live_bytes: found.live_bytes,
            free_blocks: found.free_blocks,
        }
    }
}

fn place(found: &Whereabouts) -> Place {
    Place {
        namespace: found.namespace,
        hash: format!("{:#018x}", found.hash.0),
        block: found.page.block.0,
        page: found.page.page,
        offset: found.offset,
    }
}

fn fault_of(found: &Whereabouts, fault: RecordFault) -> Fault {
    let fault = match fault {
        RecordFault::Damaged => "damaged",
        RecordFault::Foreign => "foreign",
    };
    Fault { fault, place: place(found) }
}

fn disagreement(found: &Difference) -> Disagreement {
    Disagreement {
        by_checkpoint: found.by_checkpoint.as_ref().map(place),
        by_log: found.by_log.as_ref().map(place),
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, hash, block, page, offset } = self;
        write!(f, "namespace {namespace} hash {hash} at block {block} page {page} byte {offset}")
    }
}

fn or_nowhere(place: Option<&Place>) -> String {
    place.map_or_else(|| "nowhere".to_owned(), Place::to_string)
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
            let what = if found.fault == "damaged" { "a damaged record" } else { "another key's record" };
            writeln!(f, "{what}: {}", found.place)?;
        }
        for found in &self.first_disagreements {
            let (by_checkpoint, by_log) = (found.by_checkpoint.as_ref(), found.by_log.as_ref());
            let (by_checkpoint, by_log) = (or_nowhere(by_checkpoint), or_nowhere(by_log));
            writeln!(f, "the checkpoint has it {by_checkpoint}, the log {by_log}")?;
        }
        writeln!(
            f,
            "checkpoint {}, {} faults, {} disagreements of checkpoint and log, {} unreadable blocks",
            self.checkpoint, self.faults, self.disagreements, self.unreadable_blocks
        )?;
        write!(
            f,
            "{} records without their checksum, {} of incomplete batches, {} bytes live, {} blocks free: {}",
            self.damaged_records,
            self.discarded_records,
            self.live_bytes,
            self.free_blocks,
            if self.is_whole { "whole" } else { "NOT WHOLE" }
        )
    }
}
