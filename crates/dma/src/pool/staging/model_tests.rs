//! Seeded runs of the static tier over a simulated device, checked against a model: for every byte the list of writes.
#![expect(clippy::cast_possible_truncation, reason = "the device of the model has 40,000 bytes")]

use super::*;
use headwater_host::shared_memory::SharedMemory;

const DEVICE_BYTES: u64 = 40_000;
const STEPS: usize = 6_000;

#[derive(Debug)]
struct DeviceRefusal;

/// A write in flight, which the device applies at some time before it completes.
struct WriteInFlight {
    write: DrainWrite,
    bytes: Vec<u8>,
    applied: bool,
    fails: bool,
}

/// A read in flight: the device copies its bytes at some time before it completes.
struct ReadInFlight {
    read: ReadId,
    range: DeviceRange,
    place: SlotLocation,
    copied: bool,
}

/// A write in the model.
struct ModelWrite {
    offset: u64,
    bytes: Vec<u8>,
    failed: bool,
    /// Number of completions: exactly one in the end.
    completions: u32,
}

struct StagingModel {
    random: fastrand::Rng,
    staging: StagingTier<SharedMemory>,
    now: Nanos,
    disk: Vec<u8>,
    writing: Vec<WriteInFlight>,
    reading: Vec<ReadInFlight>,
    /// Writes by tag.
    known: Vec<ModelWrite>,
    unit: u64,
    seed: u64,
}

impl StagingModel {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let unit_bytes = *random.choice(&[1, 64, 512]).unwrap_or(&1);
        let config = StagingConfig {
            write_blocks: random.u32(1..=4),
            read_blocks: random.u32(1..=2),
            block_bytes: random.usize(1..=6) * 4_096,
            slot_bytes: 4_096,
            unit_bytes,
            batch: BatchLimits {
                slots: random.u32(1..=5),
                bytes: random.u64(1..=9_000),
                age: Nanos(random.u64(0..=30)),
            },
        };
        let memory = |bytes| Ok::<_, StagingConfigError>(SharedMemory::anonymous(bytes).unwrap());
        Self {
            staging: StagingTier::open(&config, memory).unwrap(),
            now: Nanos::ZERO,
            disk: vec![0; DEVICE_BYTES as usize],
            writing: Vec::new(),
            reading: Vec::new(),
            known: Vec::new(),
            unit: u64::from(unit_bytes),
            random,
            seed,
        }
    }

    /// Chooses a range, often in the same part of the device, so that ranges overlap.
    fn range(&mut self) -> (u64, usize) {
        let span = if self.random.bool() { 6_000 } else { DEVICE_BYTES - 4_096 };
        let longest = if self.random.bool() { 4_096 } else { 600 };
        let units = self.random.u64(1..=longest / self.unit);
        let offset = self.random.u64(0..span) / self.unit * self.unit;
        (offset, (units * self.unit) as usize)
    }

    fn stage(&mut self) {
        let (offset, length) = self.range();
        let bytes: Vec<u8> = (0..length).map(|_| self.random.u8(..)).collect();
        let tag = self.known.len() as u64;
        match self.staging.stage(self.now, offset, &bytes, tag) {
            Ok(_) => self.known.push(ModelWrite { offset, bytes, failed: false, completions: 0 }),
            Err(StageError::Full { completions, undrained }) => {
                assert!(completions > 0, "seed {}: full, although a block is empty", self.seed);
                let waiting = undrained as usize + self.writing.len();
                assert!(
                    waiting >= completions as usize,
                    "seed {}: no pending write would make room",
                    self.seed
                );
            }
            Err(error) => panic!("seed {}: {error}", self.seed),
        }
    }

    fn drain(&mut self) {
        let mut writes = Vec::new();
        self.staging.drain(self.now, &mut writes);
        for write in writes {
            let mut bytes = vec![0; write.range.bytes];
            self.staging.write_memory(write.location.block).unwrap().copy_to(write.location.at, &mut bytes);
            for other in &self.writing {
                let apart = other.write.range.offset + other.bytes.len() as u64 <= write.range.offset
                    || write.range.offset + bytes.len() as u64 <= other.write.range.offset;
                assert!(apart, "seed {}: two overlapping writes are in flight", self.seed);
            }
            let fails = self.random.u32(0..10) == 0;
            self.writing.push(WriteInFlight { write, bytes, applied: false, fails });
        }
    }

    /// Performs one device step: applies a write, copies a read, or completes one, in any order.
    fn device(&mut self) {
        if !self.writing.is_empty() && self.random.bool() {
            let at = self.random.usize(0..self.writing.len());
            let write = &mut self.writing[at];
            if !write.applied && !write.fails {
                let start = write.write.range.offset as usize;
                self.disk[start..start + write.bytes.len()].copy_from_slice(&write.bytes);
            }
            write.applied = true;
            if self.random.bool() {
                self.answer_write(at);
            }
        } else if !self.reading.is_empty() {
            let at = self.random.usize(0..self.reading.len());
            let read = &mut self.reading[at];
            if !read.copied {
                let start = read.range.offset as usize;
                let held = &self.disk[start..start + read.range.bytes];
                self.staging.read_memory_mut(read.place.block).unwrap().copy_from(read.place.at, held);
                read.copied = true;
            } else {
                self.answer_read(at);
            }
        }
    }

    fn answer_write(&mut self, at: usize) {
        let write = self.writing.swap_remove(at);
        let result = if write.fails { Err(DeviceRefusal) } else { Ok(()) };
        let done = self.staging.complete(write.write.slot, result).unwrap();
        let known = &mut self.known[done.tag as usize];
        assert_eq!(known.offset, write.write.range.offset, "seed {}", self.seed);
        assert_eq!(done.result.is_err(), write.fails, "seed {}: the result of another write", self.seed);
        assert!(known.bytes == write.bytes, "seed {}: the device received other bytes", self.seed);
        known.completions += 1;
        known.failed = write.fails;
    }

    fn answer_read(&mut self, at: usize) {
        let read = self.reading.swap_remove(at);
        let mut bytes = vec![0; read.range.bytes];
        if self.random.u32(0..20) == 0 {
            let failed = self.staging.finish_read(read.read, Err(DeviceRefusal), &mut bytes);
            assert!(matches!(failed, Err(ReadError::Device(DeviceRefusal))), "seed {}", self.seed);
            return;
        }
        self.staging.finish_read::<DeviceRefusal>(read.read, Ok(()), &mut bytes).unwrap();
        self.check(read.range.offset, &bytes);
    }

    fn read(&mut self) {
        let (offset, length) = self.range();
        let mut bytes = vec![0; length];
        match self.staging.read(offset, &mut bytes) {
            Ok(ReadStart::Staged) => self.check(offset, &bytes),
            Ok(ReadStart::Device { read, range, location: place }) => {
                self.reading.push(ReadInFlight { read, range, place, copied: false });
            }
            Err(StageError::ReadsFull { in_flight }) => assert_eq!(in_flight as usize, self.reading.len()),
            Err(error) => panic!("seed {}: {error}", self.seed),
        }
    }

    /// Checks that a read returned, byte by byte, the newest write that has not failed.
    fn check(&self, offset: u64, bytes: &[u8]) {
        let mut expected = vec![0; bytes.len()];
        for known in self.known.iter().filter(|known| !known.failed) {
            for (at, byte) in (known.offset..).zip(&known.bytes) {
                if let Some(place) = at.checked_sub(offset).and_then(|at| expected.get_mut(at as usize)) {
                    *place = *byte;
                }
            }
        }
        assert!(
            bytes == expected,
            "seed {}: a read at {offset} of {} bytes is wrong",
            self.seed,
            bytes.len()
        );
    }

    fn run(&mut self) {
        for _ in 0..STEPS {
            self.now = self.now.after(Nanos(self.random.u64(0..4)));
            match self.random.u32(0..100) {
                0..25 => self.stage(),
                25..40 => self.read(),
                40..60 => self.drain(),
                60..98 => self.device(),
                _ => {
                    self.staging.flush();
                }
            }
            if self.known.len() > 120 {
                self.complete_all();
            }
        }
        self.complete_all();
    }

    /// Completes all requests, and checks that each completed once and that the disk holds the result of the writes.
    fn complete_all(&mut self) {
        let barrier = self.staging.flush();
        while !self.staging.is_flushed(barrier) || !self.reading.is_empty() {
            self.drain();
            self.device();
        }
        assert!(
            self.known.iter().all(|known| known.completions == 1),
            "seed {}: a write was lost",
            self.seed
        );
        assert_eq!(self.staging.statistics().staged, 0, "seed {}", self.seed);
        let disk = self.disk.clone();
        self.check(0, &disk);
        // The model restarts from the disk's content.
        self.known.clear();
        self.known.push(ModelWrite { offset: 0, bytes: disk, failed: false, completions: 1 });
    }
}

#[test]
fn random_requests_match_the_model_over_a_failing_device_that_reorders() {
    for seed in 0..60 {
        StagingModel::new(seed).run();
    }
}
