//! The steps of a job, done by the CPU.
//!
//! Input: a checked job. Output: its bytes moved, and one result a step. Invariant: every byte of private memory is accessed
//! through the reference of its owner; shared memory is accessed only by the copies that tolerate a client.

use super::job::{MemoryPlace, MemoryRange, MoveJob, MoveStep, StepResult};
use super::job_properties::{CacheIntent, MoveDurability, StreamingBorder};
use super::memory::MoveMemory;
use super::prefault::prefault_targets;
use headwater_host::copy::persist::PersistentCopies;
use headwater_host::copy::{StreamingCopies, append_crc32c, copy_crc32c, crc32c};
use std::ops::Range;

#[cfg(test)]
thread_local! {
    /// The ranges whose lines this thread has written back by themselves, not by a persistent copy.
    pub(super) static FLUSHED_RANGES: std::cell::RefCell<Vec<MemoryRange>> =
        const { std::cell::RefCell::new(Vec::new()) };
    /// The ranges that this thread has written past the cache.
    pub(super) static STREAMED_RANGES: std::cell::RefCell<Vec<MemoryRange>> =
        const { std::cell::RefCell::new(Vec::new()) };
}

/// Bytes on the stack between two shared memories.
const BOUNCE_BYTES: usize = 4_096;

/// Does the steps of a checked job that have no result yet.
pub(super) fn run(job: &mut MoveJob) {
    run_next(job, usize::MAX);
}

/// Does the next steps of a checked job that have no result yet, at most `most` of them.
pub(super) fn run_next(job: &mut MoveJob, most: usize) {
    let MoveJob { memories, steps, results, durability, cache_intent, streaming_border, promise, .. } = job;
    let next = results.len()..results.len().saturating_add(most).min(steps.len());
    prefault_targets(memories, &steps[next.clone()], usize::MAX);
    let mut run = StepRun::new(memories, *durability, (*cache_intent, *streaming_border));
    run.is_flushed = steps[..results.len()].iter().any(|step| matches!(step, MoveStep::Flush { .. }));
    for step in &steps[next] {
        run.step(step, results);
    }
    run.streaming.fence();
    if *durability == MoveDurability::Persistent || run.is_flushed {
        // One drain for copies into private and into shared memory: nothing is flushed, so that it waits for both.
        run.persistent.flush(&[]);
        *promise = Some(run.persistent.drain());
    }
}

/// Does one step over the memories of a job, which has no such step itself: a part of one that an engine left.
#[cfg(not(loom))]
pub(super) fn run_part(job: &mut MoveJob, part: &MoveStep) -> StepResult {
    let MoveJob { memories, durability, cache_intent, streaming_border, .. } = job;
    let mut run = StepRun::new(memories, *durability, (*cache_intent, *streaming_border));
    let mut results = Vec::with_capacity(1);
    run.step(part, &mut results);
    run.streaming.fence();
    results.pop().expect("a step has a result")
}

/// Gives the guarantee of a job for the steps that have a result, which another engine did. Flushes what they wrote, unless that
/// engine passes the caches by; what the CPU did of them is flushed already.
#[cfg(not(loom))]
pub(super) fn flush_done(job: &mut MoveJob) {
    let needs_flush = job.needs_flush();
    let MoveJob { memories, steps, results, durability, cache_intent, streaming_border, promise, .. } = job;
    let done = &steps[..results.len()];
    let is_persistent = *durability == MoveDurability::Persistent;
    if !is_persistent && !done.iter().any(|step| matches!(step, MoveStep::Flush { .. })) {
        return;
    }
    let mut run = StepRun::new(memories, *durability, (*cache_intent, *streaming_border));
    if needs_flush {
        done.iter().for_each(|step| step.for_each_write(|range| run.flush(range)));
    }
    run.persistent.flush(&[]);
    *promise = Some(run.persistent.drain());
}

const RANGE_CHECKED: &str = "a step's range was checked";
const BEYOND_CAPACITY: &str = "a checked step extends a vector beyond its capacity";

/// The steps of one job.
struct StepRun<'a> {
    memories: &'a mut [MoveMemory],
    durability: MoveDurability,
    cache_intent: CacheIntent,
    streaming_border: StreamingBorder,
    streaming: StreamingCopies,
    persistent: PersistentCopies,
    is_flushed: bool,
}

impl<'a> StepRun<'a> {
    fn new(
        memories: &'a mut [MoveMemory],
        durability: MoveDurability,
        (cache_intent, streaming_border): (CacheIntent, StreamingBorder),
    ) -> Self {
        Self {
            memories,
            durability,
            cache_intent,
            streaming_border,
            streaming: StreamingCopies::default(),
            persistent: PersistentCopies::default(),
            is_flushed: false,
        }
    }

    /// Does a step and adds its result. The result is stored where it stays: one that was returned in two parts and copied as
    /// one would wait for every store of the copy before it.
    #[inline]
    fn step(&mut self, step: &MoveStep, results: &mut Vec<StepResult>) {
        match *step {
            MoveStep::Copy { from, to } => self.copy(from, to),
            MoveStep::CopyCrc32c { from, to, seed } => {
                let crc = self.copy_crc(from, to, seed);
                return results.push(StepResult::Crc32c(crc));
            }
            MoveStep::Dualcast { from, to } => self.dualcast(from, to),
            MoveStep::Fill { to, value } => self.fill(to, value),
            MoveStep::Compare { range, with } => return results.push(self.compare(range, with)),
            MoveStep::Crc32c { of, seed } => {
                let crc = self.crc(of, seed);
                return results.push(StepResult::Crc32c(crc));
            }
            MoveStep::Flush { of } => {
                self.is_flushed = true;
                self.flush(of);
            }
        }
        results.push(StepResult::Done);
    }

    /// Returns true if a range is written past the cache. The lines of a vector that grows are in the cache.
    #[inline]
    fn passes_cache(&self, to: MemoryRange) -> bool {
        let grows = || match &self.memories[to.start.memory] {
            MoveMemory::Vec(bytes) => bytes.len() < to.start.offset + to.bytes,
            _ => false,
        };
        let passes = self.streaming_border.is_passed(to.bytes, self.cache_intent) && !grows();
        #[cfg(test)]
        if passes {
            STREAMED_RANGES.with_borrow_mut(|ranges| ranges.push(to));
        }
        passes
    }

    fn copy(&mut self, from: MemoryRange, to: MemoryPlace) {
        let is_persistent = self.durability == MoveDurability::Persistent;
        if self.memories[to.memory].own_bytes_mut().is_none() {
            return self.copy_to_shared(from, to);
        }
        if !is_persistent && let Some((target, bytes)) = appended(self.memories, from, to) {
            return target.extend_from_slice(bytes);
        }
        let streams = self.passes_cache(to.range(from.bytes));
        let Self { memories, streaming, persistent, .. } = self;
        with_target(memories, from, to, |source, target| match source {
            SourceBytes::Own(bytes) if is_persistent => persistent.copy(target, bytes),
            SourceBytes::Own(bytes) if streams => streaming.copy(target, bytes),
            SourceBytes::Own(bytes) => target.copy_from_slice(bytes),
            SourceBytes::Shared(memory, offset) => {
                memory.copy_in(offset, target);
                if is_persistent {
                    persistent.flush(target);
                }
            }
        });
    }

    fn copy_crc(&mut self, from: MemoryRange, to: MemoryPlace, seed: u32) -> u32 {
        if self.memories[to.memory].own_bytes_mut().is_none() {
            return self.copy_crc_to_shared(from, to, seed);
        }
        let is_persistent = self.durability == MoveDurability::Persistent;
        if !is_persistent && let Some((target, bytes)) = appended(self.memories, from, to) {
            return append_crc32c(target, bytes, seed);
        }
        let streams = self.passes_cache(to.range(from.bytes)) && !is_persistent;
        let Self { memories, streaming, .. } = self;
        let crc = with_target(memories, from, to, |source, target| match source {
            SourceBytes::Own(bytes) if streams => streaming.copy_crc32c(target, bytes, seed),
            SourceBytes::Own(bytes) => copy_crc32c(target, bytes, seed),
            SourceBytes::Shared(memory, offset) => memory.copy_in_crc32c(offset, target, seed),
        });
        if is_persistent {
            self.flush(to.range(from.bytes));
        }
        crc
    }

    /// Calls `each` with copies of the parts of a range, in order, until it returns false.
    fn for_each_part(&mut self, from: MemoryRange, mut each: impl FnMut(&mut Self, usize, &[u8]) -> bool) {
        let (memory, start) = (from.start.memory, from.start.offset);
        let mut bounce = [0; BOUNCE_BYTES];
        for at in (0..from.bytes).step_by(BOUNCE_BYTES) {
            let part = &mut bounce[..BOUNCE_BYTES.min(from.bytes - at)];
            self.memories[memory].copy_in(start + at, part);
            if !each(self, at, part) {
                break;
            }
        }
    }

    /// Copies a range to two places. Memory that a client may change during the copy is read once: the copies are alike.
    fn dualcast(&mut self, from: MemoryRange, [first, second]: [MemoryPlace; 2]) {
        let is_own = |place: MemoryPlace| self.memories[place.memory].own_bytes().is_some();
        if is_own(from.start) || is_own(first) {
            let again = if is_own(from.start) { from } else { first.range(from.bytes) };
            self.copy(from, first);
            self.copy(again, second);
        } else if is_own(second) {
            self.copy(from, second);
            self.copy(second.range(from.bytes), first);
        } else {
            let mut ways = [first, second].map(|to| self.shared_write(to.range(from.bytes)));
            self.for_each_part(from, |run, at, part| {
                for (to, way) in [first, second].into_iter().zip(&mut ways) {
                    run.write_shared(MemoryPlace::new(to.memory, to.offset + at), part, way);
                }
                true
            });
        }
    }

    fn copy_to_shared(&mut self, from: MemoryRange, to: MemoryPlace) {
        let mut way = self.shared_write(to.range(from.bytes));
        if let (MoveMemory::Shared(source), MoveMemory::Shared(target)) =
            (&self.memories[from.start.memory], &self.memories[to.memory])
            && way.is_none()
            && self.durability == MoveDurability::Visible
        {
            let range = from.start.offset..from.start.offset + from.bytes;
            return source.copy_to(range, target, to.offset).expect(RANGE_CHECKED);
        }
        if let Some(bytes) = self.memories[from.start.memory].own_bytes() {
            let bytes = &bytes[from.start.offset..from.start.offset + from.bytes];
            self.write_shared(to, bytes, &mut way);
        } else {
            self.for_each_part(from, |run, at, part| {
                run.write_shared(MemoryPlace::new(to.memory, to.offset + at), part, &mut way);
                true
            });
        }
    }

    /// Returns the copies past the cache by which a range of shared memory is written, fenced when they end; `None` if it is
    /// written through the cache.
    fn shared_write(&self, to: MemoryRange) -> Option<StreamingCopies> {
        self.passes_cache(to).then(StreamingCopies::default)
    }

    fn write_shared(&self, to: MemoryPlace, bytes: &[u8], past_cache: &mut Option<StreamingCopies>) {
        match (&self.memories[to.memory], past_cache) {
            (MoveMemory::Shared(region), _) if self.durability == MoveDurability::Persistent => {
                region.copy_out_streaming(to.offset, bytes).expect(RANGE_CHECKED);
            }
            (MoveMemory::Shared(region), Some(copies)) => {
                region.copy_out_past_cache(to.offset, bytes, copies).expect(RANGE_CHECKED);
            }
            (target, _) => target.copy_out(to.offset, bytes),
        }
    }

    fn copy_crc_to_shared(&mut self, from: MemoryRange, to: MemoryPlace, seed: u32) -> u32 {
        let mut crc = seed;
        if let Some(bytes) = self.memories[from.start.memory].own_bytes() {
            let bytes = &bytes[from.start.offset..from.start.offset + from.bytes];
            crc = self.memories[to.memory].copy_out_crc32c(to.offset, bytes, seed);
        } else {
            self.for_each_part(from, |run, at, part| {
                crc = run.memories[to.memory].copy_out_crc32c(to.offset + at, part, crc);
                true
            });
        }
        if self.durability == MoveDurability::Persistent {
            self.flush(to.range(from.bytes));
        }
        crc
    }

    fn fill(&mut self, MemoryRange { start, bytes }: MemoryRange, value: u8) {
        let streams = self.passes_cache(start.range(bytes));
        let memory = &mut self.memories[start.memory];
        let end = start.offset + bytes;
        extend(memory, end);
        let is_persistent = self.durability == MoveDurability::Persistent;
        if let Some(own) = memory.own_bytes_mut() {
            let own = &mut own[start.offset..end];
            if is_persistent {
                self.persistent.fill(own, value);
            } else if streams {
                self.streaming.fill(own, value);
            } else {
                own.fill(value);
            }
            return;
        }
        match &*memory {
            MoveMemory::Shared(region) if is_persistent => {
                return region.fill_streaming(start.offset, bytes, value).expect(RANGE_CHECKED);
            }
            MoveMemory::Shared(region) if streams => {
                let copies = &mut self.streaming;
                return region.fill_past_cache(start.offset, bytes, value, copies).expect(RANGE_CHECKED);
            }
            _ => {}
        }
        let pattern = [value; BOUNCE_BYTES];
        for at in (start.offset..end).step_by(BOUNCE_BYTES) {
            memory.copy_out(at, &pattern[..BOUNCE_BYTES.min(end - at)]);
        }
    }

    fn compare(&mut self, range: MemoryRange, with: MemoryPlace) -> StepResult {
        let differs = |one: &[u8], other: &[u8]| one.iter().zip(other).position(|(one, other)| one != other);
        let memories = [range.start.memory, with.memory].map(|memory| self.memories[memory].own_bytes());
        if let [Some(one), Some(other)] = memories {
            let one = &one[range.start.offset..range.start.offset + range.bytes];
            let other = &other[with.offset..with.offset + range.bytes];
            let found = if one == other { None } else { differs(one, other) };
            return found.map_or(StepResult::Equal, StepResult::DiffersAt);
        }
        let mut differs_at = None;
        let mut other = [0; BOUNCE_BYTES];
        self.for_each_part(range, |run, at, part| {
            let other = &mut other[..part.len()];
            run.memories[with.memory].copy_in(with.offset + at, other);
            differs_at = if part == other { None } else { differs(part, other).map(|here| at + here) };
            differs_at.is_none()
        });
        differs_at.map_or(StepResult::Equal, StepResult::DiffersAt)
    }

    fn crc(&mut self, of: MemoryRange, seed: u32) -> u32 {
        if let Some(bytes) = self.memories[of.start.memory].own_bytes() {
            return crc32c(seed, &bytes[of.start.offset..of.start.offset + of.bytes]);
        }
        let mut crc = seed;
        self.for_each_part(of, |_, _, part| {
            crc = crc32c(crc, part);
            true
        });
        crc
    }

    fn flush(&mut self, range: MemoryRange) {
        #[cfg(test)]
        FLUSHED_RANGES.with_borrow_mut(|ranges| ranges.push(range));
        let MemoryRange { start, bytes } = range;
        let memory = &self.memories[start.memory];
        match (memory.own_bytes(), memory) {
            (Some(own), _) => self.persistent.flush(&own[start.offset..start.offset + bytes]),
            (None, MoveMemory::Shared(region)) => {
                region.flush_lines(start.offset, bytes).expect(RANGE_CHECKED);
            }
            (None, _) => unreachable!("a step that asks for persistence names no client memory"),
        }
    }
}

/// The bytes that a copy reads.
enum SourceBytes<'a> {
    /// Bytes of this process alone.
    Own(&'a [u8]),
    /// Shared memory, from an offset on.
    Shared(&'a MoveMemory, usize),
}

/// Returns the memory to read, and the one to write if it is another.
#[inline]
fn both(memories: &mut [MoveMemory], from: usize, to: usize) -> Option<(&MoveMemory, &mut MoveMemory)> {
    let [from, to] = memories.get_disjoint_mut([from, to]).ok()?;
    Some((from, to))
}

/// Returns the vector that a copy extends at its end, and the private bytes to append; `None` for every other copy.
#[inline]
fn appended(
    memories: &mut [MoveMemory],
    from: MemoryRange,
    to: MemoryPlace,
) -> Option<(&mut Vec<u8>, &[u8])> {
    let (source, MoveMemory::Vec(target)) = both(memories, from.start.memory, to.memory)? else {
        return None;
    };
    let bytes = source.own_bytes().filter(|_| target.len() == to.offset)?;
    assert!(from.bytes <= target.capacity() - to.offset, "{BEYOND_CAPACITY}");
    Some((target, &bytes[from.start.offset..from.start.offset + from.bytes]))
}

/// Calls `copy` with the source and the private bytes to write.
#[inline]
fn with_target<R>(
    memories: &mut [MoveMemory],
    from: MemoryRange,
    to: MemoryPlace,
    copy: impl FnOnce(SourceBytes<'_>, &mut [u8]) -> R,
) -> R {
    let source = from.start.offset..from.start.offset + from.bytes;
    let target = to.offset..to.offset + from.bytes;
    extend(&mut memories[to.memory], target.end);
    if let Some((memory, into)) = both(memories, from.start.memory, to.memory) {
        let into = &mut into.own_bytes_mut().expect("the target is private")[target];
        return match memory.own_bytes() {
            Some(bytes) => copy(SourceBytes::Own(&bytes[source]), into),
            None => copy(SourceBytes::Shared(memory, source.start), into),
        };
    }
    let whole = memories[to.memory].own_bytes_mut().expect("the target is private");
    let (source, target) = apart(whole, source, target);
    copy(SourceBytes::Own(source), target)
}

/// Resizes a vector so that it has a byte behind which a step's range ends.
fn extend(memory: &mut MoveMemory, end: usize) {
    if let MoveMemory::Vec(bytes) = memory
        && bytes.len() < end
    {
        assert!(end <= bytes.capacity(), "{BEYOND_CAPACITY}");
        bytes.resize(end, 0);
    }
}

/// Splits bytes into a range to read and one to write, which a checked step names apart.
fn apart(whole: &mut [u8], source: Range<usize>, target: Range<usize>) -> (&[u8], &mut [u8]) {
    if source.is_empty() {
        return (&[], &mut []);
    }
    if source.end <= target.start {
        let (front, back) = whole.split_at_mut(target.start);
        (&front[source], &mut back[..target.end - target.start])
    } else {
        let (front, back) = whole.split_at_mut(source.start);
        (&back[..source.end - source.start], &mut front[target])
    }
}
