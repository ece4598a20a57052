//! The unavoidable work of moving a value: one transfer between memory and a file, one checksum, one copy.
//!
//! Input: a folder and the length of values. Output: CPU and time for a number of values.
//! Invariant: the file is written in full before the first transfer, and is opened as the node opens its flash: past the
//! page cache where the file system allows it.

use crate::experiment::LabError;
use headwater_host::clock::{Clock, Nanos};
use headwater_host::copy::crc32c;
use headwater_host::file::{DirectChoice, FileMode, allocate, open};
use headwater_host::mapped_region::{HUGE_PAGE_BYTES, MappedRegion};
use std::fs::File;
use std::hint::black_box;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// The work of the floor on one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FloorWork {
    /// A checksum, and one write to the file.
    Write,
    /// One read from the file, and a checksum.
    Read,
    /// One copy between two memories.
    Copy,
}

/// The cost of a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PayloadCost {
    /// Bytes of all values.
    pub(crate) bytes: u64,
    /// CPU of the thread.
    pub(crate) cpu: Nanos,
    /// Elapsed time.
    pub(crate) elapsed: Nanos,
}

impl PayloadCost {
    /// Returns the milliseconds of CPU for a gigabyte.
    pub(crate) fn cpu_ms_per_gb(&self) -> f64 {
        per_gb(self.cpu, self.bytes) * 1e3
    }

    /// Returns the gigabytes a second.
    pub(crate) fn gb_per_s(&self) -> f64 {
        1.0 / per_gb(self.elapsed, self.bytes)
    }
}

/// Returns the seconds for a gigabyte.
#[expect(clippy::cast_precision_loss, reason = "bytes of one run are far below 2^52")]
pub(crate) fn per_gb(time: Nanos, bytes: u64) -> f64 {
    time.to_duration().as_secs_f64() / (bytes.max(1) as f64 / 1e9)
}

/// A file, and memory for values.
pub(crate) struct PayloadFloor {
    file: File,
    /// True if transfers pass the page cache.
    pub(crate) direct: bool,
    /// As many bytes as the file has.
    memory: MappedRegion,
    /// The place to which values are copied.
    target: MappedRegion,
    random: fastrand::Rng,
    clock: Clock,
}

impl PayloadFloor {
    /// Writes a file of `file_bytes`, for values of at most `value_bytes_max`.
    pub(crate) fn create(folder: &Path, file_bytes: usize, value_bytes_max: usize) -> Result<Self, LabError> {
        let cannot = |source| LabError::Io { what: "write the file of the floor", source };
        let path = folder.join("floor");
        let map = |bytes: usize| {
            let mut region = MappedRegion::zeroed(bytes.max(HUGE_PAGE_BYTES))
                .map_err(|error| cannot(io::Error::other(error)))?;
            region.fill(0x5A);
            Ok::<MappedRegion, LabError>(region)
        };
        let (memory, target) = (map(file_bytes)?, map(value_bytes_max)?);
        let made = File::create(&path).map_err(cannot)?;
        allocate(&made, file_bytes as u64).map_err(|error| cannot(io::Error::other(error)))?;
        for at in (0..file_bytes).step_by(HUGE_PAGE_BYTES) {
            let end = file_bytes.min(at + HUGE_PAGE_BYTES);
            made.write_all_at(&memory[at..end], at as u64).map_err(cannot)?;
        }
        made.sync_all().map_err(cannot)?;
        let (file, mode) = open(&path, DirectChoice::Auto).map_err(cannot)?;
        let (random, clock) = (fastrand::Rng::with_seed(3), Clock::start());
        Ok(Self { file, direct: mode == FileMode::Direct, memory, target, random, clock })
    }

    /// Does the work on `count` values of `value_bytes`.
    pub(crate) fn round(
        &mut self,
        work: FloorWork,
        value_bytes: usize,
        count: u64,
    ) -> Result<PayloadCost, LabError> {
        let places = self.memory.len() / value_bytes;
        let (begun, cpu) = (self.clock.now(), Clock::thread_cpu());
        for _ in 0..count {
            let at = self.random.usize(..places) * value_bytes;
            self.value(work, at, value_bytes)
                .map_err(|source| LabError::Io { what: "use the file of the floor", source })?;
        }
        Ok(PayloadCost {
            bytes: value_bytes as u64 * count,
            cpu: Clock::thread_cpu().since(cpu),
            elapsed: self.clock.now().since(begun),
        })
    }

    fn value(&mut self, work: FloorWork, at: usize, bytes: usize) -> io::Result<()> {
        match work {
            FloorWork::Write => {
                black_box(crc32c(0, &self.memory[at..at + bytes]));
                self.file.write_all_at(&self.memory[at..at + bytes], at as u64)
            }
            FloorWork::Read => {
                self.file.read_exact_at(&mut self.target[..bytes], at as u64)?;
                black_box(crc32c(0, &self.target[..bytes]));
                Ok(())
            }
            FloorWork::Copy => {
                self.target[..bytes].copy_from_slice(&self.memory[at..at + bytes]);
                black_box(&self.target[0]);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{RunContext, RunOptions};

    #[test]
    fn floor_moves_the_bytes_that_it_counts() {
        let context = RunContext::open(RunOptions::default()).unwrap();
        let mut floor = PayloadFloor::create(context.scratch(), 4 << 20, 1 << 20).unwrap();
        for work in [FloorWork::Write, FloorWork::Read, FloorWork::Copy] {
            let cost = floor.round(work, 1 << 20, 3).unwrap();
            assert_eq!(cost.bytes, 3 << 20);
            assert!(cost.gb_per_s() > 0.0 && cost.cpu_ms_per_gb() > 0.0, "{work:?} {cost:?}");
        }
        floor.target.fill(0);
        floor.round(FloorWork::Read, 1 << 20, 1).unwrap();
        assert!(floor.target[..1 << 20].iter().all(|&byte| byte == 0x5A));
    }

    #[test]
    fn cost_of_a_gigabyte_is_time_over_bytes() {
        let cost =
            PayloadCost { bytes: 500_000_000, cpu: Nanos::from_millis(50), elapsed: Nanos::from_millis(250) };
        assert!((cost.cpu_ms_per_gb() - 100.0).abs() < 1e-6);
        assert!((cost.gb_per_s() - 2.0).abs() < 1e-6);
    }
}
