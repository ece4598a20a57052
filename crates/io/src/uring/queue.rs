//! A queue of a file or block device: commands of the NVM command set, carried out by a ring of the kernel's.
//!
//! In: commands. Out: one answer for each. Invariant: nothing reaches the file before every block that the command names was
//! found to lie in it; a command that takes several steps has its one answer after the last.

use super::NAMESPACE;
use super::file::BlockFile;
use super::translate::{Way, dataset_ranges, extents_of, status_of};
use crate::backend::{Answer, Armed, Limits, Transport};
use crate::buffer::Buffer;
use crate::command::{Command, Data};
use crate::error::{IoError, Rejected, SubmitError};
use crate::queue::Completion;
use headwater_dma::pool::Pool;
use headwater_host::clock::Nanos;
use headwater_host::device_ring::{BlockWork, DeviceRing, Done};
use headwater_nvme::spec::command::SubmissionEntry;
use headwater_nvme::spec::opcode::NvmOpcode;
use headwater_nvme::spec::status::Status;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// CDW12 25 of Write Zeroes: deallocate, which a file does by a hole.
const DEALLOCATE: u32 = 1 << 25;
/// Bytes that are compared at a time.
const COMPARE_BYTES: usize = 4_096;

/// What a command in flight waits for.
#[derive(Debug)]
enum Step {
    /// Bytes moving, from this place of the file on; so many have moved.
    Move { offset: u64, write: bool, durable: bool, moved: usize },
    /// The blocks to compare with, coming into memory of ours.
    Compare { offset: u64, found: Buffer, moved: usize },
    /// Ranges of bytes to make zero, from the last to the first; then, maybe, durable.
    Ranges { left: Vec<(u64, u64)>, how: Clear, durable: bool },
    /// What was written before, becoming durable.
    Sync,
}

/// How a range is cleared. Each falls back on the next where the file or its device does not offer it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clear {
    /// Told to the block device.
    Discard,
    /// A hole, instead of telling the device; where that cannot be either, nothing: the command was advice.
    AdviseHole,
    /// Zeroes, and a hole where those are not offered.
    Zero,
    /// A hole.
    Hole,
}

#[derive(Debug)]
struct Slot {
    token: u64,
    data: Data,
    step: Step,
}

/// A queue.
#[derive(Debug)]
pub(super) struct UringQueue {
    ring: DeviceRing<BlockWork>,
    file: Arc<BlockFile>,
    pool: Pool,
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    /// Answers of commands that the file never saw.
    ready: VecDeque<Answer>,
    /// The file takes discards as a command of io_uring.
    discards: bool,
}

impl UringQueue {
    pub(super) fn new(ring: DeviceRing<BlockWork>, file: Arc<BlockFile>, pool: Pool) -> Self {
        let depth = ring.depth();
        let slots = (0..depth).map(|_| None).collect();
        let discards = file.is_device;
        Self { ring, file, pool, slots, free: (0..depth).rev().collect(), ready: VecDeque::new(), discards }
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

    /// The first step of a command; or the status that answers it at once.
    #[inline]
    fn plan(&self, command: &Command) -> Result<Result<Step, Status>, SubmitError> {
        let Command { entry, data } = command;
        if entry.namespace.get() != NAMESPACE {
            return Ok(Err(Status::INVALID_NAMESPACE));
        }
        let Some(opcode) = NvmOpcode::from_number(entry.opcode) else {
            return Ok(Err(Status::INVALID_OPCODE));
        };
        let changes =
            matches!(opcode, NvmOpcode::Write | NvmOpcode::WriteZeroes | NvmOpcode::DatasetManagement);
        if changes && !self.file.facts.writable {
            return Ok(Err(Status::READ_ONLY));
        }
        let durable = entry.nvm_force_unit_access();
        Ok(match opcode {
            NvmOpcode::Flush => Ok(Step::Sync),
            NvmOpcode::Read | NvmOpcode::Write | NvmOpcode::Compare => {
                let (offset, bytes) = self.range(entry.nvm_start(), entry.nvm_blocks().into())?;
                self.check_memory(data)?;
                let write = opcode == NvmOpcode::Write;
                if u64::try_from(data.bytes()) != Ok(bytes) || (opcode == NvmOpcode::Read) != comes_in(data) {
                    Err(Status::DATA_SGL_LENGTH_INVALID)
                } else if opcode == NvmOpcode::Compare {
                    self.scratch(data.bytes()).map(|found| Step::Compare { offset, found, moved: 0 })
                } else {
                    Ok(Step::Move { offset, write, durable, moved: 0 })
                }
            }
            NvmOpcode::WriteZeroes => {
                let range = self.range(entry.nvm_start(), entry.nvm_blocks().into())?;
                let deallocate = entry.cdw12.get() & DEALLOCATE != 0 && !self.file.is_device;
                let how = if deallocate { Clear::Hole } else { Clear::Zero };
                Ok(Step::Ranges { left: vec![range], how, durable })
            }
            NvmOpcode::DatasetManagement => return self.plan_ranges(entry, data),
            NvmOpcode::Verify | NvmOpcode::Copy => Err(Status::INVALID_OPCODE),
        })
    }

    /// Dataset Management: the ranges in the command's data, every one of which lies in the file.
    fn plan_ranges(&self, entry: &SubmissionEntry, data: &Data) -> Result<Result<Step, Status>, SubmitError> {
        let ranges = match dataset_ranges(entry, data) {
            Ok(ranges) => ranges,
            Err(status) => return Ok(Err(status)),
        };
        let mut left = Vec::with_capacity(ranges.len());
        for (first, blocks) in ranges {
            left.push(self.range(first, blocks)?);
        }
        left.retain(|&(_, bytes)| bytes > 0);
        left.reverse();
        if left.is_empty() || !entry.nvm_dataset_deallocate() {
            return Ok(Err(Status::SUCCESS));
        }
        let how = if self.discards { Clear::Discard } else { Clear::AdviseHole };
        Ok(Ok(Step::Ranges { left, how, durable: false }))
    }

    #[inline]
    fn check_memory(&self, data: &Data) -> Result<(), SubmitError> {
        if data.bytes() > self.file.transfer_bytes_max {
            return Err(SubmitError::Unfit {
                what: "more bytes than the queue's transfer_bytes_max; send several commands",
            });
        }
        let align = self.file.memory_align;
        let block_bytes = self.file.facts.block_bytes as usize;
        let fits = |buffer: &Buffer| buffer.process_address().is_multiple_of(align);
        let buffers = data.buffers();
        if !buffers.iter().all(fits) {
            return Err(SubmitError::Unfit {
                what: "a buffer does not lie at a multiple of the queue's memory_align",
            });
        }
        // One buffer holds whole blocks because the command does.
        if buffers.len() > 1 && !buffers.iter().all(|buffer| buffer.bytes().is_multiple_of(block_bytes)) {
            return Err(SubmitError::Unfit {
                what: "one of several buffers holds no whole number of blocks",
            });
        }
        if buffers.len() > self.file.segments_max {
            return Err(SubmitError::Unfit { what: "more buffers than the queue's segments_max" });
        }
        Ok(())
    }

    fn scratch(&self, bytes: usize) -> Result<Buffer, Status> {
        self.pool.buffer(bytes).map(Buffer::pooled).map_err(|_| Status::INTERNAL_ERROR)
    }

    /// Hands the present step of a slot to the ring.
    #[inline]
    fn start(&mut self, index: usize) -> Result<(), Status> {
        let Some(Some(slot)) = self.slots.get(index) else {
            return Err(Status::INTERNAL_ERROR);
        };
        let work = match &slot.step {
            &Step::Move { offset, write, durable, moved } => {
                let (offset, extents) = (offset + moved as u64, extents_of(&slot.data, moved));
                if write {
                    BlockWork::Write { offset, from: extents, durable }
                } else {
                    BlockWork::Read { offset, into: extents }
                }
            }
            Step::Compare { offset, found, moved } => {
                let into = extents_of(&Data::FromDevice(found.clone()), *moved);
                BlockWork::Read { offset: offset + *moved as u64, into }
            }
            Step::Ranges { left, how, .. } => match (left.last(), how) {
                (Some(&(offset, bytes)), Clear::Discard) => BlockWork::Discard { offset, bytes },
                (Some(&(offset, bytes)), Clear::Zero) => BlockWork::Zero { offset, bytes },
                (Some(&(offset, bytes)), _) => BlockWork::Punch { offset, bytes },
                (None, _) => BlockWork::Sync,
            },
            Step::Sync => BlockWork::Sync,
        };
        self.ring.submit(index as u64, work).map_err(|_| Status::INTERNAL_ERROR)
    }

    /// What an answer of the ring's makes of a slot: the command's status, or `None` when it goes on.
    #[inline]
    fn advance(&mut self, index: usize, result: Result<u32, i32>) -> Option<Status> {
        let slot = self.slots.get_mut(index)?.as_mut()?;
        if let Err(errno) = result
            && Errno::from_raw_os_error(errno) == Errno::AGAIN
        {
            return None;
        }
        match &mut slot.step {
            Step::Sync => {
                Some(result.map_or_else(|errno| status_of(errno, Way::Change), |_| Status::SUCCESS))
            }
            Step::Move { write, moved, .. } => {
                let way = if *write { Way::Change } else { Way::Read };
                moved_on(moved, result, slot.data.bytes(), way)
            }
            Step::Compare { found, moved, .. } => match moved_on(moved, result, found.bytes(), Way::Read) {
                Some(Status::SUCCESS) => Some(compared(found, &slot.data)),
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

    /// The answer that a step's end makes, if it was the last.
    #[inline]
    fn finish(&mut self, done: Done) -> Option<Answer> {
        let index = usize::try_from(done.token).ok()?;
        let status = match self.advance(index, done.result) {
            Some(status) => status,
            None => match self.start(index) {
                Ok(()) => {
                    self.ring.kick();
                    return None;
                }
                Err(status) => status,
            },
        };
        let slot = self.slots.get_mut(index)?.take()?;
        self.free.push(index);
        Some(Answer { completion: Completion { token: slot.token, result: 0, status }, data: slot.data })
    }
}

impl Transport for UringQueue {
    fn limits(&self) -> Limits {
        Limits {
            transfer_bytes_max: self.file.transfer_bytes_max,
            segments_max: self.file.segments_max,
            memory_align: self.file.memory_align,
        }
    }

    #[inline]
    fn submit(&mut self, command: Command, token: u64) -> Result<(), Rejected> {
        let Some(&index) = self.free.last().filter(|_| self.ready.len() < self.free.len()) else {
            return Err(Rejected { command, reason: SubmitError::Full });
        };
        let planned = match self.plan(&command) {
            Ok(planned) => planned,
            Err(reason) => return Err(Rejected { command, reason }),
        };
        let data = command.data;
        let answer = |status, data| Answer { completion: Completion { token, result: 0, status }, data };
        match planned {
            Ok(step) => {
                self.slots[index] = Some(Slot { token, data, step });
                match self.start(index) {
                    Ok(()) => drop(self.free.pop()),
                    Err(status) => {
                        let data = self.slots[index].take().map(|slot| slot.data).unwrap_or_default();
                        self.ready.push_back(answer(status, data));
                    }
                }
            }
            Err(status) => self.ready.push_back(answer(status, data)),
        }
        Ok(())
    }

    #[inline]
    fn ring(&mut self) -> Result<(), IoError> {
        self.ring.kick();
        Ok(())
    }

    #[inline]
    fn reap(&mut self) -> Result<Option<Answer>, IoError> {
        if let Some(answer) = self.ready.pop_front() {
            return Ok(Some(answer));
        }
        while let Some(done) = self.ring.reap() {
            if let Some(answer) = self.finish(done) {
                return Ok(Some(answer));
            }
        }
        Ok(None)
    }

    fn sleep(&mut self, longest: Option<Nanos>) -> Result<(), IoError> {
        if self.ready.is_empty() {
            self.ring.wait(longest);
        }
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.ring.descriptor()
    }

    fn arm(&mut self) -> Result<Armed, IoError> {
        self.ring.kick();
        if self.ring.descriptor().is_none() {
            return Err(IoError::Refused {
                reason: "a polled queue has no descriptor; open it without poll=1".to_owned(),
            });
        }
        Ok(if self.ready.is_empty() { Armed::Waiting } else { Armed::Ready })
    }

    fn cancel(&mut self, token: u64) -> Result<(), IoError> {
        let index = self.slots.iter().position(|slot| slot.as_ref().is_some_and(|slot| slot.token == token));
        let asked = index.is_some_and(|index| self.ring.cancel(index as u64));
        if asked || self.ready.iter().any(|answer| answer.completion.token == token) {
            return Ok(());
        }
        Err(IoError::Refused {
            reason: format!(
                "nothing can be cancelled under token {token}: it is not in flight, or made by a plain call"
            ),
        })
    }

    fn in_flight(&self) -> u32 {
        u32::try_from(self.slots.len() - self.free.len() + self.ready.len()).unwrap_or(u32::MAX)
    }

    fn depth(&self) -> u32 {
        u32::try_from(self.slots.len()).unwrap_or(u32::MAX)
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
