//! Merges adjacent steps of a job, so that a channel gets few long transfers instead of many short ones.
//!
//! Input: a checked job, then the results of its merged steps. Output: the job with fewer steps; restored, the steps as they
//! were given, each with its result. Invariant: the merged steps write what the given ones write, no merged step reads what it
//! writes, and none is longer than [`MERGED_BYTES_MAX`].
//!
//! Only steps without a value are merged: a CRC and a comparison keep theirs. A job is merged behind its split, which is made
//! between the steps that were given, and restored before it is joined or returned.

use super::job::{GivenSteps, MemoryPlace, MemoryRange, MoveJob, MoveStep};
use super::memory::MoveMemory;

/// The most bytes of a merged step. A step that a channel abandons the CPU does from its start, and what a device leaves of one
/// the CPU does while its owner polls: it takes some 0.1 ms for so much, and a transfer of so much hides the costs of its submission.
pub(super) const MERGED_BYTES_MAX: usize = 1 << 20;

impl MoveJob {
    /// Merges steps that continue the ones before them. Returns the number of steps that are gone.
    pub(super) fn merge_steps(&mut self) -> usize {
        if !self.steps.windows(2).any(|pair| self.merged(&pair[0], &pair[1]).is_some()) {
            return 0;
        }
        let (mut merged, mut counts): (Vec<MoveStep>, Vec<usize>) = (Vec::new(), Vec::new());
        for step in &self.steps {
            let joined = merged.last().and_then(|last| self.merged(last, step));
            if let (Some(joined), Some(last), Some(count)) = (joined, merged.last_mut(), counts.last_mut()) {
                *last = joined;
                *count += 1;
            } else {
                merged.push(*step);
                counts.push(1);
            }
        }
        let gone = self.steps.len() - merged.len();
        let steps = std::mem::replace(&mut self.steps, merged);
        self.given_steps = Some(Box::new(GivenSteps { steps, counts }));
        gone
    }

    /// Restores the steps as they were given, each with the result of the step that stood for it.
    pub(super) fn restore_steps(&mut self) {
        let Some(given) = self.given_steps.take() else { return };
        let GivenSteps { steps, counts } = *given;
        // A step that stands for several has no value, and its result is that of each.
        let results = std::mem::take(&mut self.results).into_iter().zip(counts);
        self.results = results.flat_map(|(result, count)| std::iter::repeat_n(result, count)).collect();
        self.steps = steps;
    }

    /// Returns the step that does what two steps do, one after the other; `None` if the second one does not continue the first,
    /// or one step would have another meaning or be too long.
    fn merged(&self, first: &MoveStep, second: &MoveStep) -> Option<MoveStep> {
        use MoveStep::{Copy, Dualcast, Fill, Flush};
        let merged = match (*first, *second) {
            (Copy { from, to }, Copy { from: next_from, to: next_to }) => {
                Copy { from: joined(from, next_from)?, to: joined_target(from, to, next_to)? }
            }
            (
                Dualcast { from, to: [one, other] },
                Dualcast { from: next_from, to: [next_one, next_other] },
            ) => {
                let to = [joined_target(from, one, next_one)?, joined_target(from, other, next_other)?];
                Dualcast { from: joined(from, next_from)?, to }
            }
            (Fill { to, value }, Fill { to: next_to, value: next_value }) if value == next_value => {
                Fill { to: joined(to, next_to)?, value }
            }
            (Flush { of }, Flush { of: next_of }) => Flush { of: joined(of, next_of)? },
            _ => return None,
        };
        if merged.bytes() > MERGED_BYTES_MAX {
            return None;
        }
        let is_apart = match merged {
            Copy { from, to } => self.are_apart(from, to),
            Dualcast { from, to: [one, other] } => {
                self.are_apart(from, one)
                    && self.are_apart(from, other)
                    && self.are_apart(one.range(from.bytes), other)
            }
            _ => true,
        };
        (is_apart && !self.writes_across_an_end(&merged)).then_some(merged)
    }

    /// Returns true if a step writes to a vector from before its end to behind it: only a write that begins there extends it.
    fn writes_across_an_end(&self, step: &MoveStep) -> bool {
        let mut is_across = false;
        step.for_each_write(|MemoryRange { start, bytes }| {
            if let MoveMemory::Vec(vector) = &self.memories[start.memory] {
                is_across |= start.offset < vector.len() && vector.len() < start.offset + bytes;
            }
        });
        is_across
    }
}

/// Returns the range of two, if the second one begins where the first one ends. Both lie in their memories, so that their ends
/// do not overflow.
fn joined(first: MemoryRange, second: MemoryRange) -> Option<MemoryRange> {
    let is_next = end_of(first) == second.start;
    is_next.then(|| first.start.range(first.bytes + second.bytes))
}

/// Returns the target of two copies, the first one of `from`, if the second target begins where the first one ends.
fn joined_target(from: MemoryRange, first: MemoryPlace, second: MemoryPlace) -> Option<MemoryPlace> {
    (end_of(first.range(from.bytes)) == second).then_some(first)
}

fn end_of(MemoryRange { start, bytes }: MemoryRange) -> MemoryPlace {
    MemoryPlace::new(start.memory, start.offset + bytes)
}
