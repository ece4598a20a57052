//! The front door: one place to ask, whatever the size.
//!
//! In: requests of any length. Out: a slot of the static tier, memory of the pool, memory pinned for the request, or the
//! caller's own in place. Invariant: which of them it is depends on the length and the [`Choice`] alone.
//!
//! # What this does not do
//! Staged writes keep their order among themselves. Between tiers, requests that overlap and are under way together have
//! none, as on any NVMe queue: who needs one waits for the first to complete.

use super::calibration::Choice;
use super::dynamic::{DynamicError, Pinnable, Pinned};
use super::staging::{ReadStart, SlotId, StageError, Staging, StagingConfig, StagingConfigError};
use super::{Pool, PoolError, Request, Tier};
use crate::buffer::Payload;
use headwater_host::clock::Nanos;
use headwater_host::foreign::{Foreign, MapError};
use headwater_host::region::Region;
use std::ops::DerefMut;

/// Why a request was not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DoorError {
    /// By the static tier.
    #[error(transparent)]
    Stage(#[from] StageError),
    /// By the pool.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// By the dynamic tier.
    #[error(transparent)]
    Dynamic(#[from] DynamicError),
    /// The static tier cannot be of this shape.
    #[error(transparent)]
    Config(#[from] StagingConfigError),
    /// There was no memory for the blocks of the static tier.
    #[error(transparent)]
    Map(#[from] MapError),
}

/// A write on its way: where the device finds its bytes.
#[derive(Debug)]
pub enum Write<M: Pinnable = Region> {
    /// Copied to a slot, which [`FrontDoor::staging`] drains.
    Staged(SlotId),
    /// Copied to memory of the pool: lend it to the device.
    Pooled(Payload),
    /// Copied to memory pinned for this request: lend it to the device.
    Pinned(Pinned<Region>),
    /// The caller's memory where it was: lend it to the device.
    Imported(Pinned<M>),
}

/// A read on its way: where the device puts the bytes.
#[derive(Debug)]
pub enum Read {
    /// In a slot, unless everything was staged.
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
    /// Opens the door, and pins the blocks of the static tier for as long as it is open. The pool's cap counts them.
    ///
    /// # Errors
    /// [`DoorError`]: blocks that cannot be, no memory for them, or no leave to pin it.
    pub fn open(pool: Pool, choice: Choice, config: &StagingConfig) -> Result<Self, DoorError> {
        let block = |bytes| {
            let memory = Foreign::anonymous(bytes)?;
            pool.pin_as(Tier::Static, memory).map_err(|(_, error)| DoorError::from(error))
        };
        let staging = Staging::open(config, block)?;
        Ok(Self { pool, choice, staging })
    }

    /// The tier that serves a request of so many bytes.
    #[must_use]
    pub fn tier(&self, bytes: usize) -> Tier {
        match self.choice.borders {
            borders if bytes <= borders.small_max => Tier::Static,
            borders if bytes < borders.large_min => Tier::Pool,
            _ => Tier::Dynamic,
        }
    }

    /// A write of bytes that stay the caller's: they are copied.
    ///
    /// # Errors
    /// [`DoorError`] of the tier; nothing is on its way.
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

    /// A write of memory that the caller gives: used in place where that was measured to be cheaper, else copied. Memory
    /// that was copied comes back at once, the other by [`Pinned::into_memory`].
    ///
    /// # Errors
    /// [`DoorError`] of the tier, with the memory; nothing is on its way.
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
                // Such memory can still be copied.
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

    /// A read of as many bytes as `into` has. A small one fills it, now or by [`Staging::finish_read`]; others bring memory
    /// for the device, from which the caller takes the bytes.
    ///
    /// # Errors
    /// [`DoorError`] of the tier; nothing is on its way.
    pub fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<Read, DoorError> {
        match self.tier(into.len()) {
            Tier::Static => Ok(Read::Small(self.staging.read(offset, into)?)),
            Tier::Pool => Ok(Read::Pooled(self.pool.allocate(&Request::bytes(into.len()))?)),
            Tier::Dynamic => Ok(Read::Pinned(self.pool.pin_for_request(into.len())?)),
        }
    }

    /// The static tier, to be drained and answered. Bytes staged in it lie over what larger reads bring:
    /// [`Staging::overlay`].
    pub fn staging(&mut self) -> &mut Staging<Pinned<Foreign>> {
        &mut self.staging
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// What decides.
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
