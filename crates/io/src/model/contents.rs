//! The execution of commands on a model's blocks.
//!
//! Input: entries with their buffers, valid or not. Output: statuses, and bytes if the model keeps any. Invariant: a
//! command outside the namespace has no effect and completes with the status that the specification names.

use crate::command::TransferData;
use crate::error::IoError;
use headwater_host::sync::{Mutex, MutexGuard};
use headwater_host::width::to_usize;
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::nvm::DatasetRange;
use headwater_nvme::spec::opcode::NvmOpcode;
use headwater_nvme::spec::status::Status;
use headwater_nvme::spec::transfer::{CommandTransfer, LengthRule};
use std::collections::BTreeMap;
use zerocopy::{FromZeros as _, IntoBytes as _};

/// The contents that a model keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModelContents {
    /// Nothing: a read leaves its buffer unchanged.
    #[default]
    Nothing,
    /// All blocks, in memory, initially zero.
    Memory,
}

/// Runs of failing blocks: the first block and one past the last, and the status of a command that accesses the run.
#[derive(Clone, Debug, Default)]
pub struct BlockFaults {
    runs: BTreeMap<u64, (u64, Status)>,
}

impl BlockFaults {
    /// Adds a run: the blocks from `first` up to but not including `end` fail with `status`.
    #[must_use]
    pub fn with(mut self, first: u64, end: u64, status: Status) -> Self {
        self.runs.insert(first, (end, status));
        self
    }

    fn of(&self, first: u64, blocks: u64) -> Option<Status> {
        let before = first.saturating_add(blocks);
        self.runs.range(..before).find(|&(_, &(end, _))| end > first).map(|(_, &(_, status))| status)
    }
}

/// The blocks of a model.
#[derive(Debug)]
pub(super) struct ModelBlocks {
    size: u64,
    block_bytes: u32,
    /// The bytes of the blocks; empty if the model keeps nothing.
    stored: Vec<u8>,
    faults: BlockFaults,
}

/// Locks a mutex, also after a panic: no code panics under the lock, and the state would still be usable.
pub(super) fn lock_any<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl ModelBlocks {
    pub(super) fn new(size: u64, block_bytes: u32, contents: ModelContents) -> Result<Self, IoError> {
        let bytes = match contents {
            ModelContents::Nothing => 0,
            ModelContents::Memory => to_usize(size * u64::from(block_bytes)),
        };
        let mut kept = Vec::new();
        kept.try_reserve_exact(bytes)
            .map_err(|_| IoError::Device { reason: format!("cannot allocate {bytes} bytes for a model") })?;
        kept.resize(bytes, 0);
        Ok(Self { size, block_bytes, stored: kept, faults: BlockFaults::default() })
    }

    pub(super) fn set_faults(&mut self, faults: BlockFaults) {
        self.faults = faults;
    }

    /// Returns true if the model keeps its blocks.
    pub(super) fn keeps_data(&self) -> bool {
        !self.stored.is_empty()
    }

    /// Returns the bytes of the blocks that a command transfers; a list of ranges counts as none.
    pub(super) fn bytes_of(&self, entry: &SubmissionEntry) -> u64 {
        match entry.nvm_transfer(self.block_bytes) {
            Some(CommandTransfer { bytes, length: LengthRule::Exact, .. }) => bytes,
            Some(CommandTransfer { length: LengthRule::AtLeast, .. }) | None => 0,
        }
    }

    /// Executes a command.
    pub(super) fn execute(&mut self, entry: &SubmissionEntry, data: &TransferData) -> Status {
        let opcode = match validate(entry, self.size) {
            Ok(opcode) => opcode,
            Err(status) => return status,
        };
        let (start, blocks) = (entry.nvm_start(), u64::from(entry.nvm_blocks()));
        match opcode {
            NvmOpcode::Flush => Status::SUCCESS,
            NvmOpcode::DatasetManagement => self.deallocate(entry, data),
            _ => match self.faults.of(start, blocks) {
                Some(status) => status,
                None => {
                    let block_bytes = u64::from(self.block_bytes);
                    self.transfer(opcode, start * block_bytes, blocks * block_bytes, data)
                }
            },
        }
    }

    fn transfer(&mut self, opcode: NvmOpcode, at: u64, bytes: u64, data: &TransferData) -> Status {
        if self.stored.is_empty() {
            return Status::SUCCESS;
        }
        let (Ok(at), Ok(bytes)) = (usize::try_from(at), usize::try_from(bytes)) else {
            return Status::LBA_OUT_OF_RANGE;
        };
        let Some(mut kept) = self.stored.get_mut(at..at + bytes) else {
            return Status::LBA_OUT_OF_RANGE;
        };
        if opcode == NvmOpcode::WriteZeroes {
            kept.fill(0);
            return Status::SUCCESS;
        }
        for buffer in data.buffers() {
            let (part, rest) = kept.split_at_mut(buffer.bytes().min(kept.len()));
            kept = rest;
            let moved = match opcode {
                NvmOpcode::Read => buffer.write(0, part),
                NvmOpcode::Write => buffer.read(0, part),
                _ => {
                    let mut with = vec![0; part.len()];
                    match buffer.read(0, &mut with) {
                        Ok(()) if with != part => return Status::COMPARE_FAILURE,
                        compared => compared,
                    }
                }
            };
            if moved.is_err() {
                return Status::DATA_TRANSFER_ERROR;
            }
        }
        if kept.is_empty() { Status::SUCCESS } else { Status::DATA_TRANSFER_ERROR }
    }

    fn deallocate(&mut self, entry: &SubmissionEntry, data: &TransferData) -> Status {
        let mut ranges = vec![DatasetRange::new_zeroed(); entry.nvm_dataset_ranges().into()];
        let list = ranges.as_mut_bytes();
        let Some(Ok(())) = data.buffers().first().map(|buffer| buffer.read(0, list)) else {
            return Status::DATA_TRANSFER_ERROR;
        };
        let end = |range: &DatasetRange| range.start.get().checked_add(range.blocks.get().into());
        if ranges.iter().any(|range| end(range).is_none_or(|end| end > self.size)) {
            return Status::LBA_OUT_OF_RANGE;
        }
        for range in ranges {
            let at = range.start.get() * u64::from(self.block_bytes);
            let bytes = u64::from(range.blocks.get()) * u64::from(self.block_bytes);
            self.transfer(NvmOpcode::WriteZeroes, at, bytes, &TransferData::None);
        }
        Status::SUCCESS
    }
}

/// Validates a command for a namespace of `size` blocks, and returns its opcode.
#[inline]
pub(super) fn validate(entry: &SubmissionEntry, size: u64) -> Result<NvmOpcode, Status> {
    let opcode = NvmOpcode::from_number(entry.opcode).ok_or(Status::INVALID_OPCODE)?;
    if entry.namespace.get() != super::MODEL_NAMESPACE {
        return Err(Status::INVALID_NAMESPACE);
    }
    match opcode {
        NvmOpcode::Flush | NvmOpcode::DatasetManagement => Ok(opcode),
        NvmOpcode::Read | NvmOpcode::Write | NvmOpcode::Compare | NvmOpcode::WriteZeroes => {
            match entry.nvm_start().checked_add(entry.nvm_blocks().into()) {
                Some(end) if end <= size => Ok(opcode),
                _ => Err(Status::LBA_OUT_OF_RANGE),
            }
        }
        NvmOpcode::Verify | NvmOpcode::Copy => Err(Status::INVALID_OPCODE),
    }
}
