//! Opening a device: recovery, then whatever must be cleaned up before the first command.
//!
//! In: a medium, and the time. Out: a device that serves, or the medium back with the reason why not.

use super::{Device, DeviceConfig};
use crate::limits::BLOCKS_MIN;
use crate::media::geometry::{BLOCKS_MAX, PAGES_PER_BLOCK};
use crate::media::{Media, MediaError};
use crate::recovery::{Base, recover};
use crate::utl::Utl;
use headwater_dma::pool::{Pool, PoolError};
use headwater_host::clock::{Nanos, UnixMillis};
use std::fmt;

/// Fewest frames a device can work with: a block being collected, open pages, reads and a record of 64 KiB.
const FRAMES_MIN: usize = 4 * PAGES_PER_BLOCK;

/// When a device starts.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// Monotonic time.
    pub now: Nanos,
    /// Wall time.
    pub wall: UnixMillis,
}

/// How far opening has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being done: `survey`, `checkpoint`, `scan`, `replay`, `clean up`.
    pub stage: &'static str,
    /// Steps done.
    pub done: u64,
    /// Steps in all.
    pub total: u64,
}

/// How far the first page of an epoch is.
enum Witness {
    Wanted,
    Asked,
    Durable,
}

/// Why a device could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenReason {
    /// The medium has too few blocks to collect anything, or more than addresses can name.
    #[error("a medium of {blocks} blocks cannot be used: {min} to {max} are needed")]
    Size {
        /// Blocks it has.
        blocks: u32,
        /// Fewest.
        min: u32,
        /// Most.
        max: u32,
    },
    /// Too little device DRAM.
    #[error("{frames} frames of device memory are too few: at least {min} are needed")]
    Memory {
        /// Frames configured.
        frames: usize,
        /// Fewest.
        min: usize,
    },
    /// The pool that frames come from has too little memory left.
    #[error("the memory pool has no room for the {min} frames that a device needs: raise its cap")]
    PoolUsedUp {
        /// Fewest frames.
        min: usize,
    },
    /// There is no pool.
    #[error("there is no pool for the device's memory: {0}")]
    Pool(#[from] PoolError),
    /// The medium failed.
    #[error(transparent)]
    Media(#[from] MediaError),
}

/// A device that could not be opened, with its medium.
pub struct OpenError<M> {
    /// The medium, as far as it was changed.
    pub media: M,
    /// Why.
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

/// The layer over a medium, with the frames that it cannot do without; or why the two make no device.
pub(crate) fn layer<M: Media>(media: M, config: &DeviceConfig) -> Result<Utl<M>, OpenError<M>> {
    let pool = match usable(&media, config) {
        Ok(pool) => pool,
        Err(reason) => return Err(OpenError { media, reason }),
    };
    let mut utl = Utl::new(media, config, &pool);
    if utl.dram.secure(FRAMES_MIN) && utl.recovery_frames.secure(1) {
        return Ok(utl);
    }
    Err(OpenError { media: utl.media, reason: OpenReason::PoolUsedUp { min: FRAMES_MIN } })
}

/// Whether a medium and this much device DRAM make a device: where its frames come from, else why not.
fn usable<M: Media>(media: &M, config: &DeviceConfig) -> Result<Pool, OpenReason> {
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

impl<M: Media> Device<M> {
    /// Opens a medium, used or not, and recovers what is on it. Blocks on the media.
    ///
    /// # Errors
    /// [`OpenError`] gives the medium back with the reason.
    pub fn open(
        media: M,
        config: DeviceConfig,
        start: Start,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Self, OpenError<M>> {
        let mut utl = layer(media, &config)?;
        let mut now = start.now;
        let recovered = match recover(&mut utl, &config, Base::Checkpoint, &mut now, progress) {
            Ok(recovered) => recovered,
            Err(error) => {
                return Err(OpenError { media: utl.media, reason: error.into() });
            }
        };
        let mut device = Self::over(utl, &config);
        device.checkpointer.resume(
            recovered.checkpoint_blocks,
            recovered.checkpoint_next,
            recovered.start_order.max(1),
        );
        let mut debris = recovered.debris;
        debris.blocks.retain(|block| device.utl.blocks.get(*block).order != 0);
        device.utl.collector.clean_up(debris);
        match device.settle(now, start.wall, progress) {
            Ok(()) => {
                device.resume_sanitize();
                Ok(device)
            }
            Err(error) => Err(OpenError { media: device.utl.media, reason: error.into() }),
        }
    }

    /// Makes durable what recovery read, erases what it set aside, and has blocks ready to write to.
    fn settle(
        &mut self,
        mut now: Nanos,
        wall: UnixMillis,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), MediaError> {
        // A killed process may have left bytes that the kernel has and the medium not: what is served must be durable.
        self.utl.commit.want_flush();
        // The first page of the new epoch says which blocks were accepted. Only when it is durable may anything be erased
        // or served: then what was passed over can never be mistaken for something that counts.
        let mut witness = Witness::Wanted;
        let mut done = 0;
        loop {
            let moved = self.poll(now, wall);
            if let Some(error) = self.utl.failed {
                return Err(error);
            }
            let settled = self.utl.commit.is_idle() && !self.utl.commit.is_due();
            match witness {
                Witness::Wanted if settled && self.utl.witness() => witness = Witness::Asked,
                Witness::Asked if settled => {
                    self.utl.collector.let_go();
                    witness = Witness::Durable;
                }
                Witness::Durable
                    if settled && !self.utl.collector.is_cleaning_up() && self.utl.blocks.ready() > 0 =>
                {
                    return Ok(());
                }
                _ => {}
            }
            done += 1;
            progress(Progress { stage: "clean up", done, total: done });
            if !moved {
                now = self.utl.media.wait(now);
            }
        }
    }
}
