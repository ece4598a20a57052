//! The three tiers behind one interface, for requests of any size.
//!
//! Input: requests of any length. Output: a slot of the static tier, memory of the pool, memory pinned for the request,
//! or the caller's own in place. Invariant: the length and the [`TierChoice`] alone decide which.
//!
//! # What this does not do
//! Staged writes keep their order among themselves. Overlapping requests in flight in different tiers are not ordered,
//! as on any NVMe queue: a caller that needs an order waits for the first to complete.

use super::calibration::TierChoice;
use super::dynamic::{DynamicError, PinnableMemory, PinnedMemory};
use super::staging::{ReadStart, SlotId, StageError, StagingConfig, StagingConfigError, StagingTier};
use super::{PinTier, Pool, PoolError, PoolRequest};
use crate::buffer::PoolAllocation;
use headwater_host::clock::Nanos;
use headwater_host::mapped_region::MappedRegion;
use headwater_host::shared_memory::{MapError, SharedMemory};
use std::ops::DerefMut;

/// The reason why a request was not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TieredError {
    /// The static tier refused.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// The pool refused.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The dynamic tier refused.
    #[error(transparent)]
    Dynamic(#[from] DynamicError),
    /// The configuration of the static tier is not valid.
    #[error(transparent)]
    Config(#[from] StagingConfigError),
    /// The blocks of the static tier could not be mapped.
    #[error(transparent)]
    Map(#[from] MapError),
}

/// A started write: the memory from which the device reads its bytes.
#[derive(Debug)]
pub enum TieredWrite<M: PinnableMemory = MappedRegion> {
    /// Copied to a slot, which [`TieredMemory::staging`] drains.
    Staged(SlotId),
    /// Copied to memory of the pool: lend it to the device.
    Pooled(PoolAllocation),
    /// Copied to memory pinned for this request: lend it to the device.
    Pinned(PinnedMemory<MappedRegion>),
    /// The caller's own memory: lend it to the device.
    Imported(PinnedMemory<M>),
}

/// A started read: the memory into which the device writes the bytes.
#[derive(Debug)]
pub enum TieredRead {
    /// In a slot, unless all bytes were staged.
    Small(ReadStart),
    /// In memory of the pool.
    Pooled(PoolAllocation),
    /// In memory pinned for this request.
    Pinned(PinnedMemory<MappedRegion>),
}

/// All three tiers of one pool, for one owner: the static tier belongs to a queue, as its slots do.
#[derive(Debug)]
pub struct TieredMemory {
    pool: Pool,
    choice: TierChoice,
    staging: StagingTier<PinnedMemory<SharedMemory>>,
}

impl TieredMemory {
    /// Opens the tiers, and pins the blocks of the static tier for the lifetime of the value. The pool's cap counts
    /// them.
    ///
    /// # Errors
    /// [`TieredError`]: an invalid block configuration, no memory for the blocks, or no permission to pin them.
    pub fn open(pool: Pool, choice: TierChoice, config: &StagingConfig) -> Result<Self, TieredError> {
        let block = |bytes| {
            let memory = SharedMemory::anonymous(bytes)?;
            pool.pin_as(PinTier::Static, memory).map_err(|(_, error)| TieredError::from(error))
        };
        let staging = StagingTier::open(config, block)?;
        Ok(Self { pool, choice, staging })
    }

    /// Returns the tier for a request of `bytes` bytes.
    #[must_use]
    pub fn tier(&self, bytes: usize) -> PinTier {
        match self.choice.thresholds {
            borders if bytes <= borders.small_max => PinTier::Static,
            borders if bytes < borders.large_min => PinTier::Pool,
            _ => PinTier::Dynamic,
        }
    }

    /// Starts a write by copying `bytes`.
    ///
    /// # Errors
    /// [`TieredError`] of the tier; no write is started.
    pub fn write(
        &mut self,
        now: Nanos,
        offset: u64,
        bytes: &[u8],
        tag: u64,
    ) -> Result<TieredWrite, TieredError> {
        match self.tier(bytes.len()) {
            PinTier::Static => Ok(TieredWrite::Staged(self.staging.stage(now, offset, bytes, tag)?)),
            PinTier::Pool => Ok(TieredWrite::Pooled(self.copied(bytes)?)),
            PinTier::Dynamic => {
                let mut memory = self.pool.pin_for_request(bytes.len())?;
                memory.copy_from_slice(bytes);
                Ok(TieredWrite::Pinned(memory))
            }
        }
    }

    /// Starts a write of memory that the caller provides: used in place where that was measured to be cheaper, else
    /// copied. Copied memory is returned at once, memory used in place by [`PinnedMemory::into_memory`].
    ///
    /// # Errors
    /// [`TieredError`] of the tier, with the memory; no write is started.
    pub fn write_owned<M>(
        &mut self,
        now: Nanos,
        offset: u64,
        memory: M,
        tag: u64,
    ) -> Result<(TieredWrite<M>, Option<M>), (M, TieredError)>
    where
        M: PinnableMemory + DerefMut<Target = [u8]>,
    {
        if self.choice.import_min.is_some_and(|least| memory.len() >= least) {
            return match self.pool.import(memory) {
                Ok(pinned) => Ok((TieredWrite::Imported(pinned), None)),
                // Misaligned memory can still be copied.
                Err((memory, DynamicError::Misaligned { .. })) => self.write_copy(now, offset, memory, tag),
                Err((memory, error)) => Err((memory, error.into())),
            };
        }
        self.write_copy(now, offset, memory, tag)
    }

    fn write_copy<M>(
        &mut self,
        now: Nanos,
        offset: u64,
        memory: M,
        tag: u64,
    ) -> Result<(TieredWrite<M>, Option<M>), (M, TieredError)>
    where
        M: PinnableMemory + DerefMut<Target = [u8]>,
    {
        let write = match self.write(now, offset, &memory, tag) {
            Ok(TieredWrite::Staged(slot)) => TieredWrite::Staged(slot),
            Ok(TieredWrite::Pooled(payload)) => TieredWrite::Pooled(payload),
            Ok(TieredWrite::Pinned(pinned) | TieredWrite::Imported(pinned)) => TieredWrite::Pinned(pinned),
            Err(error) => return Err((memory, error)),
        };
        Ok((write, Some(memory)))
    }

    /// Starts a read of as many bytes as `into` has. A small read fills `into`, now or by [`StagingTier::finish_read`]; a
    /// larger one returns memory for the device, from which the caller takes the bytes.
    ///
    /// # Errors
    /// [`TieredError`] of the tier; no read is started.
    pub fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<TieredRead, TieredError> {
        match self.tier(into.len()) {
            PinTier::Static => Ok(TieredRead::Small(self.staging.read(offset, into)?)),
            PinTier::Pool => Ok(TieredRead::Pooled(self.pool.allocate(&PoolRequest::bytes(into.len()))?)),
            PinTier::Dynamic => Ok(TieredRead::Pinned(self.pool.pin_for_request(into.len())?)),
        }
    }

    /// Returns the static tier, to be drained and completed. Apply bytes staged in it over the result of larger reads
    /// with [`StagingTier::overlay`].
    pub fn staging(&mut self) -> &mut StagingTier<PinnedMemory<SharedMemory>> {
        &mut self.staging
    }

    /// Returns the pool.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns the thresholds in use.
    #[must_use]
    pub fn choice(&self) -> TierChoice {
        self.choice
    }

    fn copied(&self, bytes: &[u8]) -> Result<PoolAllocation, PoolError> {
        let mut payload = self.pool.allocate(&PoolRequest::bytes(bytes.len()))?;
        let mut rest = bytes;
        for piece in payload.pieces_mut() {
            let (now, later) = rest.split_at(piece.len().min(rest.len()));
            piece[..now.len()].copy_from_slice(now);
            rest = later;
        }
        Ok(payload)
    }
}
