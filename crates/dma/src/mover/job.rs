//! A job: steps over memories that it owns.
//!
//! Input: memories, then steps that name ranges of them. Output: a job that the mover runs, and that returns with its memories
//! and one result a step. Invariant: every range of a checked job lies in its memory, and no step writes what it also reads;
//! steps run in their order, each exactly once, wherever they run. Ranges of client memory may be the same bytes by two names:
//! what is in them then is the client's own affair.
//!
//! A list of copies is a scatter or a gather, steps of several kinds are a sequence; both have one completion.

use super::error::InvalidStep;
use super::job_properties::{CacheIntent, MemoryNodes, MoveDurability, SourceKind, StreamingBorder};
use super::memory::MoveMemory;
use super::policy::MoveOperation;
use super::run::run_next;
use headwater_host::clock::Nanos;
use headwater_host::copy::persist::DrainPromise;

/// A byte in a memory of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlace {
    /// The memory, by its number in the job.
    pub memory: usize,
    /// The offset in it, in bytes.
    pub offset: usize,
}

impl MemoryPlace {
    /// Returns the place at an offset of a memory.
    #[must_use]
    pub const fn new(memory: usize, offset: usize) -> Self {
        Self { memory, offset }
    }

    /// Returns the range of so many bytes that begins here.
    #[must_use]
    pub const fn range(self, bytes: usize) -> MemoryRange {
        MemoryRange { start: self, bytes }
    }
}

/// A range in a memory of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRange {
    /// Its first byte.
    pub start: MemoryPlace,
    /// Its length in bytes.
    pub bytes: usize,
}

/// One operation of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveStep {
    /// Copies a range.
    Copy {
        /// The bytes to copy.
        from: MemoryRange,
        /// The first byte of the copy.
        to: MemoryPlace,
    },
    /// Copies a range and computes the CRC-32C of the bytes that arrive, in one pass.
    CopyCrc32c {
        /// The bytes to copy.
        from: MemoryRange,
        /// The first byte of the copy.
        to: MemoryPlace,
        /// The CRC of the preceding bytes, 0 at the start.
        seed: u32,
    },
    /// Copies a range to two places.
    Dualcast {
        /// The bytes to copy.
        from: MemoryRange,
        /// The first bytes of the copies.
        to: [MemoryPlace; 2],
    },
    /// Fills a range with one value.
    Fill {
        /// The bytes to write.
        to: MemoryRange,
        /// The value of each.
        value: u8,
    },
    /// Compares two ranges.
    Compare {
        /// The first range.
        range: MemoryRange,
        /// The first byte of the second range, which has the same length.
        with: MemoryPlace,
    },
    /// Computes the CRC-32C of a range.
    Crc32c {
        /// The bytes.
        of: MemoryRange,
        /// The CRC of the preceding bytes, 0 at the start.
        seed: u32,
    },
    /// Writes the cache lines of a range back to memory, for bytes that are already there.
    Flush {
        /// The bytes.
        of: MemoryRange,
    },
}

impl MoveStep {
    /// Returns the bytes that the step moves or reads.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        match self {
            Self::Copy { from, .. } | Self::CopyCrc32c { from, .. } | Self::Dualcast { from, .. } => {
                from.bytes
            }
            Self::Fill { to: range, .. }
            | Self::Compare { range, .. }
            | Self::Crc32c { of: range, .. }
            | Self::Flush { of: range } => range.bytes,
        }
    }
}

impl MoveStep {
    /// Returns the operation, for the policy.
    pub(super) const fn operation(&self) -> MoveOperation {
        match self {
            Self::Copy { .. } => MoveOperation::Copy,
            Self::CopyCrc32c { .. } => MoveOperation::CopyCrc32c,
            Self::Dualcast { .. } => MoveOperation::Dualcast,
            Self::Fill { .. } => MoveOperation::Fill,
            Self::Compare { .. } => MoveOperation::Compare,
            Self::Crc32c { .. } => MoveOperation::Crc32c,
            Self::Flush { .. } => MoveOperation::Flush,
        }
    }

    /// Calls `each` with the ranges that the step reads.
    pub(super) fn for_each_read(&self, mut each: impl FnMut(MemoryRange)) {
        match *self {
            Self::Copy { from, .. } | Self::CopyCrc32c { from, .. } | Self::Dualcast { from, .. } => {
                each(from);
            }
            Self::Fill { .. } => {}
            Self::Compare { range, with } => {
                each(range);
                each(with.range(range.bytes));
            }
            Self::Crc32c { of, .. } | Self::Flush { of } => each(of),
        }
    }

    /// Calls `each` with the ranges that the step writes.
    pub(super) fn for_each_write(&self, mut each: impl FnMut(MemoryRange)) {
        match *self {
            Self::Copy { from, to } | Self::CopyCrc32c { from, to, .. } => each(to.range(from.bytes)),
            Self::Dualcast { from, to } => to.into_iter().for_each(|to| each(to.range(from.bytes))),
            Self::Fill { to, .. } => each(to),
            Self::Compare { .. } | Self::Crc32c { .. } | Self::Flush { .. } => {}
        }
    }

    /// Returns the step with new numbers for its memories: `numbers[old]` is the new one.
    pub(super) fn renumbered(mut self, numbers: &[usize]) -> Self {
        let places: [Option<&mut MemoryPlace>; 3] = match &mut self {
            Self::Copy { from, to } | Self::CopyCrc32c { from, to, .. } => {
                [Some(&mut from.start), Some(to), None]
            }
            Self::Dualcast { from, to: [first, second] } => {
                [Some(&mut from.start), Some(first), Some(second)]
            }
            Self::Fill { to: range, .. } | Self::Crc32c { of: range, .. } | Self::Flush { of: range } => {
                [Some(&mut range.start), None, None]
            }
            Self::Compare { range, with } => [Some(&mut range.start), Some(with), None],
        };
        places.into_iter().flatten().for_each(|place| place.memory = numbers[place.memory]);
        self
    }
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepResult {
    /// The step was done, and has no value.
    Done,
    /// The CRC-32C.
    Crc32c(u32),
    /// Both ranges hold the same bytes.
    Equal,
    /// The ranges differ first at this offset.
    DiffersAt(usize),
}

/// The steps of a job as they were given, while it has merged ones.
#[derive(Debug)]
pub(super) struct GivenSteps {
    pub(super) steps: Vec<MoveStep>,
    /// The number of given steps that each merged one stands for.
    pub(super) counts: Vec<usize>,
}

/// A number of steps over memories that the job owns.
#[derive(Debug, Default)]
pub struct MoveJob {
    pub(super) memories: Vec<MoveMemory>,
    pub(super) steps: Vec<MoveStep>,
    /// One for each step that was done.
    pub(super) results: Vec<StepResult>,
    pub(super) durability: MoveDurability,
    pub(super) cache_intent: CacheIntent,
    /// That of the mover that does the job.
    pub(super) streaming_border: StreamingBorder,
    pub(super) source_kind: SourceKind,
    pub(super) nodes: MemoryNodes,
    pub(super) deadline: Option<Nanos>,
    pub(super) promise: Option<DrainPromise>,
    /// The steps that were given, while a channel has the job with merged ones.
    pub(super) given_steps: Option<Box<GivenSteps>>,
    /// True while a channel has the job whose writes pass the caches by.
    pub(super) skips_flush: bool,
}

impl MoveJob {
    /// Creates a job without memories and steps.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a memory. Returns its number, by which steps name it.
    #[inline]
    pub fn add_memory(&mut self, memory: impl Into<MoveMemory>) -> usize {
        self.memories.push(memory.into());
        self.memories.len() - 1
    }

    /// Adds a step behind those that it has.
    #[inline]
    pub fn add_step(&mut self, step: MoveStep) {
        self.steps.push(step);
    }

    /// Sets the guarantee for what the job writes.
    #[must_use]
    pub fn with_durability(mut self, durability: MoveDurability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets the use of what the job writes.
    #[must_use]
    pub fn with_cache_intent(mut self, intent: CacheIntent) -> Self {
        self.cache_intent = intent;
        self
    }

    /// Sets the kind of memory that the job reads: with the durability it is the direction by which the policy has its thresholds
    /// and learns.
    #[must_use]
    pub fn with_source_kind(mut self, kind: SourceKind) -> Self {
        self.source_kind = kind;
        self
    }

    /// Sets the nodes of the memories: the policy learns what each channel takes for them.
    #[must_use]
    pub fn with_nodes(mut self, nodes: MemoryNodes) -> Self {
        self.nodes = nodes;
        self
    }

    /// Sets the time, on the clock of the mover, at which the job should have ended, or removes it. The policy prefers an
    /// engine that is expected to meet it; a job that misses it is done nevertheless. Such a job tries no engine for the sake of
    /// learning: if every job has a deadline, an engine that became faster is not found.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Option<Nanos>) -> Self {
        self.deadline = deadline;
        self
    }

    /// Returns the nodes of the memories, as they were set.
    #[must_use]
    pub fn nodes(&self) -> MemoryNodes {
        self.nodes
    }

    /// Returns the time, on the clock of the mover, at which the job should have ended.
    #[must_use]
    pub fn deadline(&self) -> Option<Nanos> {
        self.deadline
    }

    /// Returns the guarantee for what the job writes.
    #[must_use]
    pub fn durability(&self) -> MoveDurability {
        self.durability
    }

    /// Returns true if a [channel](super::MoveChannel) that has the job must flush what its device wrote before the job has
    /// ended: the job is persistent, and the bytes may be in a cache, as far as the policy knows.
    #[must_use]
    pub fn needs_flush(&self) -> bool {
        self.durability == MoveDurability::Persistent && !self.skips_flush
    }

    /// Returns the bytes of all steps.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.steps.iter().fold(0, |sum, step| sum.saturating_add(step.bytes()))
    }

    /// Returns the steps.
    #[must_use]
    pub fn steps(&self) -> &[MoveStep] {
        &self.steps
    }

    /// Returns the memories, in the order of their numbers.
    #[must_use]
    pub fn memories(&self) -> &[MoveMemory] {
        &self.memories
    }

    /// Returns the results of the steps that were done, in order: of all of them, once the job has ended.
    #[must_use]
    pub fn results(&self) -> &[StepResult] {
        &self.results
    }

    /// Returns the CRC-32C that a step computed; `None` if it computes none or was not done.
    #[must_use]
    pub fn crc32c(&self, step: usize) -> Option<u32> {
        match self.results.get(step)? {
            StepResult::Crc32c(crc) => Some(*crc),
            _ => None,
        }
    }

    /// Returns the guarantee for the bytes of a [persistent](MoveDurability::Persistent) job that has ended, or of one that
    /// flushed; `None` for a visible one.
    #[must_use]
    pub fn promise(&self) -> Option<DrainPromise> {
        self.promise
    }

    /// Returns the memories to their owner, in the order of their numbers.
    #[must_use]
    pub fn into_memories(self) -> Vec<MoveMemory> {
        self.memories
    }

    /// Does the next steps of a checked job, at most `most` of them, by the CPU of the caller, with the guarantee of the
    /// job for what they wrote. For a [channel](super::MoveChannel) that does jobs in a way of its own.
    ///
    /// # Panics
    /// A step cannot be run: the job was not [checked](Self::check).
    pub fn run_steps(&mut self, most: usize) {
        run_next(self, most);
    }

    /// Forgets the results of an earlier run, and takes the border of the mover.
    pub(super) fn begin(&mut self, streaming_border: StreamingBorder) {
        self.streaming_border = streaming_border;
        self.results.clear();
        self.promise = None;
        self.skips_flush = false;
    }

    /// Removes steps, results and the deadline, and returns the memories, so that the job can be filled again without an
    /// allocation.
    pub fn drain_memories(&mut self) -> impl Iterator<Item = MoveMemory> {
        self.deadline = None;
        self.steps.clear();
        self.results.clear();
        self.promise = None;
        self.memories.drain(..)
    }

    /// Returns true if a range, and one of the same length that begins at another place, have no byte in common. Both lie in
    /// their memories, so that their ends do not overflow.
    #[inline]
    pub(super) fn are_apart(&self, from: MemoryRange, to: MemoryPlace) -> bool {
        let (first, second) = (from.start.offset, to.offset);
        let is_same = || {
            let memories = &self.memories;
            from.start.memory == to.memory || memories[from.start.memory].is_same(&memories[to.memory])
        };
        first + from.bytes <= second || second + from.bytes <= first || !is_same()
    }

    /// Checks every step.
    ///
    /// # Errors
    /// [`InvalidStep`] for the first step that cannot be run.
    pub fn check(&self) -> Result<(), InvalidStep> {
        let mut check = JobCheck { job: self, grown: Vec::new(), step: 0 };
        for (step, described) in self.steps.iter().enumerate() {
            check.step = step;
            check.check_step(described)?;
        }
        Ok(())
    }
}

/// The check of a job's steps, in order.
struct JobCheck<'a> {
    job: &'a MoveJob,
    /// Memories that earlier steps extend, with their length then.
    grown: Vec<(usize, usize)>,
    step: usize,
}

impl JobCheck<'_> {
    fn check_step(&mut self, step: &MoveStep) -> Result<(), InvalidStep> {
        match *step {
            MoveStep::Copy { from, to } | MoveStep::CopyCrc32c { from, to, .. } => {
                self.check_read(from)?;
                self.check_write(to.range(from.bytes))?;
                self.check_apart(from, to)
            }
            MoveStep::Dualcast { from, to: [first, second] } => {
                self.check_read(from)?;
                self.check_write(first.range(from.bytes))?;
                self.check_write(second.range(from.bytes))?;
                self.check_apart(from, first)?;
                self.check_apart(from, second)?;
                self.check_apart(first.range(from.bytes), second)
            }
            MoveStep::Fill { to, .. } => self.check_write(to),
            MoveStep::Compare { range, with } => {
                self.check_read(range)?;
                self.check_read(with.range(range.bytes))
            }
            MoveStep::Crc32c { of, .. } => self.check_read(of),
            MoveStep::Flush { of } => {
                self.check_read(of)?;
                self.check_persistent(of.start.memory)
            }
        }
    }

    fn length(&self, memory: usize) -> Result<usize, InvalidStep> {
        let Some(known) = self.job.memories.get(memory) else {
            let memories = self.job.memories.len();
            return Err(InvalidStep::NoMemory { step: self.step, memory, memories });
        };
        let grown = self.grown.iter().find(|(grown, _)| *grown == memory);
        Ok(grown.map_or_else(|| known.bytes(), |(_, bytes)| *bytes))
    }

    fn check_read(&self, MemoryRange { start, bytes }: MemoryRange) -> Result<(), InvalidStep> {
        let memory_bytes = self.length(start.memory)?;
        if start.offset.checked_add(bytes).is_some_and(|end| end <= memory_bytes) {
            return Ok(());
        }
        Err(InvalidStep::OutOfMemory { step: self.step, offset: start.offset, bytes, memory_bytes })
    }

    fn check_write(&mut self, range: MemoryRange) -> Result<(), InvalidStep> {
        let MemoryRange { start: MemoryPlace { memory, offset }, bytes } = range;
        let length = self.length(memory)?;
        let target = &self.job.memories[memory];
        if !target.is_writable() {
            return Err(InvalidStep::ReadOnly { step: self.step, memory });
        }
        if self.job.durability == MoveDurability::Persistent {
            self.check_persistent(memory)?;
        }
        if let (MoveMemory::Vec(target), Some(end)) = (target, offset.checked_add(bytes))
            && offset == length
            && end <= target.capacity()
        {
            self.grown.retain(|(grown, _)| *grown != memory);
            self.grown.push((memory, end));
            return Ok(());
        }
        self.check_read(range)
    }

    fn check_persistent(&self, memory: usize) -> Result<(), InvalidStep> {
        let is_client = matches!(self.job.memories[memory], MoveMemory::Client(_));
        if is_client { Err(InvalidStep::NotPersistent { step: self.step, memory }) } else { Ok(()) }
    }

    fn check_apart(&self, from: MemoryRange, to: MemoryPlace) -> Result<(), InvalidStep> {
        if self.job.are_apart(from, to) {
            return Ok(());
        }
        Err(InvalidStep::Overlap { step: self.step, memory: to.memory })
    }
}
