//! Opens a device: recovery, then the cleanup that must precede the first command.
//!
//! Input: a medium, and the time. Output: a device that accepts commands, or the medium with the reason of the failure.

use super::SsdDevice;
use crate::config::{DeviceConfig, LossDigest};
use crate::engine::inspection::{DoubtfulNamespace, LostRun, doubtful};
use crate::engine::progress::OpenProgress;
use crate::engine::recovery::{
    Base, LostPages, Recovered, RecoveryError, is_readable_now, recover, run_alone,
};
use crate::ftl::recovering::RecoveringFtl;
use crate::limits::BLOCKS_MIN;
use crate::log::commit_record::EPOCH_ENDS_MAX;
use crate::log::commit_records::RECORDS_PER_COMMIT;
use crate::media::geometry::{BLOCKS_MAX, PAGES_PER_BLOCK};
use crate::media::unreadable::{PageNeed, UnreadablePages};
use crate::media::{CellNumber, Media, MediaError, MediaOp};
use crate::mutant::{Mutant, mutant};
use headwater_dma::frame::MediaFrame;
use headwater_dma::pool::{Pool, PoolError};
use headwater_host::clock::{Nanos, UnixMillis};
use std::fmt;

/// Minimum of frames: for a block under collection, open pages, reads and a record of 64 KiB.
const FRAMES_MIN: usize = 4 * PAGES_PER_BLOCK;

/// The time at which a device opens, on both clocks.
#[derive(Clone, Copy, Debug)]
pub struct StartTime {
    /// Monotonic time.
    pub now: Nanos,
    /// Wall time.
    pub wall: UnixMillis,
}

/// The reason why a device could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenReason {
    /// The medium has too few blocks to collect anything, or more than addresses can name.
    #[error("a medium of {blocks} blocks cannot be used: {min} to {max} are needed")]
    Size {
        /// Blocks of the medium.
        blocks: u32,
        /// Minimum of blocks.
        min: u32,
        /// Maximum of blocks.
        max: u32,
    },
    /// The configured device DRAM is too small.
    #[error("{frames} frames of device memory are too few: at least {min} are needed")]
    Memory {
        /// Frames configured.
        frames: usize,
        /// Minimum of frames.
        min: usize,
    },
    /// The pool that provides the frames has too little memory left.
    #[error("the memory pool has no room for the {min} frames that a device needs: raise its cap")]
    PoolUsedUp {
        /// Minimum of frames.
        min: usize,
    },
    /// The process has no pool.
    #[error("there is no pool for the device's memory: {0}")]
    Pool(#[from] PoolError),
    /// The medium failed.
    #[error(transparent)]
    Media(#[from] MediaError),
    /// The medium does not prove what it holds.
    #[error(transparent)]
    Recovery(RecoveryError),
    /// Pages that are needed cannot be read; nothing on the medium was changed.
    #[error(
        "{}; nothing was changed: check the disk and start again, because a later start may succeed, or give these pages \
         up with --accept-loss={}{}", report, report.digest, other_digest(*accepted)
    )]
    Unreadable {
        /// The pages, and the digest that accepts their loss.
        report: UnreadablePages,
        /// The digest that was accepted, of another loss.
        accepted: Option<LossDigest>,
    },
}

impl From<RecoveryError> for OpenReason {
    fn from(error: RecoveryError) -> Self {
        match error {
            RecoveryError::Media(error) => Self::Media(error),
            error => Self::Recovery(error),
        }
    }
}

fn other_digest(accepted: Option<LossDigest>) -> String {
    accepted.map_or(String::new(), |other| format!(" (the accepted loss {other} is another one)"))
}

/// The reads of an opening that failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpeningReads {
    /// Pages that could be read only when they were asked for again.
    pub repeated: u64,
    /// The pages whose loss was accepted.
    pub accepted: Option<UnreadablePages>,
}

/// The pages and cells that an opening found lost or damaged and went on without.
#[derive(Clone, Debug, Default)]
pub struct OpeningLosses {
    /// Pages of the log that were durable and are lost: the keys that they could hold are answered with errors.
    pub(crate) lost: Vec<LostPages>,
    /// The digest by which an operator accepts that keys are answered without what is lost; `None` if nothing is in doubt.
    pub doubt: Option<LossDigest>,
    /// The digest of the doubt that this opening ended, because the operator accepted it.
    pub accepted: Option<LossDigest>,
    /// The namespaces in doubt, also if the operator ended that.
    pub doubtful: Vec<DoubtfulNamespace>,
    /// Commit cells without an intact record; other cells held the same.
    pub damaged_cells: Vec<CellNumber>,
    /// Pages of the checkpoint that are not intact; other copies, or the log, held the same.
    pub damaged_checkpoint_pages: u64,
}

impl OpeningLosses {
    /// Returns the runs of lost pages, with the namespaces of which they could hold records.
    #[must_use]
    pub fn runs(&self) -> Vec<LostRun> {
        self.lost.iter().map(LostRun::of).collect()
    }

    /// Returns the number of damaged cells and pages of the checkpoint of which other copies hold the same.
    #[must_use]
    pub fn damaged_copies(&self) -> u64 {
        self.damaged_cells.len() as u64 + self.damaged_checkpoint_pages
    }

    /// Returns the number of pages of the log that are lost.
    #[must_use]
    pub fn lost_pages(&self) -> u64 {
        self.lost.iter().map(LostPages::pages).sum()
    }
}

/// Recoveries of one opening: after each of them the pages that it could not read are asked for once more, and it is
/// repeated if one of them can be read.
const RECOVERIES_MAX: u32 = 3;

/// Recovers a medium from its checkpoint, as often as pages that could not be read become readable. Also returns the
/// number of pages that were read only when repeated.
pub(crate) fn recover_readable<M: Media>(
    mut media: M,
    config: &DeviceConfig,
    now: &mut Nanos,
    progress: &mut dyn FnMut(OpenProgress),
) -> Result<(RecoveringFtl<M>, Recovered, u64), OpenError<M>> {
    let mut repeated = 0;
    for attempt in 1.. {
        let mut ftl = build_ftl(media, config)?;
        let result = recover(&mut ftl, config, Base::Checkpoint, now, progress).and_then(|recovered| {
            let mut readable = 0;
            for failed in recovered.unreadable.pages.iter().filter(|failed| failed.errno.is_some()) {
                let mut source = ftl.reading(failed.need).0;
                readable += u64::from(is_readable_now(&mut source, failed.page, now)?);
            }
            Ok((recovered, readable))
        });
        match result {
            Ok((recovered, readable)) => {
                repeated += ftl.failures().passed();
                if readable == 0 || attempt == RECOVERIES_MAX {
                    return Ok((ftl, recovered, repeated));
                }
                repeated += readable;
            }
            Err(error) => return Err(OpenError { media: ftl.into_media(), reason: error.into() }),
        }
        media = ftl.into_media();
    }
    unreachable!("the last attempt returned")
}

/// Returns the reads of an opening, or refuses it because of pages whose loss is not accepted.
fn accept_loss(
    recovered: &mut Recovered,
    repeated: u64,
    accepted: Option<LossDigest>,
) -> Result<OpeningReads, OpenReason> {
    let report = std::mem::take(&mut recovered.unreadable);
    if report.pages.is_empty() {
        return Ok(OpeningReads { repeated, accepted: None });
    }
    if accepted == Some(report.digest) {
        return Ok(OpeningReads { repeated, accepted: Some(report) });
    }
    Err(OpenReason::Unreadable { report, accepted })
}

/// A failure to open a device, with its medium.
pub struct OpenError<M> {
    /// The medium, in its present state.
    pub media: M,
    /// The reason.
    pub reason: OpenReason,
}

impl<M> fmt::Debug for OpenError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenError").field("reason", &self.reason).finish_non_exhaustive()
    }
}

impl<M> fmt::Display for OpenError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)
    }
}

impl<M> std::error::Error for OpenError<M> {}

/// Builds the translation layer over a medium, with the minimum of frames reserved.
pub(crate) fn build_ftl<M: Media>(media: M, config: &DeviceConfig) -> Result<RecoveringFtl<M>, OpenError<M>> {
    let pool = match check_sizes(&media, config) {
        Ok(pool) => pool,
        Err(reason) => return Err(OpenError { media, reason }),
    };
    let mut ftl = RecoveringFtl::new(media, config, &pool);
    if ftl.reserve_frames(FRAMES_MIN) {
        return Ok(ftl);
    }
    Err(OpenError { media: ftl.into_media(), reason: OpenReason::PoolUsedUp { min: FRAMES_MIN } })
}

/// Checks the sizes of the medium and of device DRAM, and returns the pool that provides the frames.
fn check_sizes<M: Media>(media: &M, config: &DeviceConfig) -> Result<Pool, OpenReason> {
    let blocks = media.geometry().blocks;
    if !(BLOCKS_MIN..=BLOCKS_MAX).contains(&blocks) {
        return Err(OpenReason::Size { blocks, min: BLOCKS_MIN, max: BLOCKS_MAX });
    }
    if config.frames_max < FRAMES_MIN {
        return Err(OpenReason::Memory { frames: config.frames_max, min: FRAMES_MIN });
    }
    Ok(match &config.pool {
        Some(pool) => pool.clone(),
        None => Pool::of_process()?,
    })
}

impl<M: Media> SsdDevice<M> {
    /// Opens a medium, blank or used, and recovers its contents. Blocks on the media.
    ///
    /// # Errors
    /// [`OpenError`] returns the medium with the reason.
    pub fn open(
        media: M,
        config: DeviceConfig,
        start: StartTime,
        progress: &mut dyn FnMut(OpenProgress),
    ) -> Result<Self, OpenError<M>> {
        let mut now = start.now;
        let (mut ftl, mut recovered, repeated) = recover_readable(media, &config, &mut now, progress)?;
        let reads = match accept_loss(&mut recovered, repeated, config.accept_loss) {
            Ok(reads) => reads,
            Err(reason) => return Err(OpenError { media: ftl.into_media(), reason }),
        };
        ftl.count_opening_reads(reads.accepted.as_ref());
        let (doubtful, doubt) = doubtful(&ftl);
        let is_accepted = reads.accepted.is_some() || doubt.is_some() && doubt == config.accept_loss;
        if is_accepted {
            ftl.accept_doubts();
        }
        if !ftl.is_read_only()
            && let Err(error) = write_opening(&mut ftl, &mut now)
        {
            return Err(OpenError { media: ftl.into_media(), reason: error.into() });
        }
        let mut device = Self::from_ftl(ftl.into_ftl(recovered.passed_over), &config);
        device.opening_reads = reads;
        device.opening_losses = OpeningLosses {
            lost: recovered.lost,
            doubt: doubt.filter(|_| !is_accepted),
            accepted: doubt.filter(|_| is_accepted),
            doubtful,
            damaged_cells: recovered.damaged_cells,
            damaged_checkpoint_pages: recovered.damaged_checkpoint.pages(),
        };
        let root = recovered.log.root;
        // No number on the medium is given out again: blocks of two checkpoints with one number could not be told apart.
        let number = root.number.max(recovered.log.checkpoint_number) + 1;
        device.checkpointer.resume(recovered.checkpoint_blocks, number, root.start_order);
        device.ftl.set_wall(start.wall);
        if is_accepted {
            // Behind the window of a new checkpoint no later opening misses the pages again.
            match device.finish_checkpoint(now, start.wall) {
                Ok(done) => now = done,
                Err(error) => return Err(OpenError { media: device.ftl.into_media(), reason: error.into() }),
            }
        } else if device.ftl.epoch_ends() >= EPOCH_ENDS_BEFORE_CHECKPOINT
            || !device.opening_losses.lost.is_empty()
            || device.opening_losses.damaged_checkpoint_pages > 0
        {
            device.checkpointer.request();
        }
        device.now = now;
        device.resume_sanitize();
        Ok(device)
    }
}

/// Ends of epochs in commit records after which an opening requests a checkpoint: a record has room for twice as many.
const EPOCH_ENDS_BEFORE_CHECKPOINT: usize = EPOCH_ENDS_MAX / 2;

/// Makes durable what recovery found, and then that this opening accepted it. Until both are done nothing may be served: a
/// killed process may have left bytes in the kernel that are not on the medium, and a later recovery must accept no less.
fn write_opening<M: Media>(ftl: &mut RecoveringFtl<M>, now: &mut Nanos) -> Result<(), MediaError> {
    let is_volatile = ftl.media().traits().volatile_cache;
    flush(ftl, is_volatile && !mutant(Mutant::OpeningNotFlushed), now)?;
    for _ in usize::from(mutant(Mutant::OpeningRecordOnce))..RECORDS_PER_COMMIT {
        let mut frame = ftl.reading(PageNeed::Checkpoint).0.frames.take().unwrap_or_else(MediaFrame::zeroed);
        let cell = ftl.encode_opened(&mut frame);
        let source = ftl.reading(PageNeed::Checkpoint).0;
        let done = run_alone(source.media, MediaOp::WriteCell { cell, frame }, now);
        if let Some(frame) = done.frame {
            source.frames.put_back(frame);
        }
        done.result?;
    }
    flush(ftl, is_volatile && !mutant(Mutant::OpeningRecordNotFlushed), now)?;
    ftl.release_frames();
    Ok(())
}

fn flush<M: Media>(ftl: &mut RecoveringFtl<M>, wanted: bool, now: &mut Nanos) -> Result<(), MediaError> {
    if wanted {
        run_alone(ftl.reading(PageNeed::Checkpoint).0.media, MediaOp::Flush, now).result?;
    }
    Ok(())
}
