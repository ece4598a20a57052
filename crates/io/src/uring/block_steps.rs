//! Commands of the NVM command set, as steps on a file or block device.
//!
//! In: commands, and what became of their steps. Out: work for a ring, or a status. Invariant: nothing reaches the file before
//! every block that the command names was found to lie in it.

use super::NAMESPACE;
use super::file::BlockFile;
use super::queue::{Steps, Turn, Unsent};
use super::translate::{Way, dataset_ranges, extents_of, status_of};
use crate::backend::Limits;
use crate::buffer::Buffer;
use crate::command::{Command, Data};
use crate::error::SubmitError;
use headwater_dma::pool::Pool;
use headwater_host::device_ring::{BlockWork, Done};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::nvm::BlockOptions;
use headwater_nvme::spec::opcode::NvmOpcode;
use headwater_nvme::spec::status::Status;
use rustix::io::Errno;
use std::sync::Arc;

/// Bytes that are compared at a time.
const COMPARE_BYTES: usize = 4_096;

/// What a command in flight waits for.
#[derive(Debug)]
pub(super) enum Step {
    /// Bytes moving, from this place of the file on; so many have moved.
    Move { offset: u64, write: bool, durable: bool, moved: usize },
    /// The blocks to compare with, coming into memory of ours.
    Compare { offset: u64, found: Buffer, moved: usize },
    /// Ranges of bytes to make zero, from the last to the first; then, maybe, durable.
    Ranges { left: Vec<(u64, u64)>, how: Clear, durable: bool },
    /// What was written before, becoming durable.
    Sync,
}

impl Step {
    /// What the ring does for it, given the data of the command.
    #[inline]
    fn work(&self, data: &Data) -> BlockWork {
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
                let into = extents_of(&Data::FromDevice(found.clone()), *moved);
                BlockWork::Read { offset: offset + *moved as u64, into }
            }
            Self::Ranges { left, how, .. } => match (left.last(), how) {
                (Some(&(offset, bytes)), Clear::Discard) => BlockWork::Discard { offset, bytes },
                (Some(&(offset, bytes)), Clear::Zero) => BlockWork::Zero { offset, bytes },
                (Some(&(offset, bytes)), _) => BlockWork::Punch { offset, bytes },
                (None, _) => BlockWork::Sync,
            },
            Self::Sync => BlockWork::Sync,
        }
    }
}

/// How a range is cleared. Each falls back on the next where the file or its device does not offer it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clear {
    /// Told to the block device.
    Discard,
    /// A hole, instead of telling the device; where that cannot be either, nothing: the command was advice.
    AdviseHole,
    /// Zeroes, and a hole where those are not offered.
    Zero,
    /// A hole.
    Hole,
}

/// The file, and memory to compare in.
#[derive(Debug)]
pub(super) struct BlockSteps {
    file: Arc<BlockFile>,
    pool: Pool,
    /// The file takes discards as a command of io_uring.
    discards: bool,
}

impl BlockSteps {
    pub(super) fn new(file: Arc<BlockFile>, pool: Pool) -> Self {
        let discards = file.is_device;
        Self { file, pool, discards }
    }

    /// The bytes of a run of blocks, if all of them are there.
    #[inline]
    fn range(&self, first: u64, blocks: u64) -> Result<(u64, u64), SubmitError> {
        let facts = &self.file.facts;
        match first.checked_add(blocks) {
            Some(end) if end <= facts.size => {
                Ok((first * u64::from(facts.block_bytes), blocks * u64::from(facts.block_bytes)))
            }
            _ => Err(SubmitError::Range { first, blocks, size: facts.size }),
        }
    }

    /// The first step of a command.
    #[inline]
    fn plan(&self, command: &Command) -> Result<Step, Unsent> {
        let Command { entry, data } = command;
        if entry.namespace.get() != NAMESPACE {
            return Err(Status::INVALID_NAMESPACE.into());
        }
        let opcode = NvmOpcode::from_number(entry.opcode).ok_or(Status::INVALID_OPCODE)?;
        let changes =
            matches!(opcode, NvmOpcode::Write | NvmOpcode::WriteZeroes | NvmOpcode::DatasetManagement);
        if changes && !self.file.facts.writable {
            return Err(Status::READ_ONLY.into());
        }
        let durable = entry.nvm_force_unit_access();
        match opcode {
            NvmOpcode::Flush => Ok(Step::Sync),
            NvmOpcode::Read | NvmOpcode::Write | NvmOpcode::Compare => {
                let (offset, bytes) = self.range(entry.nvm_start(), entry.nvm_blocks().into())?;
                self.check_memory(data)?;
                let write = opcode == NvmOpcode::Write;
                if u64::try_from(data.bytes()) != Ok(bytes) || (opcode == NvmOpcode::Read) != comes_in(data) {
                    return Err(Status::DATA_SGL_LENGTH_INVALID.into());
                }
                if opcode == NvmOpcode::Compare {
                    return Ok(Step::Compare { offset, found: self.scratch(data.bytes())?, moved: 0 });
                }
                Ok(Step::Move { offset, write, durable, moved: 0 })
            }
            NvmOpcode::WriteZeroes => {
                let range = self.range(entry.nvm_start(), entry.nvm_blocks().into())?;
                // A file deallocates by a hole.
                let deallocate =
                    entry.nvm_options().contains(BlockOptions::DEALLOCATE) && !self.file.is_device;
                let how = if deallocate { Clear::Hole } else { Clear::Zero };
                Ok(Step::Ranges { left: vec![range], how, durable })
            }
            NvmOpcode::DatasetManagement => self.plan_ranges(entry, data),
            NvmOpcode::Verify | NvmOpcode::Copy => Err(Status::INVALID_OPCODE.into()),
        }
    }

    /// Dataset Management: the ranges in the command's data, every one of which lies in the file.
    fn plan_ranges(&self, entry: &SubmissionEntry, data: &Data) -> Result<Step, Unsent> {
        let ranges = dataset_ranges(entry, data)?;
        let mut left = Vec::with_capacity(ranges.len());
        for (first, blocks) in ranges {
            left.push(self.range(first, blocks)?);
        }
        left.retain(|&(_, bytes)| bytes > 0);
        left.reverse();
        if left.is_empty() || !entry.nvm_dataset_deallocate() {
            return Err(Status::SUCCESS.into());
        }
        let how = if self.discards { Clear::Discard } else { Clear::AdviseHole };
        Ok(Step::Ranges { left, how, durable: false })
    }

    #[inline]
    fn check_memory(&self, data: &Data) -> Result<(), SubmitError> {
        self.limits().check(data)?;
        let block_bytes = self.file.facts.block_bytes as usize;
        let buffers = data.buffers();
        // One buffer holds whole blocks because the command does.
        if buffers.len() > 1 && !buffers.iter().all(|buffer| buffer.bytes().is_multiple_of(block_bytes)) {
            return Err(SubmitError::Unfit {
                what: "one of several buffers holds no whole number of blocks",
            });
        }
        Ok(())
    }

    fn scratch(&self, bytes: usize) -> Result<Buffer, Status> {
        self.pool.buffer(bytes).map(Buffer::pooled).map_err(|_| Status::INTERNAL_ERROR)
    }

    /// What an answer of the ring's makes of a step: the command's status, or `None` when it goes on.
    #[inline]
    fn advance(&mut self, step: &mut Step, data: &Data, result: Result<u32, i32>) -> Option<Status> {
        if let Err(errno) = result
            && Errno::from_raw_os_error(errno) == Errno::AGAIN
        {
            return None;
        }
        match step {
            Step::Sync => {
                Some(result.map_or_else(|errno| status_of(errno, Way::Change), |_| Status::SUCCESS))
            }
            Step::Move { write, moved, .. } => {
                let way = if *write { Way::Change } else { Way::Read };
                moved_on(moved, result, data.bytes(), way)
            }
            Step::Compare { found, moved, .. } => match moved_on(moved, result, found.bytes(), Way::Read) {
                Some(Status::SUCCESS) => Some(compared(found, data)),
                other => other,
            },
            Step::Ranges { left, how, durable } => match (result, *how) {
                (Ok(_), _) => {
                    let synced = left.pop().is_none();
                    let finished = left.is_empty() && (synced || !*durable);
                    finished.then_some(Status::SUCCESS)
                }
                (Err(errno), _) if !is_not_offered(errno) => Some(status_of(errno, Way::Change)),
                (Err(_), Clear::Discard) => {
                    self.discards = false;
                    *how = Clear::AdviseHole;
                    None
                }
                (Err(_), Clear::AdviseHole) => Some(Status::SUCCESS),
                (Err(_), Clear::Zero) => {
                    *how = Clear::Hole;
                    None
                }
                (Err(errno), Clear::Hole) => Some(status_of(errno, Way::Change)),
            },
        }
    }
}

impl Steps for BlockSteps {
    type Work = BlockWork;
    type Stand = Step;
    const CANCELS: bool = true;

    #[inline]
    fn limits(&self) -> Limits {
        Limits {
            transfer_bytes_max: self.file.transfer_bytes_max,
            segments_max: self.file.segments_max,
            memory_align: self.file.memory_align,
        }
    }

    #[inline]
    fn first(
        &self,
        command: &Command,
        send: impl FnOnce(BlockWork) -> Result<(), Status>,
    ) -> Result<Step, Unsent> {
        let step = self.plan(command)?;
        send(step.work(&command.data))?;
        Ok(step)
    }

    #[inline]
    fn next(&mut self, step: &mut Step, data: &Data, done: &Done) -> Turn<BlockWork> {
        match self.advance(step, data, done.result) {
            Some(status) => Turn::Over(0, status),
            None => Turn::Next(step.work(data)),
        }
    }
}

#[inline]
fn comes_in(data: &Data) -> bool {
    matches!(data, Data::FromDevice(_) | Data::Scatter(_))
}

fn is_not_offered(errno: i32) -> bool {
    matches!(Errno::from_raw_os_error(errno), Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY | Errno::INVAL)
}

/// Counts bytes that moved. The status when they are all, or none more come; `None` when the rest is to follow.
#[inline]
fn moved_on(moved: &mut usize, result: Result<u32, i32>, wanted: usize, way: Way) -> Option<Status> {
    match result {
        Err(errno) => Some(status_of(errno, way)),
        // The file has become shorter, or its disk full.
        Ok(0) => Some(Status::INTERNAL_ERROR),
        Ok(bytes) => {
            *moved += bytes as usize;
            (*moved >= wanted).then_some(Status::SUCCESS)
        }
    }
}

/// Whether blocks hold what they were to be compared with.
fn compared(found: &Buffer, with: &Data) -> Status {
    let (mut ours, mut theirs) = ([0; COMPARE_BYTES], [0; COMPARE_BYTES]);
    let mut at = 0;
    for buffer in with.buffers() {
        let mut inside = 0;
        while inside < buffer.bytes() {
            let bytes = COMPARE_BYTES.min(buffer.bytes() - inside);
            let (ours, theirs) = (&mut ours[..bytes], &mut theirs[..bytes]);
            if found.read(at, ours).is_err() || buffer.read(inside, theirs).is_err() {
                return Status::DATA_TRANSFER_ERROR;
            }
            if ours != theirs {
                return Status::COMPARE_FAILURE;
            }
            (at, inside) = (at + bytes, inside + bytes);
        }
    }
    Status::SUCCESS
}
