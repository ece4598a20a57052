//! One step of a move job, as C writes it.
//!
//! Input: a struct of C, and the memories of the job. Output: a step of the mover. Invariant: every range of a step lies in
//! its memory and what it writes is apart from what it reads, so that a job with it can be run.

use crate::call_error::CallError;
use crate::ffi::read_sized;
use crate::job_memory::JobMemory;
use crate::move_error::MoveCallError;
use headwater_dma::mover::{InvalidStep, MemoryPlace, MemoryRange, MoveStep};

/// Copies `bytes` bytes of `from` to `to`.
pub const HW_MOVE_COPY: u32 = 0;
/// Copies as HW_MOVE_COPY and computes the CRC-32C of the bytes that arrive, continued from `seed`, in one pass.
pub const HW_MOVE_COPY_CRC32C: u32 = 1;
/// Copies `bytes` bytes of `from` to `to` and to `second`.
pub const HW_MOVE_DUALCAST: u32 = 2;
/// Writes `value` to `bytes` bytes of `to`.
pub const HW_MOVE_FILL: u32 = 3;
/// Compares `bytes` bytes of `from` with those of `to`, which is only read.
pub const HW_MOVE_COMPARE: u32 = 4;
/// Computes the CRC-32C of `bytes` bytes of `from`, continued from `seed`.
pub const HW_MOVE_CRC32C: u32 = 5;
/// Writes the cache lines of `bytes` bytes of `from` back to memory, for bytes that are already there.
pub const HW_MOVE_FLUSH: u32 = 6;

/// A step of a move job. A memory is named by the number that the job returned for it. Fields that the operation does not
/// name are ignored.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct HwMoveStep {
    /// Bytes of this struct. Set it to sizeof(hw_move_step).
    pub struct_bytes: usize,
    /// Bytes that the step moves or reads.
    pub bytes: usize,
    /// Offset of the range in memory `from`, in bytes.
    pub from_offset: usize,
    /// Offset of the range in memory `to`, in bytes.
    pub to_offset: usize,
    /// Offset of the range in memory `second`, in bytes.
    pub second_offset: usize,
    /// One of HW_MOVE_COPY to HW_MOVE_FLUSH.
    pub operation: u32,
    /// The memory to read.
    pub from: u32,
    /// The memory to write; of HW_MOVE_COMPARE the second memory to read.
    pub to: u32,
    /// The second memory to write, for HW_MOVE_DUALCAST.
    pub second: u32,
    /// The CRC-32C of the preceding bytes, 0 at the start.
    pub seed: u32,
    /// The value of each byte, 0 to 255, for HW_MOVE_FILL.
    pub value: u32,
}

const _: () = assert!(size_of::<HwMoveStep>() == 64);

impl HwMoveStep {
    /// Reads the step that C passed.
    ///
    /// # Safety
    /// A pointer that is neither null nor misaligned points to a `usize`; if its value is the length of an [`HwMoveStep`],
    /// the pointer points to one.
    pub(crate) unsafe fn read(step: *const Self) -> Result<Self, CallError> {
        // SAFETY: the caller's promise.
        unsafe { read_sized(step, "step") }
    }

    /// Returns the step as the mover takes it; it is step `number` of a job with `memories`.
    pub(crate) fn check(&self, memories: &[JobMemory], number: usize) -> Result<MoveStep, CallError> {
        let check = StepCheck { memories, step: number, bytes: self.bytes };
        if self.bytes == 0 && self.operation <= HW_MOVE_FLUSH {
            return Err(MoveCallError::EmptyStep { step: number }.into());
        }
        let from = || check.source(self.from, self.from_offset);
        let to = || check.target(self.to, self.to_offset);
        let seed = self.seed;
        Ok(match self.operation {
            HW_MOVE_COPY | HW_MOVE_COPY_CRC32C => {
                let (from, to) = (from()?, to()?);
                check.apart(from, to)?;
                match self.operation {
                    HW_MOVE_COPY => MoveStep::Copy { from, to: to.start },
                    _ => MoveStep::CopyCrc32c { from, to: to.start, seed },
                }
            }
            HW_MOVE_DUALCAST => {
                let (from, first) = (from()?, to()?);
                let second = check.target(self.second, self.second_offset)?;
                check.apart(from, first)?;
                check.apart(from, second)?;
                check.apart(first, second)?;
                MoveStep::Dualcast { from, to: [first.start, second.start] }
            }
            HW_MOVE_FILL => {
                let refused = |_| CallError::InvalidValue {
                    field: "value",
                    value: self.value.into(),
                    choice: "0 to 255",
                };
                MoveStep::Fill { value: u8::try_from(self.value).map_err(refused)?, to: to()? }
            }
            HW_MOVE_COMPARE => {
                let with = check.source(self.to, self.to_offset)?;
                MoveStep::Compare { range: from()?, with: with.start }
            }
            HW_MOVE_CRC32C => MoveStep::Crc32c { of: from()?, seed },
            HW_MOVE_FLUSH => MoveStep::Flush { of: from()? },
            value => {
                let choice = "HW_MOVE_COPY to HW_MOVE_FLUSH";
                return Err(CallError::InvalidValue { field: "operation", value: value.into(), choice });
            }
        })
    }
}

/// The check of one step.
struct StepCheck<'a> {
    memories: &'a [JobMemory],
    step: usize,
    bytes: usize,
}

impl StepCheck<'_> {
    /// Returns a range to read, by its offset in the memory that the mover gets.
    fn source(&self, number: u32, offset: usize) -> Result<MemoryRange, MoveCallError> {
        let Self { memories, step, bytes } = *self;
        // A number that does not fit is no index.
        let memory = usize::try_from(number).unwrap_or(usize::MAX);
        let found = memories.get(memory);
        let found = found.ok_or(InvalidStep::NoMemory { step, memory, memories: memories.len() })?;
        let end = offset.checked_add(bytes).ok_or(MoveCallError::StepOverflow { step, offset, bytes })?;
        if end > found.bytes() {
            return Err(InvalidStep::OutOfMemory { step, offset, bytes, memory_bytes: found.bytes() }.into());
        }
        Ok(MemoryPlace::new(memory, found.base() + offset).range(bytes))
    }

    /// Returns a range to write.
    fn target(&self, number: u32, offset: usize) -> Result<MemoryRange, MoveCallError> {
        let range = self.source(number, offset)?;
        let memory = range.start.memory;
        if !self.memories[memory].is_writable() {
            return Err(InvalidStep::ReadOnly { step: self.step, memory }.into());
        }
        Ok(range)
    }

    /// Checks that two ranges have no common byte. Memories that one of them writes are apart.
    fn apart(&self, one: MemoryRange, written: MemoryRange) -> Result<(), MoveCallError> {
        let (first, second) = (one.start, written.start);
        let is_apart =
            first.offset + self.bytes <= second.offset || second.offset + self.bytes <= first.offset;
        if first.memory == second.memory && !is_apart {
            return Err(InvalidStep::Overlap { step: self.step, memory: second.memory }.into());
        }
        Ok(())
    }
}
