//! The configuration of the static tier, and its errors.
//!
//! Input: counts and limits. Output: a validated [`StagingShape`], or an error that says which number to change.

use headwater_host::clock::Nanos;

/// Bytes of a page: every slot starts on one, so that a slot is one entry of a PRP list.
const PAGE_BYTES: u32 = 4_096;

/// Number and size of the blocks, and limits of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagingConfig {
    /// Blocks for writes, at least one; with two, one fills while the other drains.
    pub write_blocks: u32,
    /// Blocks for reads, at least one.
    pub read_blocks: u32,
    /// Bytes of each block.
    pub block_bytes: usize,
    /// Largest request, and bytes of a slot: a multiple of 4,096.
    pub slot_bytes: u32,
    /// Unit of every offset and length: the device's logical block, or 1 for a byte-addressable device.
    pub unit_bytes: u32,
    /// Limits at which a batch of writes is closed.
    pub batch: BatchLimits,
}

/// Limits of a batch; the first one reached closes it. A flush closes it at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// Slots in it.
    pub slots: u32,
    /// Bytes staged in it.
    pub bytes: u64,
    /// Time since its first write was staged.
    pub age: Nanos,
}

impl StagingConfig {
    /// Returns uDMA's configuration: one block for reads, two for writes (section 4.2), 32 MB each (section 5.2),
    /// requests to 4 KiB (section 4.1). The paper drains a block when it is full; here age also closes a batch, so that
    /// a write never waits for 8,191 more.
    #[must_use]
    pub const fn paper() -> Self {
        let block_bytes = 32 << 20;
        Self { block_bytes, batch: BatchLimits { slots: 8_192, bytes: 32 << 20, ..BATCH }, ..DEFAULT }
    }
}

const BATCH: BatchLimits = BatchLimits { slots: 64, bytes: 256 << 10, age: Nanos::from_micros(50) };

const DEFAULT: StagingConfig = StagingConfig {
    write_blocks: 2,
    read_blocks: 1,
    block_bytes: 1 << 20,
    slot_bytes: PAGE_BYTES,
    unit_bytes: 512,
    batch: BATCH,
};

/// The paper's counts, with blocks of 1 MiB: 256 slots, more than a device accepts at a time.
impl Default for StagingConfig {
    fn default() -> Self {
        DEFAULT
    }
}

/// A validated shape of the blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct StagingShape {
    pub(super) slot_bytes: usize,
    pub(super) slots_per_block: usize,
    pub(super) unit_bytes: u64,
}

impl StagingShape {
    pub(super) fn of(config: &StagingConfig) -> Result<Self, StagingConfigError> {
        let slot_bytes = config.slot_bytes;
        if config.write_blocks == 0 || config.read_blocks == 0 {
            return Err(StagingConfigError::NoBlocks);
        }
        if slot_bytes == 0 || !slot_bytes.is_multiple_of(PAGE_BYTES) {
            return Err(StagingConfigError::Slot { slot_bytes });
        }
        if config.unit_bytes == 0 || !slot_bytes.is_multiple_of(config.unit_bytes) {
            return Err(StagingConfigError::Unit { unit_bytes: config.unit_bytes, slot_bytes });
        }
        let block = StagingConfigError::Block { block_bytes: config.block_bytes, slot_bytes };
        let slot_bytes = usize::try_from(slot_bytes).map_err(|_| block)?;
        let slots_per_block = config.block_bytes / slot_bytes;
        // Slots are numbered by 32 bits.
        let blocks = config.write_blocks.max(config.read_blocks);
        let slots = u32::try_from(slots_per_block).ok().and_then(|slots| slots.checked_mul(blocks));
        if slots_per_block == 0 || slots.is_none() {
            return Err(block);
        }
        Ok(Self { slot_bytes, slots_per_block, unit_bytes: u64::from(config.unit_bytes) })
    }

    /// Checks a request's range; returns its end.
    pub(super) fn check(&self, offset: u64, length: usize) -> Result<u64, StageError> {
        let unit_bytes = self.unit_bytes;
        let slot_bytes = self.slot_bytes;
        if length == 0 {
            return Err(StageError::Empty { offset });
        }
        if length > slot_bytes {
            return Err(StageError::TooLong { bytes: length, slot_bytes });
        }
        let bytes = length as u64;
        if !offset.is_multiple_of(unit_bytes) || !bytes.is_multiple_of(unit_bytes) {
            return Err(StageError::Misaligned { offset, bytes, unit_bytes });
        }
        offset.checked_add(bytes).ok_or(StageError::Overflow { offset, bytes })
    }
}

/// The reason why a configuration of the static tier is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StagingConfigError {
    /// No block for writes, or none for reads.
    #[error("staging needs at least one block for writes and one for reads; the paper has two and one")]
    NoBlocks,
    /// Slots would not start on pages.
    #[error("slots of {slot_bytes} bytes are not whole pages; make them a multiple of {PAGE_BYTES}")]
    Slot {
        /// Configured value.
        slot_bytes: u32,
    },
    /// The device's logical block does not divide a slot.
    #[error(
        "a unit of {unit_bytes} bytes does not divide slots of {slot_bytes}; use the device's logical block"
    )]
    Unit {
        /// Configured value.
        unit_bytes: u32,
        /// Bytes of a slot.
        slot_bytes: u32,
    },
    /// A block holds no slot, or all blocks hold more slots than 32 bits can number.
    #[error(
        "blocks of {block_bytes} bytes hold no usable number of slots of {slot_bytes}; use 4 KiB to 1 GiB"
    )]
    Block {
        /// Configured value.
        block_bytes: usize,
        /// Bytes of a slot.
        slot_bytes: u32,
    },
    /// The memory of a block is shorter than a block.
    #[error("the memory of a staging block has {got_bytes} bytes; it needs {block_bytes}")]
    Memory {
        /// Bytes provided.
        got_bytes: usize,
        /// Bytes required.
        block_bytes: usize,
    },
}

/// The reason why a request was refused. Nothing changed, and no completion will follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StageError {
    /// The request has no bytes.
    #[error("a request for 0 bytes at offset {offset}; request at least one unit")]
    Empty {
        /// Offset of the request.
        offset: u64,
    },
    /// Longer than a slot.
    #[error("{bytes} bytes exceed a slot of {slot_bytes} bytes; allocate a buffer from the pool")]
    TooLong {
        /// Requested bytes.
        bytes: usize,
        /// Bytes of a slot.
        slot_bytes: usize,
    },
    /// Not in whole logical blocks.
    #[error(
        "{bytes} bytes at {offset} are not whole units of {unit_bytes} bytes; read, modify and write whole units"
    )]
    Misaligned {
        /// Offset of the request.
        offset: u64,
        /// Length of the request.
        bytes: u64,
        /// The device's logical block.
        unit_bytes: u64,
    },
    /// The range extends past the end of the address space.
    #[error("{bytes} bytes at {offset} extend past the 64-bit address space; choose a lower offset")]
    Overflow {
        /// Offset of the request.
        offset: u64,
        /// Length of the request.
        bytes: u64,
    },
    /// Every block is full, and all slots of one of them must complete before there is room.
    #[error(
        "all staging blocks are full: retry after {completions} completions at the earliest ({undrained} writes are \
         not yet taken by `drain`)"
    )]
    Full {
        /// Completions that the block closest to empty still waits for.
        completions: u32,
        /// Writes not yet handed to the device.
        undrained: u32,
    },
    /// Every slot for reads is in flight: there is room when one read is finished.
    #[error("all {in_flight} slots for reads are in flight: retry after the next read finishes")]
    ReadsFull {
        /// Number of reads in flight.
        in_flight: u32,
    },
}
