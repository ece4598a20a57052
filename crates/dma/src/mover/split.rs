//! Splits a job between its steps, so that several engines do parts of it at once.
//!
//! Input: a checked job, and the step from which another engine does it. Output: the rest as a job of its own; joined again,
//! one job as if one engine had done all steps. Invariant: no step of a part reads or writes what a step of another part
//! writes; memories that both parts need are handles, of which each part has one.
//!
//! A job whose steps share one private memory, such as one vector that all of them extend, is not split.

use super::MoveJob;
use super::job::{MemoryRange, MoveStep};
use super::memory::MoveMemory;
use std::ops::Range;

/// The rest of a job that was split.
#[derive(Debug)]
pub(super) struct JobRest {
    /// The number of each of its memories in the job that it was split from, and if that job kept a handle to it.
    origins: Vec<(usize, RestMemory)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RestMemory {
    Moved,
    Handle,
}

/// The ranges of one memory that steps access: from the first byte to the last.
#[derive(Clone, Debug, Default)]
struct AccessedRanges {
    is_used: bool,
    read: Range<usize>,
    written: Range<usize>,
}

impl MoveJob {
    /// Returns false if no part of the job can be split off: the first and the last step need one private memory, or two of its
    /// memories are one.
    pub(super) fn may_split(&self) -> bool {
        let [first, .., last] = &self.steps[..] else { return false };
        let mut is_free = true;
        let mut check = |range: MemoryRange| {
            let memory = range.start.memory;
            if self.memories[memory].has_handles() {
                return;
            }
            let mut other = |range: MemoryRange| is_free &= range.start.memory != memory;
            last.for_each_read(&mut other);
            last.for_each_write(&mut other);
        };
        first.for_each_read(&mut check);
        first.for_each_write(&mut check);
        is_free && !self.names_a_mapping_twice()
    }

    fn names_a_mapping_twice(&self) -> bool {
        let mut addresses: Vec<usize> =
            self.memories.iter().filter_map(MoveMemory::mapping_address).collect();
        addresses.sort_unstable();
        addresses.windows(2).any(|pair| pair[0] == pair[1])
    }

    /// Splits the steps from `at` on off, as a job. Returns `None`, and changes nothing, if both parts need the same private
    /// memory, or what one of them writes.
    pub(super) fn split_off(&mut self, at: usize) -> Option<(Self, JobRest)> {
        let (head, rest) = (self.accessed(..at), self.accessed(at..));
        let can_part = |(memory, (head, rest)): (&MoveMemory, (&AccessedRanges, &AccessedRanges))| {
            !(head.is_used && rest.is_used) || memory.has_handles() && head.is_apart(rest)
        };
        if !self.memories.iter().zip(head.iter().zip(&rest)).all(can_part) {
            return None;
        }
        let mut tail = Self {
            durability: self.durability,
            cache_intent: self.cache_intent,
            streaming_border: self.streaming_border,
            source_kind: self.source_kind,
            nodes: self.nodes,
            deadline: self.deadline,
            ..Self::default()
        };
        let (mut origins, mut numbers) = (Vec::new(), vec![0; self.memories.len()]);
        for (nth, memory) in self.memories.iter_mut().enumerate().filter(|(nth, _)| rest[*nth].is_used) {
            let handle = if head[nth].is_used { memory.handle() } else { None };
            let kind = if handle.is_some() { RestMemory::Handle } else { RestMemory::Moved };
            numbers[nth] = tail.add_memory(handle.unwrap_or_else(|| std::mem::take(memory)));
            origins.push((nth, kind));
        }
        tail.steps.extend(self.steps.drain(at..).map(|step| step.renumbered(&numbers)));
        Some((tail, JobRest { origins }))
    }

    /// Joins the rest of the job, which was done. Rests return in the order of their steps.
    pub(super) fn join(&mut self, tail: Self, rest: JobRest) {
        let mut numbers = vec![0; tail.memories.len()];
        for ((number, memory), (origin, kind)) in numbers.iter_mut().zip(tail.memories).zip(rest.origins) {
            *number = origin;
            if kind == RestMemory::Moved {
                self.memories[origin] = memory;
            }
        }
        self.steps.extend(tail.steps.into_iter().map(|step| step.renumbered(&numbers)));
        self.results.extend(tail.results);
        self.promise = self.promise.or(tail.promise);
    }

    fn accessed(
        &self,
        steps: impl std::slice::SliceIndex<[MoveStep], Output = [MoveStep]>,
    ) -> Vec<AccessedRanges> {
        let mut accessed = vec![AccessedRanges::default(); self.memories.len()];
        for step in &self.steps[steps] {
            step.for_each_read(|range| accessed[range.start.memory].add_read(range));
            step.for_each_write(|range| accessed[range.start.memory].add_written(range));
        }
        accessed
    }
}

impl AccessedRanges {
    fn add_read(&mut self, range: MemoryRange) {
        self.is_used = true;
        extend(&mut self.read, range);
    }

    fn add_written(&mut self, range: MemoryRange) {
        self.is_used = true;
        extend(&mut self.written, range);
    }

    fn is_apart(&self, other: &Self) -> bool {
        let meets = |a: &Range<usize>, b: &Range<usize>| a.start.max(b.start) < a.end.min(b.end);
        !meets(&self.written, &other.written)
            && !meets(&self.written, &other.read)
            && !meets(&self.read, &other.written)
    }
}

fn extend(known: &mut Range<usize>, MemoryRange { start, bytes }: MemoryRange) {
    let range = start.offset..start.offset + bytes;
    if bytes > 0 {
        let is_first = known.start == known.end;
        *known = if is_first { range } else { known.start.min(range.start)..known.end.max(range.end) };
    }
}
