//! `headwater device check`: checks the flash file of a stopped node without a write.
//!
//! Input: a flash file, opened read-only. Output: a [`CheckReport`]: the checksum and key hash of every record that the
//! index names, the checkpoint, the comparison of its index with the index of the whole log, what is lost and in doubt,
//! and every damaged page, cell and copy. The report holds hashes, locations and lengths, no bytes of keys or values.

mod text;

use headwater_ssd::engine::inspection::{
    CheckpointFound, DoubtfulNamespace, IndexDifference, LostRun, MediumInspection, RecordFault,
    RecordLocation, inspect,
};
use headwater_ssd::engine::{DeviceConfig, StartTime};
use headwater_ssd::media::file::BadSuperblock;
use headwater_ssd::media::unreadable::UnreadablePage;
use headwater_ssd::media::{Media, MediumVersion};
use serde::Serialize;

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
    /// Keys or blocks whose record is whole and may be superseded by a lost one: they are answered with errors.
    pub in_doubt: u64,
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

/// A page of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LogPage {
    /// The flash block.
    pub block: u32,
    /// The page of the block.
    pub page: u8,
}

/// A run of pages of the log that were durable and are lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LostPages {
    /// Number of the first page in the log.
    pub first_tick: u64,
    /// Number of pages.
    pub pages: u64,
    /// The highest sequence of a record that they could hold.
    pub sequence_max: u64,
    /// The namespaces of which they could hold records; 17 is the table of namespaces.
    pub namespaces: Vec<u8>,
}

/// A namespace of which records may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct NamespaceInDoubt {
    /// Its number; 17 is the table of namespaces.
    pub namespace: u8,
    /// Keys whose record has a lower sequence are answered with errors, and keys without a record.
    pub below: u64,
    /// Number of the keys or blocks whose record is answered with an error.
    pub keys: u64,
}

/// The damaged pages of a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DamagedCheckpointPages {
    /// Pages of the first copy of the map.
    pub first_map: u64,
    /// Pages of the second copy of the map.
    pub second_map: u64,
    /// Pages of the index.
    pub index: u64,
}

/// The effect of what a check found on the answers of a serving node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DamageEffect {
    /// There is no damage.
    #[default]
    None,
    /// Every key is answered as if there were none. What is damaged has another copy, or is needed only if something else is
    /// damaged too.
    FewerCopies,
    /// Some keys are answered with errors, or a start is refused; no key is answered wrongly.
    Errors,
    /// Keys may be answered wrongly: the index of the checkpoint and the log contradict each other, or a record was damaged
    /// before it was written.
    Unproven,
}

/// The results of a check.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CheckReport {
    /// True if the check found no damage.
    pub is_whole: bool,
    /// The effect of the damage on clients.
    pub effect: DamageEffect,
    /// The version of the format.
    pub version: u8,
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
    /// Damaged records as far as they are known: with a wrong checksum anywhere in the log, live or not and removals among
    /// them, or live and on a damaged page. A lost page counts as one.
    pub damaged_records: u64,
    /// Records of batches that a power cut left incomplete.
    pub discarded_records: u64,
    /// Pages of the log that were durable and are lost.
    pub lost_log_pages: u64,
    /// The first of the runs that they form.
    pub first_lost_runs: Vec<LostPages>,
    /// The namespaces in doubt, because of lost pages now or at an earlier start.
    pub namespaces_in_doubt: Vec<NamespaceInDoubt>,
    /// The digest that accepts what is in doubt; `None` if nothing is.
    pub doubt_digest: Option<String>,
    /// Number of whole records in doubt.
    pub doubtful_records: u64,
    /// The first of them.
    pub first_doubtful_records: Vec<CheckLocation>,
    /// Namespaces whose settings are lost: every command of theirs is answered with an error.
    pub unusable_namespaces: Vec<u8>,
    /// Pages of the log that count and are damaged, as far as it is known where they are.
    pub damaged_pages: u64,
    /// The first of them.
    pub first_damaged_pages: Vec<LogPage>,
    /// Commit cells without an intact record.
    pub damaged_cells: u64,
    /// Commit cells with an older record than was durable there.
    pub stale_cells: u64,
    /// Damaged pages of the checkpoint.
    pub damaged_checkpoint_pages: DamagedCheckpointPages,
    /// The copies of the superblock that are damaged, each with its fault.
    pub damaged_superblocks: Vec<String>,
    /// True if the last commit is not whole and does not count, as after a power cut.
    pub last_commit_discarded: bool,
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
        let mut report = Self {
            version: match found.version {
                MediumVersion::One => 1,
                MediumVersion::Two => 2,
            },
            namespaces: namespaces(found),
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
            ..Self::losses_of(found)
        };
        report.set_effect();
        report
    }

    /// Makes a report of what only a medium of version 2 can tell.
    fn losses_of(found: &MediumInspection) -> Self {
        let damaged = found.damaged_checkpoint;
        let damaged_pages = found.damaged_pages.first.iter();
        Self {
            lost_log_pages: found.lost_log_pages,
            first_lost_runs: found.lost_runs.first.iter().map(lost_pages).collect(),
            namespaces_in_doubt: found.doubtful.iter().map(|doubt| in_doubt(found, *doubt)).collect(),
            doubt_digest: found.doubt_digest.map(|digest| digest.to_string()),
            doubtful_records: found.doubtful_records.count,
            first_doubtful_records: found.doubtful_records.first.iter().map(location).collect(),
            unusable_namespaces: found.unusable_namespaces.clone(),
            damaged_pages: found.damaged_pages.count,
            first_damaged_pages: damaged_pages
                .map(|page| LogPage { block: page.block.0, page: page.page })
                .collect(),
            damaged_cells: found.damaged_cells,
            stale_cells: found.stale_cells,
            damaged_checkpoint_pages: DamagedCheckpointPages {
                first_map: damaged.maps[0],
                second_map: damaged.maps[1],
                index: damaged.index,
            },
            last_commit_discarded: found.is_commit_discarded,
            ..Self::default()
        }
    }

    /// Adds the damaged copies of the superblock, which the medium found when it was opened.
    pub fn add_superblocks(&mut self, damaged: &[BadSuperblock]) {
        self.damaged_superblocks.extend(damaged.iter().map(ToString::to_string));
        self.set_effect();
    }

    fn set_effect(&mut self) {
        let counts = |found: &NamespaceCheck| found.counted == found.whole + found.expired;
        let damaged = self.damaged_checkpoint_pages;
        let has_bad_copies = !self.damaged_superblocks.is_empty()
            || self.damaged_cells + self.stale_cells + self.damaged_pages > 0
            || damaged.first_map + damaged.second_map + damaged.index > 0
            || self.checkpoint == "damaged"
            || self.unreadable_blocks > 0
            || self.unreadable_pages > 0;
        let has_errors = self.faults > 0
            || !self.namespaces.iter().all(counts)
            || self.lost_log_pages > 0
            || !self.namespaces_in_doubt.is_empty()
            || !self.unusable_namespaces.is_empty()
            || self.loss_digest.is_some();
        // What the log lacks because of damage is in the index nevertheless; an answer is wrong only if neither tells why.
        let is_explained = has_errors || self.damaged_pages > 0 || self.unreadable_pages > 0;
        let contradicts = self.disagreements > 0 && !is_explained;
        let was_written_so = self.version > 1 && self.damaged_records > 0 && !is_explained;
        self.effect = if contradicts || was_written_so {
            DamageEffect::Unproven
        } else if has_errors {
            DamageEffect::Errors
        } else if has_bad_copies || self.disagreements > 0 {
            DamageEffect::FewerCopies
        } else {
            DamageEffect::None
        };
        self.is_whole = self.effect == DamageEffect::None;
    }
}

/// Returns the results of every namespace that has keys or blocks.
fn namespaces(found: &MediumInspection) -> Vec<NamespaceCheck> {
    (1..)
        .zip(&found.namespaces)
        .filter(|(_, found)| found.records > 0)
        .map(|(namespace, found)| NamespaceCheck {
            namespace,
            counted: found.records,
            whole: found.intact,
            bytes: found.bytes,
            damaged: found.damaged,
            expired: found.expired,
            in_doubt: found.in_doubt,
        })
        .collect()
}

fn lost_pages(found: &LostRun) -> LostPages {
    let LostRun { first_tick, pages, sequence_max, namespaces } = found.clone();
    LostPages { first_tick, pages, sequence_max, namespaces }
}

fn in_doubt(found: &MediumInspection, doubt: DoubtfulNamespace) -> NamespaceInDoubt {
    let DoubtfulNamespace { namespace, below } = doubt;
    let counts = found.namespaces.get(usize::from(namespace.saturating_sub(1)));
    NamespaceInDoubt { namespace, below, keys: counts.map_or(0, |counts| counts.in_doubt) }
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
