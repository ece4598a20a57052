//! Commands of the NVM command set, as steps on a file or block device.
//!
//! Input: commands, and the results of their steps. Output: work for a ring, or a status. Invariant: no step is sent
//! before every block of the command is checked to lie in the file.

use super::NAMESPACE;
use super::file::BlockFile;
use super::queue::{CommandSteps, StepOutcome, UnsentReason};
use super::translate::{CommandKind, dataset_ranges, extents_of, status_of};
use crate::backend::IoLimits;
use crate::buffer::Buffer;
use crate::command::{Command, TransferData};
use crate::error::SubmitError;
use headwater_dma::pool::Pool;
use headwater_host::device_ring::{BlockWork, RingCompletion};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::nvm::BlockOptions;
use headwater_nvme::spec::opcode::NvmOpcode;
use headwater_nvme::spec::status::Status;
use headwater_nvme::spec::transfer::CommandTransfer;
use rustix::io::Errno;
use std::sync::Arc;

/// Bytes that are compared at a time.
const COMPARE_BYTES: usize = 4_096;

/// The step that a command in flight waits for.
#[derive(Debug)]
pub(super) enum BlockStep {
    /// A transfer at this offset of the file, of which `moved` bytes are done.
    Move { offset: u64, write: bool, durable: bool, moved: usize },
    /// A read of the blocks to compare, into `found`.
    Compare { offset: u64, found: Buffer, moved: usize },
    /// The remaining byte ranges to clear, in reverse order, followed by a sync if `durable`.
    Ranges { left: Vec<(u64, u64)>, how: ClearMethod, durable: bool },
    /// A sync of earlier writes.
    Sync,
}

impl BlockStep {
    /// Returns the ring's work for this step of a command with this data.
    #[inline]
    fn ring_work(&self, data: &TransferData) -> BlockWork {
        match self {
            &Self::Move { offset, write, durable, moved } => {
                let (offset, extents) = (offset + moved as u64, extents_of(data, moved));
                if write {
                    BlockWork::Write { offset, from: extents, durable }
                } else {
                    BlockWork::Read { offset, into: extents }
                }
            }
            Self::Compare { offset, found, moved } => {
                let into = extents_of(&TransferData::FromDevice(found.clone()), *moved);
                BlockWork::Read { offset: offset + *moved as u64, into }
            }
            Self::Ranges { left, how, .. } => match (left.last(), how) {
                (Some(&(offset, bytes)), ClearMethod::Discard) => BlockWork::Discard { offset, bytes },
                (Some(&(offset, bytes)), ClearMethod::Zero) => BlockWork::Zero { offset, bytes },
                (Some(&(offset, bytes)), _) => BlockWork::Punch { offset, bytes },
                (None, _) => BlockWork::Sync,
            },
            Self::Sync => BlockWork::Sync,
        }
    }
}

/// The method of clearing a range. Discard falls back to `AdviseHole`, and `Zero` to `Hole`, where it is not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClearMethod {
    /// A discard of the block device.
    Discard,
    /// A hole in place of a discard, or nothing if holes are not supported: the command is advisory.
    AdviseHole,
    /// Written zeroes.
    Zero,
    /// A hole.
    Hole,
}

/// The commands of a file, with memory for comparisons.
#[derive(Debug)]
pub(super) struct BlockCommands {
    file: Arc<BlockFile>,
    pool: Pool,
    /// True while the file is expected to support discards by io_uring.
    supports_discard: bool,
}

impl BlockCommands {
    pub(super) fn new(file: Arc<BlockFile>, pool: Pool) -> Self {
        let supports_discard = file.is_device;
        Self { file, pool, supports_discard }
    }

    /// Returns the byte offset and length of a run of blocks, if all of them exist.
    #[inline]
    fn range(&self, first: u64, blocks: u64) -> Result<(u64, u64), SubmitError> {
        let facts = &self.file.facts;
        match first.checked_add(blocks) {
            Some(end) if end <= facts.size => {
                Ok((first * u64::from(facts.block_bytes), blocks * u64::from(facts.block_bytes)))
            }
            _ => Err(SubmitError::BlocksOutOfRange { first, blocks, size: facts.size }),
        }
    }

    /// Returns the first step of a command.
    #[inline]
    fn plan(&self, command: &Command) -> Result<BlockStep, UnsentReason> {
        let Command { entry, data } = command;
        if entry.namespace.get() != NAMESPACE {
            return Err(Status::INVALID_NAMESPACE.into());
        }
        let opcode = NvmOpcode::from_number(entry.opcode).ok_or(Status::INVALID_OPCODE)?;
        let facts = &self.file.facts;
        let transfer = entry.nvm_transfer(facts.block_bytes).ok_or(Status::INVALID_OPCODE)?;
        let durable = entry.nvm_force_unit_access();
        match opcode {
            NvmOpcode::Verify | NvmOpcode::Copy => Err(Status::INVALID_OPCODE.into()),
            _ if transfer.changes_namespace && !facts.writable => Err(Status::READ_ONLY.into()),
            NvmOpcode::Flush => Ok(BlockStep::Sync),
            NvmOpcode::Read | NvmOpcode::Write | NvmOpcode::Compare => {
                let (offset, _) = self.range(entry.nvm_start(), entry.nvm_blocks().into())?;
                self.check_memory(data)?;
                let fits = u64::try_from(data.bytes()) == Ok(transfer.bytes);
                if !fits || data.direction() != transfer.direction {
                    return Err(Status::DATA_SGL_LENGTH_INVALID.into());
                }
                if opcode == NvmOpcode::Compare {
                    return Ok(BlockStep::Compare { offset, found: self.scratch(data.bytes())?, moved: 0 });
                }
                let write = opcode == NvmOpcode::Write;
                Ok(BlockStep::Move { offset, write, durable, moved: 0 })
            }
            NvmOpcode::WriteZeroes => {
                let range = self.range(entry.nvm_start(), entry.nvm_blocks().into())?;
                // A file deallocates by punching a hole.
                let deallocate =
                    entry.nvm_options().contains(BlockOptions::DEALLOCATE) && !self.file.is_device;
                let how = if deallocate { ClearMethod::Hole } else { ClearMethod::Zero };
                Ok(BlockStep::Ranges { left: vec![range], how, durable })
            }
            NvmOpcode::DatasetManagement => self.plan_ranges(entry, &transfer, data),
        }
    }

    /// Returns the first step of Dataset Management, after checking that all ranges in its data lie in the file.
    fn plan_ranges(
        &self,
        entry: &SubmissionEntry,
        transfer: &CommandTransfer,
        data: &TransferData,
    ) -> Result<BlockStep, UnsentReason> {
        let ranges = dataset_ranges(transfer, data)?;
        let mut left = Vec::with_capacity(ranges.len());
        for (first, blocks) in ranges {
            left.push(self.range(first, blocks)?);
        }
        left.retain(|&(_, bytes)| bytes > 0);
        left.reverse();
        if left.is_empty() || !entry.nvm_dataset_deallocate() {
            return Err(Status::SUCCESS.into());
        }
        let how = if self.supports_discard { ClearMethod::Discard } else { ClearMethod::AdviseHole };
        Ok(BlockStep::Ranges { left, how, durable: false })
    }

    #[inline]
    fn check_memory(&self, data: &TransferData) -> Result<(), SubmitError> {
        self.limits().check(data)?;
        let block_bytes = self.file.facts.block_bytes as usize;
        let buffers = data.buffers();
        // A single buffer holds whole blocks because the command does.
        if buffers.len() > 1 && !buffers.iter().all(|buffer| buffer.bytes().is_multiple_of(block_bytes)) {
            return Err(SubmitError::Unsupported {
                what: "one of several buffers is not a whole number of blocks; make each a multiple of a block",
            });
        }
        Ok(())
    }

    fn scratch(&self, bytes: usize) -> Result<Buffer, Status> {
        self.pool.buffer(bytes).map(Buffer::from_pool).map_err(|_| Status::INTERNAL_ERROR)
    }

    /// Applies the ring's result to a step. Returns the command's status, or `None` if the command continues.
    #[inline]
    fn advance(
        &mut self,
        step: &mut BlockStep,
        data: &TransferData,
        result: Result<u32, i32>,
    ) -> Option<Status> {
        if let Err(errno) = result
            && Errno::from_raw_os_error(errno) == Errno::AGAIN
        {
            return None;
        }
        match step {
            BlockStep::Sync => {
                Some(result.map_or_else(|errno| status_of(errno, CommandKind::Change), |_| Status::SUCCESS))
            }
            BlockStep::Move { write, moved, .. } => {
                let way = if *write { CommandKind::Change } else { CommandKind::Read };
                count_transfer(moved, result, data.bytes(), way)
            }
            BlockStep::Compare { found, moved, .. } => {
                match count_transfer(moved, result, found.bytes(), CommandKind::Read) {
                    Some(Status::SUCCESS) => Some(compare_data(found, data)),
                    other => other,
                }
            }
            BlockStep::Ranges { left, how, durable } => match (result, *how) {
                (Ok(_), _) => {
                    let synced = left.pop().is_none();
                    let finished = left.is_empty() && (synced || !*durable);
                    finished.then_some(Status::SUCCESS)
                }
                (Err(errno), _) if !is_unsupported(errno) => Some(status_of(errno, CommandKind::Change)),
                (Err(_), ClearMethod::Discard) => {
                    self.supports_discard = false;
                    *how = ClearMethod::AdviseHole;
                    None
                }
                (Err(_), ClearMethod::AdviseHole) => Some(Status::SUCCESS),
                (Err(_), ClearMethod::Zero) => {
                    *how = ClearMethod::Hole;
                    None
                }
                (Err(errno), ClearMethod::Hole) => Some(status_of(errno, CommandKind::Change)),
            },
        }
    }
}

impl CommandSteps for BlockCommands {
    type Work = BlockWork;
    type CommandProgress = BlockStep;
    const CANCELS: bool = true;

    #[inline]
    fn limits(&self) -> IoLimits {
        IoLimits {
            transfer_bytes_max: self.file.transfer_bytes_max,
            segments_max: self.file.segments_max,
            memory_align: self.file.memory_align,
        }
    }

    #[inline]
    fn start(
        &self,
        command: &Command,
        send: impl FnOnce(BlockWork) -> Result<(), UnsentReason>,
    ) -> Result<BlockStep, UnsentReason> {
        let step = self.plan(command)?;
        send(step.ring_work(&command.data))?;
        Ok(step)
    }

    #[inline]
    fn next(
        &mut self,
        step: &mut BlockStep,
        data: &TransferData,
        done: &RingCompletion,
    ) -> StepOutcome<BlockWork> {
        match self.advance(step, data, done.result) {
            Some(status) => StepOutcome::Complete(0, status),
            None => StepOutcome::Next(step.ring_work(data)),
        }
    }
}

fn is_unsupported(errno: i32) -> bool {
    matches!(Errno::from_raw_os_error(errno), Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY | Errno::INVAL)
}

/// Counts transferred bytes. Returns a status when all are transferred or no more will come; `None` when the rest
/// follows.
#[inline]
fn count_transfer(
    moved: &mut usize,
    result: Result<u32, i32>,
    wanted: usize,
    way: CommandKind,
) -> Option<Status> {
    match result {
        Err(errno) => Some(status_of(errno, way)),
        // The file has been truncated, or its disk is full.
        Ok(0) => Some(Status::INTERNAL_ERROR),
        Ok(bytes) => {
            *moved += bytes as usize;
            (*moved >= wanted).then_some(Status::SUCCESS)
        }
    }
}

/// Compares the blocks read with the command's data.
fn compare_data(found: &Buffer, with: &TransferData) -> Status {
    let (mut read, mut expected) = ([0; COMPARE_BYTES], [0; COMPARE_BYTES]);
    let mut at = 0;
    for buffer in with.buffers() {
        let mut inside = 0;
        while inside < buffer.bytes() {
            let bytes = COMPARE_BYTES.min(buffer.bytes() - inside);
            let (read, expected) = (&mut read[..bytes], &mut expected[..bytes]);
            if found.read(at, read).is_err() || buffer.read(inside, expected).is_err() {
                return Status::DATA_TRANSFER_ERROR;
            }
            if read != expected {
                return Status::COMPARE_FAILURE;
            }
            (at, inside) = (at + bytes, inside + bytes);
        }
    }
    Status::SUCCESS
}
