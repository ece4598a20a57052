//! Opens a device: recovery, then the cleanup that must precede the first command.
//!
//! Input: a medium, and the time. Output: a device that accepts commands, or the medium with the reason of the failure.

use super::SsdDevice;
use crate::config::{DeviceConfig, LossDigest};
use crate::engine::recovery::{Base, Recovered, is_readable_now, recover};
use crate::ftl::recovering::RecoveringFtl;
use crate::limits::BLOCKS_MIN;
use crate::media::geometry::{BLOCKS_MAX, PAGES_PER_BLOCK};
use crate::media::unreadable::UnreadablePages;
use crate::media::{Media, MediaError};
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

/// The progress of opening or inspecting a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenProgress {
    /// The stage: `survey`, `checkpoint`, `scan`, `replay`, `clean up`, `verify` or `compare`.
    pub stage: &'static str,
    /// Steps done in this stage.
    pub done: u64,
    /// Steps of this stage in total.
    pub total: u64,
}

/// The state of the first page of a new epoch.
enum StampPageState {
    Wanted,
    Requested,
    Durable,
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
                readable += u64::from(is_readable_now(&mut ftl.reading(failed.need).0, failed.page, now)?);
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
        let mut incomplete = recovered.incomplete;
        incomplete.blocks.retain(|block| ftl.blocks().get(*block).order != 0);
        let mut device = Self::from_ftl(ftl.into_ftl(incomplete), &config);
        device.opening_reads = reads;
        device.checkpointer.resume(
            recovered.checkpoint_blocks,
            recovered.checkpoint_next,
            recovered.start_order.max(1),
        );
        match device.clean_up(now, start.wall, progress) {
            Ok(()) => {
                device.resume_sanitize();
                Ok(device)
            }
            Err(error) => Err(OpenError { media: device.ftl.into_media(), reason: error.into() }),
        }
    }

    /// Waits for the medium, or for the time at which a read is repeated while nothing is in flight.
    fn wait_for_media(&mut self, now: Nanos) -> Nanos {
        let retry_at = self.ftl.victim_retry_at();
        let media = self.ftl.media_mut();
        match retry_at {
            Some(at) if media.in_flight() == 0 => media.wait_until(now, at),
            _ => media.wait(now),
        }
    }

    /// Makes the recovered data durable, erases what recovery discarded, and prepares blocks to write to.
    fn clean_up(
        &mut self,
        mut now: Nanos,
        wall: UnixMillis,
        progress: &mut dyn FnMut(OpenProgress),
    ) -> Result<(), MediaError> {
        // A killed process may have left bytes in the kernel that are not on the medium: served data must be durable.
        self.ftl.request_flush();
        // The first page of the new epoch names the accepted blocks. Nothing may be erased or served until it is
        // durable: from then on no later recovery accepts a block that this one discarded.
        let mut witness = StampPageState::Wanted;
        let mut done = 0;
        loop {
            let moved = self.poll(now, wall);
            if let Some(error) = self.ftl.failure().or(self.ftl.lack_of_space()) {
                return Err(error);
            }
            let settled = self.ftl.commit().is_idle() && !self.ftl.commit().is_due();
            match witness {
                StampPageState::Wanted if settled && self.ftl.request_stamp_page() => {
                    witness = StampPageState::Requested;
                }
                StampPageState::Requested if settled => {
                    self.ftl.permit_collection();
                    witness = StampPageState::Durable;
                }
                StampPageState::Durable
                    if settled && !self.ftl.is_cleaning_up() && self.ftl.blocks().ready_count() > 0 =>
                {
                    return Ok(());
                }
                _ => {}
            }
            done += 1;
            progress(OpenProgress { stage: "clean up", done, total: done });
            if !moved {
                now = self.wait_for_media(now);
            }
        }
    }
}
