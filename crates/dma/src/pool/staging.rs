//! The static tier: small requests through blocks that stay pinned for their lifetime (uDMA, section 4.2).
//!
//! Input: small writes and reads with the time, results of the device. Output: slots for the device to write or to
//! fill, and one completion for each. Invariant: a read sees every byte staged before it began, the newest of each; a
//! write reaches the device after every older one that overlaps it; a slot completes separately, with its own result.
//!
//! A write is copied to a slot of the filling block. A batch of slots closes by count, bytes or age, or by a flush, and
//! [`StagingTier::drain`] then hands it out. When a block is full, an empty one replaces it; it is empty again when its
//! slots have completed. If no block is empty, [`StageError::Full`] says when to retry.
//!
//! # What this does not do
//! No I/O and no clock: the caller moves slots to the device and passes the results back. After a failed write, reads
//! return the device's bytes in its range; what the write left there depends on the device.

mod config;
mod memory;
mod reads;
mod visible_writes;
mod writes;

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;

pub use config::{BatchLimits, StageError, StagingConfig, StagingConfigError};
pub use memory::StagingMemory;

use config::StagingShape;
use headwater_host::clock::Nanos;
use headwater_host::width::to_usize;
use reads::ReadSlots;
use writes::WriteSlots;

/// The identifier of a staged write, valid until it has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlotId {
    index: u32,
    generation: u32,
}

/// The identifier of a read in flight at the device, valid until it is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReadId {
    index: u32,
    generation: u32,
}

/// The location of a slot: a block of [`StagingTier::write_memory`] or [`StagingTier::read_memory`], and the offset in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotLocation {
    /// Number of the block.
    pub block: usize,
    /// Offset of the slot in the block, a multiple of 4,096.
    pub at: usize,
}

/// A range of bytes on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRange {
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: usize,
}

/// A write to submit to the device now. Pass its result to [`StagingTier::complete`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainWrite {
    /// Identifier of the write.
    pub slot: SlotId,
    /// Destination on the device.
    pub range: DeviceRange,
    /// Location of its bytes.
    pub location: SlotLocation,
}

/// The start of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadStart {
    /// All bytes were staged: the read is done, and no device access follows.
    Staged,
    /// The device fills a slot; pass its result to [`StagingTier::finish_read`].
    Device {
        /// Identifier of the read.
        read: ReadId,
        /// Range to read from the device.
        range: DeviceRange,
        /// Destination slot.
        location: SlotLocation,
    },
}

/// The completion of a staged write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagedCompletion<E> {
    /// The caller's tag of the write.
    pub tag: u64,
    /// The device's result.
    pub result: Result<(), E>,
}

/// An error for a result whose id is not in flight: never handed out, or completed already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no such request is in flight at the device; complete each request once, with the id returned for it"
)]
pub struct NotWithDevice;

/// The reason why a read returned no bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError<E> {
    /// The id is not in flight.
    #[error(transparent)]
    NotWithDevice(#[from] NotWithDevice),
    /// The buffer has another length than the read. The read is still in flight.
    #[error("a read of {bytes} bytes got a buffer of {given_bytes}; pass one of the length of the read")]
    Length {
        /// Length of the read.
        bytes: usize,
        /// Length of the buffer.
        given_bytes: usize,
    },
    /// The device failed the read. The read is finished.
    #[error("the device failed the read: {0}")]
    Device(E),
}

/// A point in the order of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlushBarrier(u64);

/// Statistics of the static tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StagingStatistics {
    /// Bytes of all blocks, pinned for their lifetime.
    pub pinned_bytes: u64,
    /// Writes staged now.
    pub staged: u64,
    /// Reads in flight at the device now.
    pub reading: u64,
    /// Writes staged in total.
    pub writes: u64,
    /// Writes that the device failed.
    pub failed: u64,
    /// Reads started in total.
    pub reads: u64,
    /// Reads served from staged bytes alone.
    pub reads_staged: u64,
    /// Batches closed by count or bytes, or because their block was full.
    pub closed_full: u64,
    /// Batches closed by age.
    pub closed_by_age: u64,
    /// Batches closed by a flush.
    pub closed_by_flush: u64,
    /// Requests refused because all slots were in use.
    pub refused: u64,
}

/// The static tier.
#[derive(Debug)]
pub struct StagingTier<M> {
    writes: WriteSlots<M>,
    reads: ReadSlots<M>,
    shape: StagingShape,
    limits: BatchLimits,
    /// Slots and bytes of the open batch, and the time it was opened.
    open_slots: u32,
    open_bytes: u64,
    open_since: Nanos,
    counted: StagingStatistics,
}

impl<M: StagingMemory> StagingTier<M> {
    /// Opens a tier over blocks that `block` creates, each of the length passed to it, pinned for their lifetime.
    ///
    /// # Errors
    /// [`StagingConfigError`] for inconsistent numbers; or the error of `block`.
    pub fn open<E>(config: &StagingConfig, mut block: impl FnMut(usize) -> Result<M, E>) -> Result<Self, E>
    where
        E: From<StagingConfigError>,
    {
        let shape = StagingShape::of(config)?;
        let mut blocks = |count: u32| {
            (0..count)
                .map(|_| {
                    let memory = block(config.block_bytes)?;
                    let got_bytes = memory.bytes();
                    let block_bytes = config.block_bytes;
                    if got_bytes < block_bytes {
                        return Err(StagingConfigError::Memory { got_bytes, block_bytes }.into());
                    }
                    Ok(memory)
                })
                .collect::<Result<Vec<M>, E>>()
        };
        let (writes, reads) = (blocks(config.write_blocks)?, blocks(config.read_blocks)?);
        let bytes: usize = writes.iter().chain(&reads).map(StagingMemory::bytes).sum();
        let pinned_bytes = bytes as u64;
        Ok(Self {
            writes: WriteSlots::new(writes, shape),
            reads: ReadSlots::new(reads, shape),
            shape,
            limits: config.batch,
            open_slots: 0,
            open_bytes: 0,
            open_since: Nanos::ZERO,
            counted: StagingStatistics { pinned_bytes, ..StagingStatistics::default() },
        })
    }

    /// Stages a write: copies its bytes. Its completion returns `tag`.
    ///
    /// # Errors
    /// [`StageError`]; nothing was staged, and no completion follows. [`StageError::Full`] says when to retry.
    pub fn stage(&mut self, now: Nanos, offset: u64, bytes: &[u8], tag: u64) -> Result<SlotId, StageError> {
        self.shape.check(offset, bytes.len())?;
        self.close_aged(now);
        if !self.writes.has_room() {
            self.close_full();
            self.writes.switch_block().inspect_err(|_| self.counted.refused += 1)?;
        }
        let slot = self.writes.stage(offset, bytes, tag);
        if self.open_slots == 0 {
            self.open_since = now;
        }
        self.open_slots += 1;
        self.open_bytes = self.open_bytes.saturating_add(bytes.len() as u64);
        self.counted.writes += 1;
        if self.open_slots >= self.limits.slots || self.open_bytes >= self.limits.bytes {
            self.close_full();
        }
        Ok(slot)
    }

    /// Closes the open batch at once. The flush is done when [`StagingTier::is_flushed`] returns true for this barrier and
    /// the device has been flushed afterwards.
    pub fn flush(&mut self) -> FlushBarrier {
        self.counted.closed_by_flush += self.close();
        FlushBarrier(self.writes.next_sequence())
    }

    /// Returns true if every write staged before the barrier has completed.
    #[must_use]
    pub fn is_flushed(&self, barrier: FlushBarrier) -> bool {
        self.writes.oldest().is_none_or(|oldest| oldest >= barrier.0)
    }

    /// Returns the time at which the open batch closes by age, if there is one: call [`StagingTier::drain`] then.
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        (self.open_slots > 0).then(|| self.open_since.after(self.limits.age))
    }

    /// Appends every write that the device may have now. Returns their number.
    pub fn drain(&mut self, now: Nanos, into: &mut Vec<DrainWrite>) -> usize {
        self.close_aged(now);
        let before = into.len();
        while let Some((slot, range, place)) = self.writes.next_ready() {
            into.push(DrainWrite { slot, range, location: place });
        }
        into.len() - before
    }

    /// Completes a write with the device's result.
    ///
    /// # Errors
    /// [`NotWithDevice`] for a slot that was not drained, or was completed already. Nothing changed.
    pub fn complete<E>(
        &mut self,
        slot: SlotId,
        result: Result<(), E>,
    ) -> Result<StagedCompletion<E>, NotWithDevice> {
        let reads = &mut self.reads;
        let written = result.is_ok();
        let tag = self.writes.complete(slot, |range, memory, at| {
            if written {
                reads.save_completed(&range, memory, at);
            }
        });
        let tag = tag.ok_or(NotWithDevice)?;
        self.counted.failed += u64::from(!written);
        Ok(StagedCompletion { tag, result })
    }

    /// Starts a read, or serves it at once if every byte is staged.
    ///
    /// # Errors
    /// [`StageError`]; no read is started. [`StageError::ReadsFull`] says when to retry.
    pub fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<ReadStart, StageError> {
        let end = self.shape.check(offset, into.len())?;
        if self.writes.staged_bytes(offset..end) == end - offset {
            self.writes.overlay(offset..end, into);
            self.counted.reads += 1;
            self.counted.reads_staged += 1;
            return Ok(ReadStart::Staged);
        }
        let begun = self.reads.begin(offset, into.len()).inspect_err(|_| self.counted.refused += 1)?;
        let (read, range, place) = begun;
        self.counted.reads += 1;
        Ok(ReadStart::Device { read, range, location: place })
    }

    /// Finishes a read with the device's result: copies the device's bytes, and the staged bytes over them.
    ///
    /// # Errors
    /// [`ReadError`]: the device's error, or an id or a length that matches no read.
    pub fn finish_read<E>(
        &mut self,
        read: ReadId,
        result: Result<(), E>,
        into: &mut [u8],
    ) -> Result<(), ReadError<E>> {
        let range = self.reads.range(read).ok_or(NotWithDevice)?;
        let bytes = to_usize(range.end - range.start);
        if let Err(error) = result {
            self.reads.end(read);
            return Err(ReadError::Device(error));
        }
        if into.len() != bytes {
            return Err(ReadError::Length { bytes, given_bytes: into.len() });
        }
        self.reads.copy(read, into);
        self.writes.overlay(range, into);
        self.reads.end(read);
        Ok(())
    }

    /// Copies the staged bytes of a range over `into`, for readers that got the device's bytes by another path. Returns
    /// the number of bytes copied.
    pub fn overlay(&self, offset: u64, into: &mut [u8]) -> usize {
        self.writes.overlay(offset..offset.saturating_add(into.len() as u64), into)
    }

    /// Returns the memory of a block of writes.
    #[must_use]
    pub fn write_memory(&self, block: usize) -> Option<&M> {
        self.writes.memory(block)
    }

    /// Returns the memory of a block of reads.
    #[must_use]
    pub fn read_memory(&self, block: usize) -> Option<&M> {
        self.reads.memory(block)
    }

    /// Returns the memory of a block of reads, for a device that copies.
    #[must_use]
    pub fn read_memory_mut(&mut self, block: usize) -> Option<&mut M> {
        self.reads.memory_mut(block)
    }

    /// Returns the statistics.
    #[must_use]
    pub fn statistics(&self) -> StagingStatistics {
        StagingStatistics {
            staged: self.writes.staged() as u64,
            reading: self.reads.in_flight() as u64,
            ..self.counted
        }
    }

    fn close_aged(&mut self, now: Nanos) {
        if self.deadline().is_some_and(|deadline| now >= deadline) {
            self.counted.closed_by_age += self.close();
        }
    }

    fn close_full(&mut self) {
        self.counted.closed_full += self.close();
    }

    /// Closes the open batch. Returns 1 if there was one, else 0.
    fn close(&mut self) -> u64 {
        self.open_slots = 0;
        self.open_bytes = 0;
        u64::from(self.writes.close() > 0)
    }
}
