//! The three tiers behind one interface, for requests of any size.
//!
//! Input: requests of any length. Output: a slot of the static tier, memory of the pool, memory pinned for the request,
//! or the caller's own in place. Invariant: the length and the [`Choice`] alone decide which.
//!
//! # What this does not do
//! Staged writes keep their order among themselves. Overlapping requests in flight in different tiers are not ordered,
//! as on any NVMe queue: a caller that needs an order waits for the first to complete.

use super::calibration::Choice;
use super::dynamic::{DynamicError, Pinnable, Pinned};
use super::staging::{ReadStart, SlotId, StageError, Staging, StagingConfig, StagingConfigError};
use super::{Pool, PoolError, Request, Tier};
use crate::buffer::Payload;
use headwater_host::clock::Nanos;
use headwater_host::foreign::{Foreign, MapError};
use headwater_host::region::Region;
use std::ops::DerefMut;

/// The reason why a request was not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DoorError {
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
pub enum Write<M: Pinnable = Region> {
    /// Copied to a slot, which [`FrontDoor::staging`] drains.
    Staged(SlotId),
    /// Copied to memory of the pool: lend it to the device.
    Pooled(Payload),
    /// Copied to memory pinned for this request: lend it to the device.
    Pinned(Pinned<Region>),
    /// The caller's own memory: lend it to the device.
    Imported(Pinned<M>),
}

/// A started read: the memory into which the device writes the bytes.
#[derive(Debug)]
pub enum Read {
    /// In a slot, unless all bytes were staged.
    Small(ReadStart),
    /// In memory of the pool.
    Pooled(Payload),
    /// In memory pinned for this request.
    Pinned(Pinned<Region>),
}

/// All three tiers of one pool, for one owner: the static tier belongs to a queue, as its slots do.
#[derive(Debug)]
pub struct FrontDoor {
    pool: Pool,
    choice: Choice,
    staging: Staging<Pinned<Foreign>>,
}

impl FrontDoor {
    /// Opens the tiers, and pins the blocks of the static tier for the lifetime of the value. The pool's cap counts
    /// them.
    ///
    /// # Errors
    /// [`DoorError`]: an invalid block configuration, no memory for the blocks, or no permission to pin them.
    pub fn open(pool: Pool, choice: Choice, config: &StagingConfig) -> Result<Self, DoorError> {
        let block = |bytes| {
            let memory = Foreign::anonymous(bytes)?;
            pool.pin_as(Tier::Static, memory).map_err(|(_, error)| DoorError::from(error))
        };
        let staging = Staging::open(config, block)?;
        Ok(Self { pool, choice, staging })
    }

    /// Returns the tier for a request of `bytes` bytes.
    #[must_use]
    pub fn tier(&self, bytes: usize) -> Tier {
        match self.choice.borders {
            borders if bytes <= borders.small_max => Tier::Static,
            borders if bytes < borders.large_min => Tier::Pool,
            _ => Tier::Dynamic,
        }
    }

    /// Starts a write by copying `bytes`.
    ///
    /// # Errors
    /// [`DoorError`] of the tier; no write is started.
    pub fn write(&mut self, now: Nanos, offset: u64, bytes: &[u8], tag: u64) -> Result<Write, DoorError> {
        match self.tier(bytes.len()) {
            Tier::Static => Ok(Write::Staged(self.staging.stage(now, offset, bytes, tag)?)),
            Tier::Pool => Ok(Write::Pooled(self.copied(bytes)?)),
            Tier::Dynamic => {
                let mut memory = self.pool.pin_for_request(bytes.len())?;
                memory.copy_from_slice(bytes);
                Ok(Write::Pinned(memory))
            }
        }
    }

    /// Starts a write of memory that the caller provides: used in place where that was measured to be cheaper, else
    /// copied. Copied memory is returned at once, memory used in place by [`Pinned::into_memory`].
    ///
    /// # Errors
    /// [`DoorError`] of the tier, with the memory; no write is started.
    pub fn write_owned<M>(
        &mut self,
        now: Nanos,
        offset: u64,
        memory: M,
        tag: u64,
    ) -> Result<(Write<M>, Option<M>), (M, DoorError)>
    where
        M: Pinnable + DerefMut<Target = [u8]>,
    {
        if self.choice.import_min.is_some_and(|least| memory.len() >= least) {
            return match self.pool.import(memory) {
                Ok(pinned) => Ok((Write::Imported(pinned), None)),
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
    ) -> Result<(Write<M>, Option<M>), (M, DoorError)>
    where
        M: Pinnable + DerefMut<Target = [u8]>,
    {
        let write = match self.write(now, offset, &memory, tag) {
            Ok(Write::Staged(slot)) => Write::Staged(slot),
            Ok(Write::Pooled(payload)) => Write::Pooled(payload),
            Ok(Write::Pinned(pinned) | Write::Imported(pinned)) => Write::Pinned(pinned),
            Err(error) => return Err((memory, error)),
        };
        Ok((write, Some(memory)))
    }

    /// Starts a read of as many bytes as `into` has. A small read fills `into`, now or by [`Staging::finish_read`]; a
    /// larger one returns memory for the device, from which the caller takes the bytes.
    ///
    /// # Errors
    /// [`DoorError`] of the tier; no read is started.
    pub fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<Read, DoorError> {
        match self.tier(into.len()) {
            Tier::Static => Ok(Read::Small(self.staging.read(offset, into)?)),
            Tier::Pool => Ok(Read::Pooled(self.pool.allocate(&Request::bytes(into.len()))?)),
            Tier::Dynamic => Ok(Read::Pinned(self.pool.pin_for_request(into.len())?)),
        }
    }

    /// Returns the static tier, to be drained and completed. Apply bytes staged in it over the result of larger reads
    /// with [`Staging::overlay`].
    pub fn staging(&mut self) -> &mut Staging<Pinned<Foreign>> {
        &mut self.staging
    }

    /// Returns the pool.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns the thresholds in use.
    #[must_use]
    pub fn choice(&self) -> Choice {
        self.choice
    }

    fn copied(&self, bytes: &[u8]) -> Result<Payload, PoolError> {
        let mut payload = self.pool.allocate(&Request::bytes(bytes.len()))?;
        let mut rest = bytes;
        for piece in payload.pieces_mut() {
            let (now, later) = rest.split_at(piece.len().min(rest.len()));
            piece[..now.len()].copy_from_slice(now);
            rest = later;
        }
        Ok(payload)
    }
}
