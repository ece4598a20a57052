//! Inspects a medium without writing to it.
//!
//! Input: a medium whose device is not running. Output: an [`MediumInspection`]. Every record that the index names is read,
//! its checksum computed and its key hashed again; then the index is built a second time, from the log alone, and
//! compared with the one from the checkpoint (`compare`).
//! Invariant: nothing is programmed, erased or flushed; the result holds only locations and lengths of clients' data.

mod compare;
#[cfg(test)]
mod tests;
mod verify;

use crate::config::DeviceConfig;
use crate::engine::progress::OpenProgress;
pub use crate::engine::recovery::CheckpointFound;
use crate::engine::recovery::{Base, LostPages, recover};
use crate::engine::{OpenError, StartTime, build_ftl, recover_readable};
use crate::index::{IndexEntry, KeyHash};
use crate::media::unreadable::{UnreadablePage, UnreadablePages};
use crate::media::{Media, PageAddress};
use headwater_host::width::narrow;
use std::collections::BTreeSet;

/// Maximum of findings of one kind that are kept; further ones are only counted.
const FINDINGS_KEPT_MAX: usize = 32;

/// Findings of one kind: all are counted, the first ones kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundedFindings<T> {
    /// Number of findings.
    pub count: u64,
    /// The first findings.
    pub first: Vec<T>,
}

impl<T> Default for BoundedFindings<T> {
    fn default() -> Self {
        Self { count: 0, first: Vec::new() }
    }
}

impl<T> BoundedFindings<T> {
    fn add(&mut self, finding: T) {
        self.count += 1;
        if self.first.len() < FINDINGS_KEPT_MAX {
            self.first.push(finding);
        }
    }
}

/// The location of a key's or block's record, without any client data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordLocation {
    /// Number of the namespace.
    pub namespace: u8,
    /// Hash of the key, or index position of the block ([`KeyHash`]).
    pub hash: KeyHash,
    /// The page on which the record begins.
    pub page: PageAddress,
    /// Offset of the record in the page's block, in bytes.
    pub offset: usize,
}

impl RecordLocation {
    fn of(hash: KeyHash, entry: IndexEntry) -> Self {
        let address = entry.address;
        Self { namespace: entry.namespace.0, hash, page: address.page(), offset: address.offset_in_block() }
    }
}

/// A fault of a record that the index names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordFault {
    /// Its checksum is wrong, or it is no record.
    Damaged,
    /// One of its pages cannot be read.
    Unreadable,
    /// It is intact, but belongs to another key.
    OtherKey,
}

/// An entry in which the two indexes differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexDifference {
    /// Location by the checkpoint and the log after it.
    pub by_checkpoint: Option<RecordLocation>,
    /// Location by the whole log.
    pub by_log: Option<RecordLocation>,
}

/// The findings of one namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceFindings {
    /// Keys or blocks that the index names.
    pub records: u64,
    /// Those whose record is intact.
    pub intact: u64,
    /// Bytes of the values of the intact records.
    pub bytes: u64,
    /// Those whose record is damaged, or belongs to another key.
    pub damaged: u64,
    /// Those that have expired, and whose record is intact.
    pub expired: u64,
}

/// The contents of a medium, as counts and faults.
#[derive(Clone, Debug, Default)]
pub struct MediumInspection {
    /// Findings by namespace; the last entry is the namespace table itself.
    pub namespaces: [NamespaceFindings; crate::limits::SPACES],
    /// Records that the index names and that are damaged or belong to another key.
    pub faults: BoundedFindings<(RecordLocation, RecordFault)>,
    /// State of the checkpoints.
    pub checkpoint: CheckpointFound,
    /// Differences between the index from the checkpoint and the index from the whole log.
    pub differences: BoundedFindings<IndexDifference>,
    /// Records anywhere in the log with a wrong checksum, whether a key needs them or not. A power cut leaves some;
    /// opening the device removes them.
    pub damaged_records: u64,
    /// Records of batches that a power cut left incomplete.
    pub discarded_records: u64,
    /// Pages of the log that were durable and are lost.
    pub lost_log_pages: u64,
    /// Commit cells without an intact record.
    pub damaged_cells: u64,
    /// Pages of the checkpoint that are not intact.
    pub damaged_checkpoint_pages: u64,
    /// Blocks with programmed pages none of which can be read.
    pub unreadable_blocks: u32,
    /// The pages that opening the device needs and that cannot be read: it is refused until their loss is accepted.
    pub opening_losses: UnreadablePages,
    /// All pages that could not be read, with those of the opening.
    pub unreadable_pages: BoundedFindings<UnreadablePage>,
    /// Bytes of live records.
    pub live_bytes: u64,
    /// Free blocks.
    pub free_blocks: u32,
}

/// Inspects a medium and returns the findings with the medium. Blocks on the media.
///
/// # Errors
/// [`OpenError`] returns the medium with the reason why it cannot be read.
pub fn inspect<M: Media>(
    media: M,
    config: &DeviceConfig,
    start: StartTime,
    progress: &mut dyn FnMut(OpenProgress),
) -> Result<(MediumInspection, M), OpenError<M>> {
    let mut now = start.now;
    let (mut ftl, recovered, _) = recover_readable(media, config, &mut now, progress)?;
    ftl.set_wall(start.wall);
    let mut found = MediumInspection {
        checkpoint: recovered.checkpoint,
        unreadable_blocks: recovered.unknown_blocks,
        discarded_records: recovered.discarded_records,
        lost_log_pages: recovered.lost.iter().map(LostPages::pages).sum(),
        damaged_cells: recovered.damaged_cells.len() as u64,
        damaged_checkpoint_pages: recovered.damaged_checkpoint_pages,
        damaged_records: ftl.damaged(),
        opening_losses: recovered.unreadable,
        live_bytes: ftl.blocks().live_bytes(),
        free_blocks: narrow(ftl.blocks().free_count()),
        ..MediumInspection::default()
    };
    for (hash, entry) in recovered.lost_records {
        let by_checkpoint = Some(RecordLocation::of(hash, entry));
        found.differences.add(IndexDifference { by_checkpoint, by_log: None });
    }
    if let Err(error) = verify::verify(&mut ftl, &mut found, &mut now, progress) {
        return Err(OpenError { media: ftl.into_media(), reason: error.into() });
    }
    let mut unreadable = ftl.take_failures();
    // The first layer's device DRAM is released before the second layer allocates its own.
    let can_scan = ftl.version_1_below() == 0;
    let (hasher, index, mut media) = ftl.into_parts();
    if found.checkpoint == CheckpointFound::Whole && can_scan {
        let mut ftl = build_ftl(media, config)?;
        ftl.set_failures(unreadable);
        if let Err(error) = recover(&mut ftl, config, Base::Log(hasher), &mut now, progress) {
            return Err(OpenError { media: ftl.into_media(), reason: error.into() });
        }
        found.damaged_records = found.damaged_records.max(ftl.damaged());
        compare::compare(&index, ftl.index(), &mut found.differences, progress);
        unreadable = ftl.take_failures();
        media = ftl.into_media();
    }
    let torn = |failed: &&UnreadablePage| failed.errno.is_none();
    let opening: BTreeSet<PageAddress> =
        found.opening_losses.pages.iter().map(|failed| failed.page).collect();
    // A page that the medium itself calls lost is torn by a power cut, unless the opening needs it or a record is on it.
    unreadable
        .pages()
        .filter(|failed| !torn(failed) || opening.contains(&failed.page))
        .for_each(|failed| found.unreadable_pages.add(*failed));
    Ok((found, media))
}
