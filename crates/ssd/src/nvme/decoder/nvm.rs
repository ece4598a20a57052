//! Decodes the commands of block namespaces (NVM Command Set 1.0 section 3.2).
//!
//! Input: an entry for a block namespace of a known size and format. Output: a [`BlockOperation`] whose blocks the
//! namespace has, and its data, which does not exceed the maximum transfer. Formats have no metadata and no protection
//! information, so a command that requests checks is refused; its tags are ignored.

#[cfg(test)]
mod tests;

use super::DataNeed;
use crate::command::{Fua, Lba, LbaRange};
use crate::limits::{COPY_RANGES_MAX, TRANSFER_BYTES_MAX};
use crate::namespace::BlockFormat;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::opcode::NvmOpcode;
use headwater_nvme::spec::status::Status;

/// The only supported descriptor format of a Copy's source ranges.
const COPY_FORMAT: u8 = 0;

/// The blocks of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSpace {
    /// Number of blocks.
    pub blocks: u64,
    /// Format of each block.
    pub format: BlockFormat,
}

impl BlockSpace {
    /// Returns the range, if all of its blocks exist.
    ///
    /// # Errors
    /// [`Status::LBA_OUT_OF_RANGE`].
    #[inline]
    pub fn check_range(self, start: u64, blocks: u32) -> Result<LbaRange, Status> {
        let end = start.checked_add(u64::from(blocks)).ok_or(Status::LBA_OUT_OF_RANGE)?;
        if end > self.blocks {
            return Err(Status::LBA_OUT_OF_RANGE);
        }
        Ok(LbaRange { start: Lba(start), blocks })
    }
}

/// The purpose of a Dataset Management command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatasetUse {
    /// Deallocates the ranges.
    Deallocate,
    /// Hints how the ranges will be used; accepted and ignored.
    Hint,
}

/// The operation of a block command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockOperation {
    /// Read (3.2.4).
    Read {
        /// The blocks to read.
        range: LbaRange,
        /// Force Unit Access: the blocks must be durable before they are read.
        fua: Fua,
    },
    /// Write (3.2.6).
    Write {
        /// The first block.
        start: Lba,
        /// Force Unit Access: the write must be durable before its completion.
        fua: Fua,
    },
    /// Compare (3.2.1).
    Compare {
        /// The blocks to compare.
        range: LbaRange,
        /// Force Unit Access: the blocks must be durable before they are compared.
        fua: Fua,
    },
    /// Write Zeroes (3.2.8); always deallocates its blocks, which then read as zeroes.
    WriteZeroes {
        /// The blocks to zero.
        range: LbaRange,
        /// Force Unit Access: the change must be durable before its completion.
        fua: Fua,
    },
    /// Verify (3.2.5).
    Verify {
        /// The blocks to verify.
        range: LbaRange,
        /// Force Unit Access: the blocks must be durable before they are verified.
        fua: Fua,
    },
    /// Dataset Management (3.2.3); the ranges are its data.
    DatasetManagement {
        /// The purpose.
        purpose: DatasetUse,
        /// The blocks that the ranges must lie in.
        space: BlockSpace,
    },
    /// Copy (3.2.2); the source ranges are its data.
    Copy {
        /// The first block of the destination.
        destination: Lba,
        /// Force Unit Access: the copy must be durable before its completion.
        fua: Fua,
        /// The blocks that sources and destination must lie in.
        space: BlockSpace,
    },
}

/// Decodes any entry but a Flush.
#[inline]
pub(super) fn decode(
    entry: &SubmissionEntry,
    space: BlockSpace,
) -> Result<(BlockOperation, DataNeed), Status> {
    let opcode = NvmOpcode::from_number(entry.opcode).ok_or(Status::INVALID_OPCODE)?;
    let operation = match opcode {
        NvmOpcode::Flush => return Err(Status::INVALID_OPCODE),
        NvmOpcode::Read => BlockOperation::Read { range: blocks(entry, space)?, fua: fua(entry) },
        NvmOpcode::Write => {
            if entry.nvm_directive() {
                return Err(Status::INVALID_FIELD);
            }
            BlockOperation::Write { start: blocks(entry, space)?.start, fua: fua(entry) }
        }
        NvmOpcode::Compare => BlockOperation::Compare { range: blocks(entry, space)?, fua: fua(entry) },
        NvmOpcode::WriteZeroes => {
            BlockOperation::WriteZeroes { range: blocks(entry, space)?, fua: fua(entry) }
        }
        NvmOpcode::Verify => BlockOperation::Verify { range: blocks(entry, space)?, fua: fua(entry) },
        NvmOpcode::DatasetManagement => BlockOperation::DatasetManagement {
            purpose: match entry.nvm_dataset_deallocate() {
                true => DatasetUse::Deallocate,
                false => DatasetUse::Hint,
            },
            space,
        },
        NvmOpcode::Copy => copy(entry, space)?,
    };
    Ok((operation, data_of(entry, space.format)?))
}

/// Returns the data of a command, if one command may transfer it (MDTS).
#[inline]
fn data_of(entry: &SubmissionEntry, format: BlockFormat) -> Result<DataNeed, Status> {
    let transfer = entry.nvm_transfer(1 << format.shift()).ok_or(Status::INVALID_OPCODE)?;
    let bytes = u32::try_from(transfer.bytes).ok().filter(|&bytes| bytes <= TRANSFER_BYTES_MAX);
    Ok(DataNeed::of(transfer.direction, bytes.ok_or(Status::INVALID_FIELD)?))
}

fn copy(entry: &SubmissionEntry, space: BlockSpace) -> Result<BlockOperation, Status> {
    if entry.nvm_protection()
        || entry.nvm_source_protection()
        || entry.nvm_directive()
        || entry.nvm_copy_format() != COPY_FORMAT
    {
        return Err(Status::INVALID_FIELD);
    }
    if entry.nvm_copy_ranges() > COPY_RANGES_MAX {
        return Err(Status::COMMAND_SIZE_LIMIT);
    }
    let destination = space.check_range(entry.nvm_start(), 1)?.start;
    Ok(BlockOperation::Copy { destination, fua: fua(entry), space })
}

#[inline]
fn blocks(entry: &SubmissionEntry, space: BlockSpace) -> Result<LbaRange, Status> {
    if entry.nvm_protection() {
        return Err(Status::INVALID_FIELD);
    }
    space.check_range(entry.nvm_start(), entry.nvm_blocks())
}

#[inline]
fn fua(entry: &SubmissionEntry) -> Fua {
    if entry.nvm_force_unit_access() { Fua::Yes } else { Fua::No }
}
