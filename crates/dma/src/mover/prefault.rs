//! The pages of a job that may be absent, made present before its steps are done.
//!
//! Input: steps, and the memories of their job. Output: the same bytes in pages that are present as far as the kernel does it.
//! Invariant: only what the steps write or read is populated.
//!
//! Vectors and the memory of a program may have absent pages: a fresh one takes a fault a page, and a device that meets one stops
//! there. Buffers of the pool and frames are pinned, and thus present. Client memory and shared memory are left out: their owners
//! decide when they have pages.

use super::job::{MemoryPlace, MemoryRange, MoveStep};
use super::memory::MoveMemory;
#[cfg(not(loom))]
use headwater_host::copy::prefault_read;
use headwater_host::copy::{PREFAULT_BYTES_MIN, PrefaultOutcome, prefault_spare, prefault_write};

#[cfg(test)]
thread_local! {
    /// The bytes that the kernel populated for jobs of this thread.
    pub(super) static POPULATED_BYTES: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Makes the pages present that steps write, of lent memory those of the first `lent_bytes_max` bytes. Runs of ranges that follow
/// each other count as one.
pub(super) fn prefault_targets(memories: &mut [MoveMemory], steps: &[MoveStep], lent_bytes_max: usize) {
    if are_short(steps) {
        return;
    }
    let mut left = lent_bytes_max;
    let mut runs = RangeRuns::new(|range: MemoryRange| {
        memories[range.start.memory].prefault_target(range, &mut left);
    });
    steps.iter().for_each(|step| step.for_each_write(|range| runs.add(range)));
    runs.end();
}

/// Makes the pages present that steps read, those of the first `bytes_max` bytes: for a device, which stops at an absent one.
#[cfg(not(loom))]
pub(super) fn prefault_sources(memories: &[MoveMemory], steps: &[MoveStep], bytes_max: usize) {
    if are_short(steps) {
        return;
    }
    let mut left = bytes_max;
    let mut runs = RangeRuns::new(|range: MemoryRange| {
        memories[range.start.memory].prefault_source(range, &mut left);
    });
    steps.iter().for_each(|step| step.for_each_read(|range| runs.add(range)));
    runs.end();
}

fn are_short(steps: &[MoveStep]) -> bool {
    let bytes = steps.iter().fold(0, |sum: usize, step| sum.saturating_add(step.bytes()));
    bytes < PREFAULT_BYTES_MIN
}

/// Joins ranges that follow each other, and passes on what is long enough to prefault.
struct RangeRuns<F> {
    run: MemoryRange,
    each: F,
}

impl<F: FnMut(MemoryRange)> RangeRuns<F> {
    fn new(each: F) -> Self {
        Self { run: MemoryPlace::new(0, 0).range(0), each }
    }

    fn add(&mut self, range: MemoryRange) {
        let MemoryRange { start, bytes } = self.run;
        if start.memory == range.start.memory && start.offset + bytes == range.start.offset {
            self.run.bytes += range.bytes;
        } else {
            self.end();
            self.run = range;
        }
    }

    fn end(&mut self) {
        if self.run.bytes >= PREFAULT_BYTES_MIN {
            (self.each)(self.run);
        }
    }
}

impl MoveMemory {
    /// Makes the pages of a range present that is written, which may lie behind the end of a vector. Of lent memory it takes no
    /// more bytes than are left, and counts them.
    fn prefault_target(&mut self, MemoryRange { start, bytes }: MemoryRange, lent_left: &mut usize) {
        let (from, end) = (start.offset, start.offset + bytes);
        match self {
            Self::Vec(vector) => {
                let length = vector.len();
                note(prefault_write(&mut vector[from.min(length)..end.min(length)]));
                let spare = from.max(length) - length..end.max(length) - length;
                if let Some(spare) = vector.spare_capacity_mut().get_mut(spare) {
                    note(prefault_spare(spare));
                }
            }
            Self::Lent(lent) => {
                if let Some(own) = lent.as_bytes_mut() {
                    note(prefault_write(&mut own[from..from + take_bytes(bytes, lent_left)]));
                }
            }
            Self::Buffer(_) | Self::Frame(_) | Self::Client(_) | Self::Shared(_) | Self::Bytes(_) => {}
        }
    }

    /// Makes the pages of a range present that is read: of the memory of a program, which may be a mapping of a file. It takes no
    /// more bytes than are left, and counts them.
    #[cfg(not(loom))]
    fn prefault_source(&self, MemoryRange { start, bytes }: MemoryRange, left: &mut usize) {
        if let Self::Lent(lent) = self {
            note(prefault_read(&lent.as_bytes()[start.offset..start.offset + take_bytes(bytes, left)]));
        }
    }
}

/// Returns as many of the bytes as are left, which are fewer then.
fn take_bytes(bytes: usize, left: &mut usize) -> usize {
    let taken = bytes.min(*left);
    *left -= taken;
    taken
}

/// Notes an outcome for tests. None of them concerns the job: what stays absent is a fault.
fn note(outcome: PrefaultOutcome) {
    #[cfg(test)]
    if let PrefaultOutcome::Populated { bytes } = outcome {
        POPULATED_BYTES.set(POPULATED_BYTES.get() + bytes);
    }
    let _ = outcome;
}
