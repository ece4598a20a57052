//! The static tier: small requests through blocks that stay pinned for life (uDMA, section 4.2).
//!
//! In: small writes and reads with the time, answers of the device. Out: slots for the device to write or to fill, and
//! one completion for each. Invariant: a read sees every byte staged before it began, the newest of each; a write reaches
//! the device after every older one that overlaps it; a slot completes by itself, with its own result.
//!
//! A write is copied to a slot of the filling block. A batch of slots closes by count, bytes or age, or by a flush, and
//! is then taken by [`Staging::drain`]. A full block gives way to an empty one; it is empty again when its slots have
//! completed. With no empty block left, [`StageError::Full`] says when to retry.
//!
//! # What this does not do
//! No I/O and no clock: who drives it moves slots to the device and hands the answers in. What a failed write left on the
//! device is the device's matter: reads see the device's bytes there.

mod config;
mod memory;
mod reads;
mod visible;
mod writes;

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;

pub use config::{BatchLimits, StageError, StagingConfig, StagingConfigError};
pub use memory::StagingMemory;

use config::Shape;
use headwater_host::clock::Nanos;
use reads::Reads;
use writes::Writes;

/// A staged write. Means nothing once it has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SlotId {
    index: u32,
    generation: u32,
}

/// A read that the device has. Means nothing once it was finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReadId {
    index: u32,
    generation: u32,
}

/// Where a slot lies: a block of [`Staging::write_memory`] or [`Staging::read_memory`], and the first byte in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the block.
    pub block: usize,
    /// First byte of the slot in it, a multiple of 4,096.
    pub at: usize,
}

/// Bytes of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRange {
    /// First byte.
    pub offset: u64,
    /// How many.
    pub bytes: usize,
}

/// A write that the device may have now. Its answer goes to [`Staging::complete`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainWrite {
    /// Its name.
    pub slot: SlotId,
    /// Where the device keeps it.
    pub range: DeviceRange,
    /// Where its bytes lie.
    pub place: Place,
}

/// How a read goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadStart {
    /// All bytes were staged: they are there already, and nothing follows.
    Staged,
    /// The device fills a slot; its answer goes to [`Staging::finish_read`].
    Device {
        /// Its name.
        read: ReadId,
        /// What the device reads.
        range: DeviceRange,
        /// Where it puts it.
        place: Place,
    },
}

/// The answer to a staged write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completed<E> {
    /// The caller's name for the write.
    pub tag: u64,
    /// What the device said.
    pub result: Result<(), E>,
}

/// An answer that belongs to nothing: the id was never given out, or was answered before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no such request is with the device; hand each answer in once, with the id that came with the request"
)]
pub struct NotWithDevice;

/// Why a read brought nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError<E> {
    /// The id belongs to nothing.
    #[error(transparent)]
    NotWithDevice(#[from] NotWithDevice),
    /// The bytes do not fit. The read is still under way.
    #[error("a read of {bytes} bytes was given {given_bytes} to fill; give it as many as it asked for")]
    Length {
        /// What was read.
        bytes: usize,
        /// What was given.
        given_bytes: usize,
    },
    /// The device said no. The read is over.
    #[error("the device failed the read: {0}")]
    Device(E),
}

/// A moment in the order of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Barrier(u64);

/// What the tier has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StagingStatistics {
    /// Bytes of all blocks, pinned for life.
    pub pinned_bytes: u64,
    /// Writes that are staged now.
    pub staged: u64,
    /// Reads that the device has now.
    pub reading: u64,
    /// Writes ever staged.
    pub writes: u64,
    /// Of these, how many the device failed.
    pub failed: u64,
    /// Reads ever begun.
    pub reads: u64,
    /// Of these, how many were answered from staged bytes alone.
    pub reads_staged: u64,
    /// Batches closed by count or bytes, or because their block was full.
    pub closed_full: u64,
    /// Batches closed by age.
    pub closed_by_age: u64,
    /// Batches closed by a flush.
    pub closed_by_flush: u64,
    /// Requests refused because everything was full.
    pub refused: u64,
}

/// The static tier.
#[derive(Debug)]
pub struct Staging<M> {
    writes: Writes<M>,
    reads: Reads<M>,
    shape: Shape,
    limits: BatchLimits,
    /// What is in the open batch, and since when.
    open_slots: u32,
    open_bytes: u64,
    open_since: Nanos,
    counted: StagingStatistics,
}

impl<M: StagingMemory> Staging<M> {
    /// A tier over blocks that `block` makes, each of as many bytes as it is told, pinned for as long as they live.
    ///
    /// # Errors
    /// [`StagingConfigError`] for numbers that do not fit together; or what `block` says.
    pub fn open<E>(config: &StagingConfig, mut block: impl FnMut(usize) -> Result<M, E>) -> Result<Self, E>
    where
        E: From<StagingConfigError>,
    {
        let shape = Shape::of(config)?;
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
        let pinned_bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        Ok(Self {
            writes: Writes::new(writes, shape),
            reads: Reads::new(reads, shape),
            shape,
            limits: config.batch,
            open_slots: 0,
            open_bytes: 0,
            open_since: Nanos::ZERO,
            counted: StagingStatistics { pinned_bytes, ..StagingStatistics::default() },
        })
    }

    /// Stages a write: copies its bytes. `tag` comes back with its completion.
    ///
    /// # Errors
    /// [`StageError`]; nothing was staged, and no completion follows. [`StageError::Full`] says when to retry.
    pub fn stage(&mut self, now: Nanos, offset: u64, bytes: &[u8], tag: u64) -> Result<SlotId, StageError> {
        self.shape.check(offset, bytes.len())?;
        self.close_aged(now);
        if !self.writes.has_place() {
            self.close_full();
            self.writes.swap().inspect_err(|_| self.counted.refused += 1)?;
        }
        let slot = self.writes.stage(offset, bytes, tag);
        if self.open_slots == 0 {
            self.open_since = now;
        }
        self.open_slots += 1;
        self.open_bytes = self.open_bytes.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        self.counted.writes += 1;
        if self.open_slots >= self.limits.slots || self.open_bytes >= self.limits.bytes {
            self.close_full();
        }
        Ok(slot)
    }

    /// Closes the open batch at once. The flush is done when [`Staging::is_settled`] says so of what this returns, and
    /// the device was then told to flush too.
    pub fn flush(&mut self) -> Barrier {
        self.counted.closed_by_flush += self.close();
        Barrier(self.writes.next_sequence())
    }

    /// Whether every write staged before the barrier has completed.
    #[must_use]
    pub fn is_settled(&self, barrier: Barrier) -> bool {
        self.writes.oldest().is_none_or(|oldest| oldest >= barrier.0)
    }

    /// When the open batch closes by age, if there is one: call [`Staging::drain`] then.
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        (self.open_slots > 0).then(|| self.open_since.after(self.limits.age))
    }

    /// Adds every write that the device may have now. Returns how many.
    pub fn drain(&mut self, now: Nanos, into: &mut Vec<DrainWrite>) -> usize {
        self.close_aged(now);
        let before = into.len();
        while let Some((slot, range, place)) = self.writes.next_ready() {
            into.push(DrainWrite { slot, range, place });
        }
        into.len() - before
    }

    /// The device has answered for a write.
    ///
    /// # Errors
    /// [`NotWithDevice`] for a slot that was not drained, or was answered before. Nothing changed.
    pub fn complete<E>(
        &mut self,
        slot: SlotId,
        result: Result<(), E>,
    ) -> Result<Completed<E>, NotWithDevice> {
        let reads = &mut self.reads;
        let written = result.is_ok();
        let tag = self.writes.complete(slot, |range, memory, at| {
            if written {
                reads.keep(&range, memory, at);
            }
        });
        let tag = tag.ok_or(NotWithDevice)?;
        self.counted.failed += u64::from(!written);
        Ok(Completed { tag, result })
    }

    /// Begins a read, or answers it at once where every byte is staged.
    ///
    /// # Errors
    /// [`StageError`]; nothing is under way. [`StageError::ReadsFull`] says when to retry.
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
        Ok(ReadStart::Device { read, range, place })
    }

    /// The device has answered for a read: copies its bytes, and what was staged over them.
    ///
    /// # Errors
    /// [`ReadError`]: the device's error, or an id or a length that belongs to no read.
    pub fn finish_read<E>(
        &mut self,
        read: ReadId,
        result: Result<(), E>,
        into: &mut [u8],
    ) -> Result<(), ReadError<E>> {
        let range = self.reads.range(read).ok_or(NotWithDevice)?;
        let bytes = usize::try_from(range.end - range.start).unwrap_or(0);
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

    /// Copies the bytes that are staged in a range over `into`, for readers that have the device's bytes from elsewhere.
    /// Returns how many there were.
    pub fn overlay(&self, offset: u64, into: &mut [u8]) -> usize {
        let bytes = u64::try_from(into.len()).unwrap_or(u64::MAX);
        self.writes.overlay(offset..offset.saturating_add(bytes), into)
    }

    /// The memory of a block of writes.
    #[must_use]
    pub fn write_memory(&self, block: usize) -> Option<&M> {
        self.writes.memory(block)
    }

    /// The memory of a block of reads.
    #[must_use]
    pub fn read_memory(&self, block: usize) -> Option<&M> {
        self.reads.memory(block)
    }

    /// The memory of a block of reads, for a device that copies.
    #[must_use]
    pub fn read_memory_mut(&mut self, block: usize) -> Option<&mut M> {
        self.reads.memory_mut(block)
    }

    /// What was counted so far.
    #[must_use]
    pub fn statistics(&self) -> StagingStatistics {
        let wide = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        StagingStatistics {
            staged: wide(self.writes.staged()),
            reading: wide(self.reads.in_flight()),
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

    /// Closes the open batch. Returns whether there was one, as a number to count.
    fn close(&mut self) -> u64 {
        self.open_slots = 0;
        self.open_bytes = 0;
        u64::from(self.writes.close() > 0)
    }
}
