//! A job on its way through a channel to a device.
//!
//! Input: a checked job. Output: its memories, piece by piece, for the device; what is done of it. Invariant: the job owns its
//! memories, and goes with them to the queue or engine, which returns it when the device is done.

use super::channel::{EndedJob, JobEnd};
use super::job::{MemoryPlace, MemoryRange, MoveJob, MoveStep, StepResult};
use super::memory::MoveMemory;
use super::run::{flush_done, run_part};
use crate::iova::RegionPiece;
use headwater_host::clock::Nanos;
use headwater_host::copy::join_crc32c;
use headwater_host::dsa::{WorkBytes, WorkMemory, WorkPlace};
use headwater_host::lent_bytes::LentBytes;
use std::ops::Range;

/// A piece of a step that the device does by one or two operations.
#[derive(Clone, Debug)]
pub(super) struct PlannedPiece {
    /// The offset of its first byte in the step.
    pub(super) at: usize,
    pub(super) bytes: usize,
    pub(super) step: usize,
    /// Its operations among those of the round.
    pub(super) operations: Range<usize>,
}

/// A job, and what is done of it.
#[derive(Debug)]
pub(super) struct ChannelJob {
    pub(super) job: MoveJob,
    pub(super) submitted: Nanos,
    /// The bytes of the present step that are done.
    pub(super) offset: usize,
    /// The CRC-32C of these bytes, if the step computes one.
    crc: u32,
    /// The pieces that the device has.
    pub(super) round: Vec<PlannedPiece>,
    /// Vectors that were extended for the device, with their length before.
    grown: Vec<(usize, usize)>,
}

impl ChannelJob {
    pub(super) fn new(job: MoveJob, submitted: Nanos) -> Self {
        Self { job, submitted, offset: 0, crc: 0, round: Vec::new(), grown: Vec::new() }
    }

    /// Returns the number of the present step.
    pub(super) fn step(&self) -> usize {
        self.job.results.len()
    }

    /// Returns true if every step has a result.
    pub(super) fn is_done(&self) -> bool {
        self.step() == self.job.steps.len()
    }

    /// Returns the address of a place, and the bytes from there on that are consecutive; `None` if a device cannot access it.
    pub(super) fn address(&self, place: MemoryPlace) -> Option<(usize, usize)> {
        let MemoryPlace { memory, offset } = place;
        let found = match self.job.memories.get(memory)? {
            MoveMemory::Client(segments) => {
                let piece = segments.region_piece_at(offset)?;
                let skip = offset - piece.at;
                (piece.region.address() + piece.offset + skip, piece.bytes - skip)
            }
            MoveMemory::Shared(region) => (region.address() + offset, region.bytes().checked_sub(offset)?),
            own => {
                let bytes = own.own_bytes()?.get(offset..)?;
                (bytes.as_ptr().addr(), bytes.len())
            }
        };
        (found.1 > 0).then_some(found)
    }

    /// Returns the job as it was given, for a refusal.
    pub(super) fn into_unchanged(mut self) -> MoveJob {
        for (memory, bytes) in self.grown {
            if let MoveMemory::Vec(vector) = &mut self.job.memories[memory] {
                vector.truncate(bytes);
            }
        }
        self.job
    }

    /// Resizes a vector so that a range lies in it. A checked job has the capacity.
    pub(super) fn extend_to(&mut self, range: MemoryRange) {
        let MemoryRange { start: MemoryPlace { memory, offset }, bytes } = range;
        if let MoveMemory::Vec(vector) = &mut self.job.memories[memory]
            && vector.len() < offset + bytes
        {
            self.grown.push((memory, vector.len()));
            // Never an allocation, and so never another address: other operations may have been planned.
            assert!(
                offset + bytes <= vector.capacity(),
                "a checked step extends a vector beyond its capacity"
            );
            vector.resize(offset + bytes, 0);
        }
    }

    /// Notes that the bytes of the present step up to `end` are done, without a CRC.
    pub(super) fn advance(&mut self, end: usize) {
        self.advance_crc(end, 0);
    }

    /// Notes that the bytes of the present step up to `end` are done; `crc` is that of the bytes since the last call.
    pub(super) fn advance_crc(&mut self, end: usize, crc: u32) {
        let step = self.job.steps[self.step()];
        self.crc = if self.offset == 0 { crc } else { join_crc32c(self.crc, crc, end - self.offset) };
        self.offset = end;
        if end == step.bytes() {
            let result = match step {
                MoveStep::CopyCrc32c { .. } | MoveStep::Crc32c { .. } => StepResult::Crc32c(self.crc),
                MoveStep::Compare { .. } => StepResult::Equal,
                MoveStep::Copy { .. }
                | MoveStep::Dualcast { .. }
                | MoveStep::Fill { .. }
                | MoveStep::Flush { .. } => StepResult::Done,
            };
            self.end_step(result);
        }
    }

    /// Does the next bytes of the present step by the CPU.
    pub(super) fn do_by_cpu(&mut self, bytes: usize) {
        use StepResult::{Crc32c, DiffersAt, Done, Equal};
        let (step, at) = (self.job.steps[self.step()], self.offset);
        match run_part(&mut self.job, &part_of(&step, at, bytes)) {
            Done | Equal => self.advance(at + bytes),
            Crc32c(crc) => self.advance_crc(at + bytes, crc),
            DiffersAt(here) => self.end_step(DiffersAt(at + here)),
        }
    }

    /// Does the rest of a step by the CPU, if the device did its first bytes. The mover, which gets the job, would begin the
    /// step again, and a later step may have written what those bytes were read from.
    fn finish_begun_step(&mut self) {
        if self.offset > 0 {
            self.do_by_cpu(self.job.steps[self.step()].bytes() - self.offset);
        }
    }

    /// Ends the job: done if each step has a result, else abandoned behind those that have one.
    pub(super) fn into_ended(mut self, token: u64, now: Nanos) -> EndedJob {
        self.finish_begun_step();
        flush_done(&mut self.job);
        let end = if self.is_done() { JobEnd::Done } else { JobEnd::Abandoned };
        EndedJob { token, job: self.job, end, elapsed: now.since(self.submitted) }
    }

    /// Ends the present step.
    pub(super) fn end_step(&mut self, result: StepResult) {
        self.job.results.push(result);
        (self.offset, self.crc) = (0, 0);
    }
}

impl WorkMemory for ChannelJob {
    fn for_each_piece<'a>(&'a mut self, each: &mut dyn FnMut(WorkPlace, WorkBytes<'a>)) {
        for (memory, owned) in self.job.memories.iter_mut().enumerate() {
            let start = WorkPlace { memory, offset: 0 };
            match owned {
                MoveMemory::Client(segments) => {
                    for piece in segments.region_pieces() {
                        let RegionPiece { at, region, offset, bytes } = piece;
                        each(WorkPlace { memory, offset: at }, WorkBytes::Shared { region, offset, bytes });
                    }
                }
                MoveMemory::Shared(region) => {
                    let bytes = region.bytes();
                    each(start, WorkBytes::Shared { region, offset: 0, bytes });
                }
                MoveMemory::Bytes(bytes) => each(start, WorkBytes::ReadOnly(bytes)),
                MoveMemory::Buffer(buffer) => each(start, WorkBytes::Writable(buffer)),
                MoveMemory::Frame(frame) => each(start, WorkBytes::Writable(frame)),
                MoveMemory::Vec(bytes) => each(start, WorkBytes::Writable(bytes)),
                MoveMemory::Lent(lent) => each(start, lent_bytes(lent)),
            }
        }
    }
}

fn lent_bytes(lent: &mut LentBytes) -> WorkBytes<'_> {
    if lent.is_writable() {
        WorkBytes::Writable(lent.as_bytes_mut().unwrap_or_default())
    } else {
        WorkBytes::ReadOnly(lent.as_bytes())
    }
}

/// Returns for each memory the first one that is the same.
pub(super) fn first_same(memories: &[MoveMemory]) -> Vec<usize> {
    let first_same = |nth: usize| match &memories[nth] {
        shared @ MoveMemory::Shared(_) => memories[..nth].iter().position(|other| other.is_same(shared)),
        _ => None,
    };
    (0..memories.len()).map(|nth| first_same(nth).unwrap_or(nth)).collect()
}

/// Returns a part of a step, as a step. One that computes a CRC computes that of the part; the first part continues the seed.
pub(super) fn part_of(step: &MoveStep, at: usize, bytes: usize) -> MoveStep {
    let place = |place: MemoryPlace| MemoryPlace::new(place.memory, place.offset + at);
    let part = |range: MemoryRange| place(range.start).range(bytes);
    let continued = |seed| if at == 0 { seed } else { 0 };
    match *step {
        MoveStep::Copy { from, to } => MoveStep::Copy { from: part(from), to: place(to) },
        MoveStep::CopyCrc32c { from, to, seed } => {
            MoveStep::CopyCrc32c { from: part(from), to: place(to), seed: continued(seed) }
        }
        MoveStep::Dualcast { from, to } => MoveStep::Dualcast { from: part(from), to: to.map(place) },
        MoveStep::Fill { to, value } => MoveStep::Fill { to: part(to), value },
        MoveStep::Compare { range, with } => MoveStep::Compare { range: part(range), with: place(with) },
        MoveStep::Crc32c { of, seed } => MoveStep::Crc32c { of: part(of), seed: continued(seed) },
        MoveStep::Flush { of } => MoveStep::Flush { of: part(of) },
    }
}
