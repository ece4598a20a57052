//! The upgrade of a flash file of version 1 to version 2, in place (`docs/formats/medium-2.md`).
//!
//! Input: a file of version 1 that no device serves from. Output: the same file with version 2. Invariant: at every
//! moment the file opens, by the rules of one of the two versions, with the same records.
//!
//! 1. `switch_to_version_2` reads every record by the rules of version 1, writes what version 2 needs where version 1
//!    reads nothing, and changes the version with one write. The blocks of version 1 stay.
//! 2. `SsdDevice::move_out_of_version_1` moves every record out of these blocks, as collection does.
//! 3. `clear_version_1` notes that none is left.

mod checkpoint_file;

use super::inspection::MediumInspection;
use super::inspection::verify::verify;
use super::{OpenError, OpenProgress, OpenReason, SsdDevice, StartTime, recover_readable};
use crate::config::{DeviceConfig, LossDigest};
use crate::ftl::recovering::RecoveringFtl;
use crate::log::commit_record::{CheckpointRoot, CommitKind, CommitRecord};
use crate::log::prefix::{EPOCH_SHIFT, Prefix, Tick};
use crate::media::file::{
    CellRecord, FileMedia, FileMediaError, FileUpgrade, StartupFile, TransferRing, clear_version_1,
};
use crate::media::{CELL_BYTES, Media, MediaError};
use checkpoint_file::write_checkpoint;
use headwater_host::clock::{Nanos, UnixMillis};
use headwater_host::width::narrow;
use std::collections::BTreeSet;
use std::fmt;

/// The reason why a file was not upgraded, or not to the end. It opens by the rules of one of the versions all the same.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UpgradeError {
    /// The file has version 2.
    #[error("the file has format version 2 already")]
    NotVersion1,
    /// It cannot be recovered by the rules of version 1.
    #[error(transparent)]
    Open(#[from] OpenReason),
    /// It has damage that was not accepted.
    #[error(
        "{damage}; nothing was changed: run `headwater device check`, restore the file from a copy, or give these records \
         up with --accept-loss={}{}", damage.digest, other_digest(*accepted)
    )]
    Damaged {
        /// The damage, and the digest that accepts it.
        damage: UpgradeDamage,
        /// The digest that was accepted, of other damage.
        accepted: Option<LossDigest>,
    },
    /// Too few blocks are free for the index.
    #[error(
        "the index needs about {needed} free blocks of {free}; nothing was changed: start and stop the node once with the \
         version that wrote the file, which frees blocks"
    )]
    NoRoom {
        /// Blocks that the index needs, at most.
        needed: usize,
        /// Free blocks.
        free: usize,
    },
    /// Something that version 1 does not read follows the file's last block.
    #[error(
        "the file has {bytes} bytes more behind its last block than the upgrade needs; nothing was changed: cut them off,          version 1 does not use them"
    )]
    TooLong {
        /// Bytes too many.
        bytes: u64,
    },
    /// The checkpoint or the tail of version 2 could not be written.
    #[error(
        "{0}; the file has version 1 still and can be read: make space or repair the disk, then upgrade again"
    )]
    Unchanged(FileMediaError),
    /// The file could not be read or written.
    #[error(transparent)]
    File(#[from] FileMediaError),
    /// The file has version 2, and its medium failed while records were moved.
    #[error("{0}; the file has version 2, run the upgrade again to finish it")]
    Media(#[from] MediaError),
}

fn other_digest(accepted: Option<LossDigest>) -> String {
    accepted.map_or(String::new(), |other| format!(" (the accepted loss {other} is another one)"))
}

/// The damage of a file of version 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpgradeDamage {
    /// Records that the index names and that are damaged or cannot be read.
    pub records: u64,
    /// Records that the checkpoint names and that the log lost.
    pub lost_records: u64,
    /// Pages that recovery needs and that cannot be read.
    pub pages: u64,
    /// Blocks that hold something of which no page can be read.
    pub blocks: u64,
    /// The digest that accepts exactly this damage.
    pub digest: LossDigest,
}

impl UpgradeDamage {
    /// Returns true if anything is damaged.
    #[must_use]
    pub fn has_loss(&self) -> bool {
        let Self { records, lost_records, pages, blocks, .. } = *self;
        [records, lost_records, pages, blocks] != [0; 4]
    }
}

impl fmt::Display for UpgradeDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { records, lost_records, pages, blocks, .. } = self;
        write!(
            f,
            "the file is damaged: {records} records are damaged or unreadable, {lost_records} are lost, {pages} pages of \
             the log or the index and {blocks} whole blocks cannot be read"
        )
    }
}

/// The result of an upgrade.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpgradedFile {
    /// The contents when the version changed; `None` if an earlier upgrade had changed it.
    pub switched: Option<SwitchedFile>,
    /// Blocks of version 1 that are left, because records in them cannot be read.
    pub blocks_left: u32,
    /// True if the superblock says that no block of version 1 is left; if not, a later upgrade can go on.
    pub is_done: bool,
}

/// The contents of a file when its version changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwitchedFile {
    /// Keys and logical blocks.
    pub records: u64,
    /// The damage that was accepted; zeros if there was none.
    pub damage: UpgradeDamage,
}

/// Upgrades a file, or goes on with an upgrade that was interrupted. Blocks on the file. `open` opens it for writing and
/// returns another access to it, which shares its lock.
///
/// # Errors
/// The file needs no upgrade, is damaged, has too few free blocks, or an access to it failed.
pub fn upgrade_file<R: TransferRing, F: StartupFile>(
    open: &mut dyn FnMut() -> Result<(FileMedia<R>, F), FileMediaError>,
    config: &DeviceConfig,
    start: StartTime,
    progress: &mut dyn FnMut(OpenProgress),
) -> Result<UpgradedFile, UpgradeError> {
    let (mut media, mut file) = open()?;
    let mut switched = None;
    if media.version_1_session().is_some() {
        switched = Some(switch_to_version_2(media, &file, config, start, progress)?);
        drop(file);
        (media, file) = open()?;
    }
    if !media.holds_version_1() {
        return Err(UpgradeError::NotVersion1);
    }
    let path = media.path().to_owned();
    let device = SsdDevice::open(media, config.clone(), start, progress);
    let moved = device.map_err(|error| error.reason)?.move_out_of_version_1(start, progress)?;
    if moved.is_done {
        clear_version_1(&file, &path)?;
    }
    Ok(UpgradedFile { switched, blocks_left: moved.blocks_left, is_done: moved.is_done })
}

/// Gives a file of version 1 version 2; its records stay in the blocks in which they are. `media` is open on the file and
/// holds its lock, `file` is another access to it.
fn switch_to_version_2<R: TransferRing, F: StartupFile>(
    media: FileMedia<R>,
    file: &F,
    config: &DeviceConfig,
    start: StartTime,
    progress: &mut dyn FnMut(OpenProgress),
) -> Result<SwitchedFile, UpgradeError> {
    let upgrade = FileUpgrade::new(&media, file).ok_or(UpgradeError::NotVersion1)?;
    match upgrade.surplus_bytes()? {
        0 => {}
        bytes => return Err(UpgradeError::TooLong { bytes }),
    }
    let mut now = start.now;
    let reason = |error: OpenError<_>| error.reason;
    let (mut ftl, recovered, _) = recover_readable(media, config, &mut now, progress).map_err(reason)?;
    ftl.set_wall(start.wall);
    let epoch = ftl.blocks().order_next() >> EPOCH_SHIFT;
    // From here on a page of version 1 must prove itself as it must in a file of version 2.
    ftl.set_version_1_below(epoch << EPOCH_SHIFT);
    let mut found = MediumInspection {
        unreadable_blocks: recovered.unknown_blocks,
        opening_losses: recovered.unreadable,
        ..MediumInspection::default()
    };
    verify(&mut ftl, &mut found, &mut BTreeSet::new(), &mut now, progress).map_err(OpenReason::from)?;
    let damage = damage_of(&found, recovered.lost_records.len() as u64, ftl.last_sequence().0);
    if damage.has_loss() && config.accept_loss != Some(damage.digest) {
        return Err(UpgradeError::Damaged { damage, accepted: config.accept_loss });
    }
    let root = write_checkpoint(&mut ftl, &upgrade, epoch, progress)?;
    let [tail, front] = commit_records(&ftl, &upgrade, epoch, root);
    upgrade.write_tail(&tail).map_err(UpgradeError::Unchanged)?;
    upgrade.switch(&front)?;
    let records = found.namespaces.iter().map(|namespace| namespace.records).sum();
    Ok(SwitchedFile { records, damage })
}

/// Returns the damage, with a digest that names it in this state of the medium.
fn damage_of(found: &MediumInspection, lost_records: u64, sequence: u64) -> UpgradeDamage {
    let pages = found.opening_losses.pages.len() as u64;
    let blocks = u64::from(found.unreadable_blocks);
    let counts = [sequence, found.faults.count, lost_records, pages, blocks, found.opening_losses.digest.0];
    let places = found.faults.first.iter().map(|(place, _)| (place.page.index() << 18 | place.offset) as u64);
    let digest = LossDigest::of(counts.into_iter().chain(places));
    UpgradeDamage { records: found.faults.count, lost_records, pages, blocks, digest }
}

/// Returns the records of the upgrade for a cell behind the blocks and one in front of them: a commit without pages, which
/// names the checkpoint.
fn commit_records<R: TransferRing, F: StartupFile>(
    ftl: &RecoveringFtl<FileMedia<R>>,
    upgrade: &FileUpgrade<'_, F>,
    epoch: u64,
    root: CheckpointRoot,
) -> [CellRecord; 2] {
    let end = Prefix { tick: Tick::before_epoch(epoch), sequence: ftl.last_sequence() };
    [1, 2].map(|number| {
        let record = CommitRecord {
            kind: CommitKind::Closed,
            number,
            epoch,
            end,
            durable: end,
            accepted: Prefix::default(),
            namespaces: 0,
            root,
            epoch_ends: Vec::new(),
            health: None,
        };
        let mut cell = [0; CELL_BYTES];
        record.encode(&mut cell, upgrade.traits().checksum_seed);
        (upgrade.traits().cell_of(number), cell)
    })
}

/// The rest of version 1 after its records were moved.
struct MovedRecords {
    /// Blocks that are left.
    blocks_left: u32,
    /// True if a checkpoint without a block of version 1 is durable.
    is_done: bool,
}

impl<M: Media> SsdDevice<M> {
    /// Moves every record out of the blocks of version 1, and makes that durable with a checkpoint. Blocks on the media. If it
    /// is interrupted, the device that opens the medium next can go on.
    fn move_out_of_version_1(
        &mut self,
        start: StartTime,
        progress: &mut dyn FnMut(OpenProgress),
    ) -> Result<MovedRecords, MediaError> {
        let StartTime { mut now, wall } = start;
        self.ftl.set_rewrites_version_1(true);
        let moved = self.move_records(&mut now, wall, progress);
        self.ftl.set_rewrites_version_1(false);
        moved?;
        let (before, _) = self.checkpointer.counts();
        self.finish_checkpoint(now, wall)?;
        let (checkpoints, _) = self.checkpointer.counts();
        let blocks_left = narrow(self.ftl.version_1_blocks().count());
        Ok(MovedRecords { blocks_left, is_done: blocks_left == 0 && checkpoints > before })
    }

    fn move_records(
        &mut self,
        now: &mut Nanos,
        wall: UnixMillis,
        progress: &mut dyn FnMut(OpenProgress),
    ) -> Result<(), MediaError> {
        let total = self.ftl.version_1_blocks().count() as u64;
        let (mut oldest, mut done) = (self.ftl.oldest_version_1_block(), 0);
        // On a medium that is too full, collection moves records without end and frees nothing.
        let patience = 2 * self.ftl.blocks().len() as u64;
        let mut order_max = self.ftl.blocks().order_next() + patience;
        while oldest.is_some() && self.ftl.blocks().order_next() <= order_max {
            if self.ftl.next_version_1_victim().is_none() {
                self.ftl.request_barrier();
            }
            let moved = self.poll(*now, wall);
            if let Some(error) = self.ftl.failure().or(self.ftl.lack_of_space()) {
                return Err(error);
            }
            let next = self.ftl.oldest_version_1_block();
            if next != oldest {
                oldest = next;
                done += 1;
                order_max = self.ftl.blocks().order_next() + patience;
                progress(OpenProgress { stage: "move", done: done.min(total), total });
            }
            if moved {
                continue;
            }
            if self.ftl.media().in_flight() > 0 {
                *now = self.ftl.media_mut().wait(*now);
            } else if let Some(at) = self.next_deadline().filter(|at| at > now) {
                *now = self.ftl.media_mut().wait_until(*now, at);
            } else {
                // Nothing can be moved: the rest stays, and is served.
                break;
            }
        }
        Ok(())
    }
}
