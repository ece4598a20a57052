//! Inspects a medium without writing to it.
//!
//! Input: a medium whose device is not running. Output: an [`MediumInspection`]. Every record that the index names is read,
//! its checksum computed and its key hashed again; then the index is built a second time, from the log alone, and
//! compared with the one from the checkpoint (`compare`).
//! Invariant: nothing is programmed, erased or flushed; the result holds only locations and lengths of clients' data.

mod compare;
mod doubtful;
#[cfg(test)]
mod tests;
pub(super) mod verify;

use crate::config::DeviceConfig;
use crate::config::LossDigest;
use crate::engine::progress::OpenProgress;
use crate::engine::recovery::{Base, LostPages, Recovered, recover};
pub use crate::engine::recovery::{CheckpointFound, DamagedCheckpoint};
use crate::engine::{OpenError, StartTime, build_ftl, recover_readable};
use crate::ftl::Ftl;
use crate::index::{IndexEntry, KeyHash};
use crate::media::unreadable::{UnreadablePage, UnreadablePages};
use crate::media::{Media, MediumVersion, PageAddress};
pub(crate) use doubtful::doubtful;
pub use doubtful::{DoubtfulNamespace, LostRun};
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
    /// Its checksum is wrong, it is no record, or one of its pages is damaged.
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
    /// Those whose record is intact and may be superseded by a lost one: they are answered with errors.
    pub in_doubt: u64,
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
    /// Damaged records, as far as they are known: those anywhere in the log with a wrong checksum, whether a key needs them
    /// or not and removals among them, and those of keys on damaged pages; a lost page counts as one. A power cut leaves
    /// some on a medium of version 1.
    pub damaged_records: u64,
    /// Records of batches that a power cut left incomplete.
    pub discarded_records: u64,
    /// The version of the format.
    pub version: MediumVersion,
    /// Pages of the log that were durable and are lost.
    pub lost_log_pages: u64,
    /// The runs that they form.
    pub lost_runs: BoundedFindings<LostRun>,
    /// The namespaces in doubt, because of lost pages now or at an earlier opening.
    pub doubtful: Vec<DoubtfulNamespace>,
    /// The digest by which an operator accepts the loss, so that nothing is in doubt any more.
    pub doubt_digest: Option<LossDigest>,
    /// Records that are intact and in doubt.
    pub doubtful_records: BoundedFindings<RecordLocation>,
    /// Namespaces whose settings are lost: every command of theirs is answered with an error.
    pub unusable_namespaces: Vec<u8>,
    /// Pages of the log that count and are not intact, as far as it is known where they are.
    pub damaged_pages: BoundedFindings<PageAddress>,
    /// Commit cells without an intact record; other cells hold the same.
    pub damaged_cells: u64,
    /// Commit cells with an older record than was durable there; other cells hold the same.
    pub stale_cells: u64,
    /// Pages of the checkpoint that are not intact.
    pub damaged_checkpoint: DamagedCheckpoint,
    /// True if the last commit is not whole and does not count, as after a power cut.
    pub is_commit_discarded: bool,
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
    let mut damaged_pages: BTreeSet<PageAddress> = recovered.damaged_pages.iter().copied().collect();
    let mut found = MediumInspection::of(&ftl, recovered);
    if let Err(error) = verify::verify(&mut ftl, &mut found, &mut damaged_pages, &mut now, progress) {
        return Err(OpenError { media: ftl.into_media(), reason: error.into() });
    }
    let mut unreadable = ftl.take_failures();
    // The first layer's device DRAM is released before the second layer allocates its own.
    let can_scan = ftl.version_1_below() == 0;
    let (hasher, index, mut media) = ftl.into_parts();
    if found.checkpoint == CheckpointFound::Whole && can_scan {
        let mut ftl = build_ftl(media, config)?;
        ftl.set_failures(unreadable);
        let by_log = match recover(&mut ftl, config, Base::Log(hasher), &mut now, progress) {
            Ok(by_log) => by_log,
            Err(error) => return Err(OpenError { media: ftl.into_media(), reason: error.into() }),
        };
        damaged_pages.extend(by_log.damaged_pages);
        found.damaged_records = match found.version {
            MediumVersion::One => found.damaged_records.max(ftl.damaged()),
            MediumVersion::Two => found.damaged_records + by_log.damaged_old_records,
        };
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
    let failed: BTreeSet<PageAddress> = unreadable.pages().map(|failed| failed.page).collect();
    damaged_pages.difference(&failed).for_each(|page| found.damaged_pages.add(*page));
    Ok((found, media))
}

impl MediumInspection {
    /// Makes the findings of a recovery.
    fn of<M: Media>(ftl: &Ftl<M>, recovered: Recovered) -> Self {
        let (doubtful, doubt_digest) = doubtful(ftl);
        let lost_log_pages = recovered.lost.iter().map(LostPages::pages).sum();
        let mut found = Self {
            version: ftl.media().traits().version,
            checkpoint: recovered.checkpoint,
            unreadable_blocks: recovered.unknown_blocks,
            discarded_records: recovered.discarded_records,
            lost_log_pages,
            doubtful,
            doubt_digest,
            unusable_namespaces: doubtful::unusable(ftl),
            damaged_cells: recovered.damaged_cells.len() as u64,
            stale_cells: recovered.stale_cells.len() as u64,
            damaged_checkpoint: recovered.damaged_checkpoint,
            is_commit_discarded: recovered.is_commit_discarded,
            damaged_records: ftl.damaged() + recovered.damaged_old_records,
            opening_losses: recovered.unreadable,
            live_bytes: ftl.blocks().live_bytes(),
            free_blocks: narrow(ftl.blocks().free_count()),
            ..Self::default()
        };
        recovered.lost.iter().for_each(|lost| found.lost_runs.add(LostRun::of(lost)));
        for (hash, entry) in recovered.lost_records {
            let by_checkpoint = Some(RecordLocation::of(hash, entry));
            found.differences.add(IndexDifference { by_checkpoint, by_log: None });
        }
        found
    }
}
