//! The fault matrix of the GPU channel: every fault of the library that stands for the driver, against a byte loop.

use super::dsa_operations::eager;
use super::software_gpu::SoftwareGpu;
use super::{crc_of, noise};
use headwater_dma::mover::{
    GpuChannel, GpuConfig, GpuCountersReader, MemoryPlace, MoveDurability, MoveJob, MoveMemory, MoveStep,
    Mover, StepResult,
};
use headwater_dma::pool::{GpuPinner, Pool, PoolConfig};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::gpu::{GpuDriver, GpuEngineConfig, HostRegistrations};
use std::sync::Arc;

/// The patience where nothing hangs, so that no test depends on the time of the machine; and where the hang is the point.
pub(super) const LONG: Nanos = Nanos::from_millis(600_000);
const SHORT: Nanos = Nanos::from_micros(300);
pub(super) const SLOT_BYTES: usize = 4_096;
/// Bytes of a memory of a job: three pieces, the last one short.
pub(super) const BYTES: usize = 2 * SLOT_BYTES + 700;

/// A mover that gives every job to one GPU channel, and a pool whose memory is registered.
pub(super) struct GpuMover {
    pub(super) mover: Mover,
    pub(super) counters: GpuCountersReader,
    pub(super) pool: Pool,
    pub(super) registrations: HostRegistrations,
    library: SoftwareGpu,
}

impl GpuMover {
    pub(super) fn new(faults: &str, patience: Nanos) -> Self {
        Self::with_slots(faults, patience, 3)
    }

    fn with_slots(faults: &str, patience: Nanos, slots: usize) -> Self {
        let library = SoftwareGpu::with_faults(faults);
        let driver = GpuDriver::open(&library.library()).unwrap();
        let registrations = HostRegistrations::open(&driver).unwrap();
        let pinner = Arc::new(GpuPinner::new(registrations.clone()));
        let pool =
            Pool::open(PoolConfig { cap: 16 << 20, cap_max: 16 << 20, pinner, ..PoolConfig::default() });
        let config =
            GpuConfig { patience, engine: GpuEngineConfig { slots, slot_bytes: SLOT_BYTES, depth: 4 } };
        let channel = GpuChannel::open(&driver, 0, registrations.clone(), config).unwrap();
        let counters = channel.counters();
        let mut mover = Mover::with_channels(vec![Box::new(channel)], eager(), Clock::start());
        mover.policy_mut().unwrap().freeze();
        Self { mover, counters, pool: pool.unwrap(), registrations, library }
    }

    /// Ends the channel, and returns what the library complains of.
    pub(super) fn misuses(self) -> Vec<String> {
        let Self { mover, library, registrations, .. } = self;
        drop((mover, registrations));
        // The pool is never freed, and has its memory registered.
        library.misuses()
    }

    pub(super) fn buffer(&self, content: &[u8]) -> MoveMemory {
        let mut buffer = self.pool.buffer(content.len()).unwrap();
        buffer.copy_from_slice(content);
        buffer.into()
    }

    /// Runs a job as a whole on the channel.
    pub(super) fn run(&mut self, job: MoveJob) -> MoveJob {
        let ticket = self.mover.start(job).unwrap();
        self.mover.wait(&ticket, LONG).unwrap()
    }
}

pub(super) fn bytes_of(memory: MoveMemory) -> Vec<u8> {
    match memory {
        MoveMemory::Buffer(buffer) => buffer.to_vec(),
        MoveMemory::Shared(region) => {
            let mut bytes = vec![0; region.bytes()];
            region.copy_in(0, &mut bytes).unwrap();
            bytes
        }
        MoveMemory::Vec(bytes) => bytes,
        other => panic!("{other:?} was not added"),
    }
}

/// A model of a job: its steps on vectors.
struct ModelJob {
    job: MoveJob,
    expected: Vec<Vec<u8>>,
    results: Vec<StepResult>,
}

impl ModelJob {
    /// Returns a job over some registered memories.
    fn new(gpu: &GpuMover, memories: usize, random: &mut fastrand::Rng) -> Self {
        let expected: Vec<Vec<u8>> = (0..memories).map(|_| noise(BYTES, random)).collect();
        let mut job = MoveJob::new();
        for content in &expected {
            job.add_memory(gpu.buffer(content));
        }
        Self { job, expected, results: Vec::new() }
    }

    fn copy(&mut self, from: (usize, usize), to: (usize, usize), bytes: usize) {
        let content = self.expected[from.0][from.1..from.1 + bytes].to_vec();
        self.expected[to.0][to.1..to.1 + bytes].copy_from_slice(&content);
        let from = MemoryPlace::new(from.0, from.1).range(bytes);
        self.job.add_step(MoveStep::Copy { from, to: MemoryPlace::new(to.0, to.1) });
        self.results.push(StepResult::Done);
    }

    fn dualcast(&mut self, from: (usize, usize), to: [(usize, usize); 2], bytes: usize) {
        let content = self.expected[from.0][from.1..from.1 + bytes].to_vec();
        for to in to {
            self.expected[to.0][to.1..to.1 + bytes].copy_from_slice(&content);
        }
        let from = MemoryPlace::new(from.0, from.1).range(bytes);
        let to = to.map(|(memory, offset)| MemoryPlace::new(memory, offset));
        self.job.add_step(MoveStep::Dualcast { from, to });
        self.results.push(StepResult::Done);
    }

    fn fill(&mut self, to: (usize, usize), bytes: usize, value: u8) {
        self.expected[to.0][to.1..to.1 + bytes].fill(value);
        self.job.add_step(MoveStep::Fill { to: MemoryPlace::new(to.0, to.1).range(bytes), value });
        self.results.push(StepResult::Done);
    }

    fn crc(&mut self, of: (usize, usize), bytes: usize) {
        let crc = crc_of(7, &self.expected[of.0][of.1..of.1 + bytes]);
        self.job.add_step(MoveStep::Crc32c { of: MemoryPlace::new(of.0, of.1).range(bytes), seed: 7 });
        self.results.push(StepResult::Crc32c(crc));
    }

    /// Runs the job, and compares it with the model.
    fn run(self, gpu: &mut GpuMover, cell: &str) {
        let job = gpu.run(self.job);
        assert_eq!(job.results(), self.results, "{cell}");
        for (nth, (memory, expected)) in job.into_memories().into_iter().zip(&self.expected).enumerate() {
            assert!(bytes_of(memory) == *expected, "{cell}: memory {nth}");
        }
    }
}

/// Returns a job of every operation of a GPU, with steps that need each other, and one that the CPU must do between them.
fn mixed_job(gpu: &GpuMover, seed: u64) -> ModelJob {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut model = ModelJob::new(gpu, 6, &mut random);
    model.copy((0, 0), (1, 0), BYTES);
    // The first one writes what the job has read, the second one reads what it has written.
    model.copy((2, 0), (0, 100), 3_000);
    model.copy((1, 50), (3, 0), 6_000);
    model.dualcast((2, 1), [(4, 0), (5, 9)], BYTES - 9);
    model.crc((4, 0), BYTES);
    model.fill((5, 1_000), 5_000, 0xC3);
    model.fill((5, 6_000), 100, 0xC4);
    model.copy((5, 900), (2, 0), 5_300);
    model
}

#[test]
fn every_operation_does_what_a_byte_loop_does_without_faults() {
    for (seed, slots) in [(1, 1), (2, 2), (3, 3), (4, 64)] {
        let mut gpu = GpuMover::with_slots(&format!("order {seed}"), LONG, slots);
        for round in 0..8 {
            mixed_job(&gpu, seed + round).run(&mut gpu, &format!("{slots} slots, round {round}"));
        }
        let counters = gpu.counters.read();
        assert!(counters.rounds >= 8 * 3 && counters.bytes >= 8 * BYTES as u64, "{counters:?}");
        // The checksum of each job.
        assert_eq!((counters.cpu_pieces, counters.cpu_bytes), (8, 8 * BYTES as u64), "{counters:?}");
        assert_eq!((counters.abandoned, counters.refused, counters.overdue), (0, 0, 0), "{counters:?}");
        assert_eq!(gpu.mover.channel_counters().unreachable, 0);
        assert_eq!(gpu.misuses(), [""; 0]);
    }
}

#[test]
fn any_call_that_fails_ends_the_channel_and_leaves_each_step_done_once() {
    let calls = [
        "cuMemcpyHtoDAsync",
        "cuMemcpyDtoHAsync",
        "cuMemsetD8Async",
        "cuEventCreate",
        "cuEventRecord",
        "cuEventQuery",
        "cuCtxPushCurrent",
    ];
    for call in calls {
        for nth in [0, 1, 2, 3, 5, 8] {
            for code in [1, 2, 719, 999] {
                // The first pushes are those of the opening, and of registrations.
                let skip = if call == "cuCtxPushCurrent" { 3 } else { 0 };
                let cell = format!("fail {call} {} {code}", nth + skip);
                let mut gpu = GpuMover::new(&cell, LONG);
                for round in 0..3 {
                    mixed_job(&gpu, round).run(&mut gpu, &cell);
                }
                let counters = gpu.counters.read();
                if let Some(failure) = &counters.failure {
                    assert!(
                        failure.contains(call) && failure.contains(&code.to_string()),
                        "{cell}: {failure}"
                    );
                    assert_eq!(counters.overdue, 0, "{cell}");
                }
                assert!(counters.failure.is_some() || counters.abandoned == 0, "{cell}: {counters:?}");
                let is_rare = call == "cuEventCreate" && nth > 2 || call == "cuMemsetD8Async" && nth > 3;
                assert!(counters.failure.is_some() || is_rare || skip > 0, "{cell}: {counters:?}");
                assert_eq!(gpu.misuses(), [""; 0], "{cell}");
            }
        }
    }
}

#[test]
fn transfers_that_fail_later_leave_each_step_done_once() {
    for nth in 0..24 {
        for (code, seed) in [(700, 1), (719, 2), (999, 3)] {
            let cell = format!("order {seed}\nasync {nth} {code}");
            let mut gpu = GpuMover::new(&cell, LONG);
            for round in 0..2 {
                mixed_job(&gpu, round).run(&mut gpu, &cell);
            }
            let counters = gpu.counters.read();
            assert!(counters.failure.is_some_and(|failure| failure.contains(&code.to_string())), "{cell}");
            assert_eq!(counters.abandoned, 1, "{cell}");
            assert_eq!(gpu.misuses(), [""; 0], "{cell}");
        }
    }
}

#[test]
fn driver_that_dies_at_any_call_leaves_each_step_done_once() {
    // Calls before number 40 are those of the opening.
    for nth in 40..140 {
        let cell = format!("die {nth}");
        let mut gpu = GpuMover::new(&cell, LONG);
        for round in 0..2 {
            mixed_job(&gpu, round).run(&mut gpu, &cell);
        }
        assert!(
            gpu.counters.read().failure.is_some_and(|failure| failure.contains("CUDA_ERROR_UNKNOWN")),
            "{cell}"
        );
    }
}

#[test]
fn transfers_that_hang_are_stopped_and_late_ones_are_waited_for() {
    for nth in [0, 1, 2, 5, 9, 14] {
        let cell = format!("hang {nth}");
        let mut gpu = GpuMover::new(&cell, SHORT);
        for round in 0..2 {
            mixed_job(&gpu, round).run(&mut gpu, &cell);
        }
        let counters = gpu.counters.read();
        assert_eq!((counters.overdue, counters.failure), (1, None), "{cell}");
        assert!(gpu.mover.channel_counters().abandoned > 0, "{cell}");
        assert_eq!(gpu.misuses(), [""; 0], "{cell}");
        let mut gpu = GpuMover::new(&format!("late {nth}"), LONG);
        mixed_job(&gpu, 1).run(&mut gpu, &format!("late {nth}"));
        let counters = gpu.counters.read();
        assert_eq!((counters.overdue, counters.abandoned), (0, 0), "late {nth}");
    }
}

#[test]
fn late_write_never_meets_memory_that_was_returned() {
    for nth in [0, 1, 3, 5] {
        // The GPU goes on for a while when it is stopped, and does then what hung.
        let mut gpu = GpuMover::new(&format!("hang {nth}\nslow_stop 20"), SHORT);
        let model = mixed_job(&gpu, nth);
        let job = gpu.run(model.job);
        let mut returned: Vec<_> = job.into_memories();
        for memory in &mut returned {
            let MoveMemory::Buffer(buffer) = memory else { panic!("a buffer") };
            buffer.fill(0x77);
        }
        drop(gpu);
        for memory in returned {
            assert!(bytes_of(memory).iter().all(|byte| *byte == 0x77), "hang {nth}");
        }
    }
}

#[test]
fn step_that_the_gpu_has_begun_is_not_begun_again_over_what_a_later_step_wrote() {
    // A round has eight pieces: the first step takes two rounds, and the second step writes over the source of the first one
    // in the second round, by another stream than the piece that hangs.
    const PIECES: usize = 10;
    for nth in 0..2 * (PIECES as u64 + 1) {
        let cell = format!("hang {nth}");
        let mut gpu = GpuMover::with_slots(&cell, SHORT, 2);
        let mut random = fastrand::Rng::with_seed(nth);
        let mut expected: Vec<Vec<u8>> = (0..3).map(|_| noise(PIECES * SLOT_BYTES, &mut random)).collect();
        let mut job = MoveJob::new();
        for content in &expected {
            job.add_memory(gpu.buffer(content));
        }
        let from = MemoryPlace::new(0, 0).range(PIECES * SLOT_BYTES);
        job.add_step(MoveStep::Copy { from, to: MemoryPlace::new(1, 0) });
        let from = MemoryPlace::new(2, 0).range(SLOT_BYTES);
        job.add_step(MoveStep::Copy { from, to: MemoryPlace::new(0, 0) });
        expected[1] = expected[0].clone();
        let (first, rest) = expected.split_at_mut(1);
        first[0][..SLOT_BYTES].copy_from_slice(&rest[1][..SLOT_BYTES]);
        let job = gpu.run(job);
        for (nth, (memory, expected)) in job.into_memories().into_iter().zip(&expected).enumerate() {
            assert!(bytes_of(memory) == *expected, "{cell}: memory {nth}");
        }
    }
}

#[test]
fn scattered_pages_are_one_read_and_persistent_bytes_are_flushed() {
    let mut gpu = GpuMover::with_slots("", LONG, 1);
    let content = noise(SLOT_BYTES, &mut fastrand::Rng::with_seed(8));
    let mut job = MoveJob::new().with_durability(MoveDurability::Persistent);
    job.add_memory(gpu.buffer(&content));
    for page in 0..8 {
        let to = job.add_memory(gpu.buffer(&[0; SLOT_BYTES / 8]));
        let from = MemoryPlace::new(0, page * SLOT_BYTES / 8).range(SLOT_BYTES / 8);
        job.add_step(MoveStep::Copy { from, to: MemoryPlace::new(to, 0) });
    }
    let job = gpu.run(job);
    assert!(job.promise().is_some());
    let pages: Vec<u8> = job.into_memories().into_iter().skip(1).flat_map(bytes_of).collect();
    assert!(pages == content);
    let GpuMover { mover, library, .. } = gpu;
    drop(mover);
    let [reads, writes, fills] = library.transfers();
    // Buffers of the pool may lie side by side, but each is a page or more.
    assert_eq!((reads, writes, fills), (1, 8, 0));
}

/// Returns lines of random faults.
fn random_faults(random: &mut fastrand::Rng) -> String {
    let mut lines = format!("order {}\n", random.u32(..));
    for _ in 0..random.usize(..3) {
        let nth = random.u32(..60);
        let line = match random.usize(..6) {
            0 => format!("async {nth} 700"),
            1 => format!("fail cuMemcpyDtoHAsync {nth} 1"),
            2 => format!("fail cuEventRecord {nth} 2"),
            3 => format!("late {nth}"),
            4 => format!("hang {nth}"),
            _ => format!("die {}", 40 + nth),
        };
        lines.push_str(&line);
        lines.push('\n');
    }
    lines
}

#[test]
fn jobs_in_flight_together_are_done_once_each_under_random_faults() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    for run in 0..60 {
        let faults = random_faults(&mut random);
        let cell = format!("seed {seed}, run {run}: {faults}");
        let mut gpu = GpuMover::new(&faults, Nanos::from_millis(20));
        for _ in 0..4 {
            let models: Vec<ModelJob> = (0..6).map(|_| mixed_job(&gpu, random.u64(..))).collect();
            let mut tickets = Vec::new();
            for ModelJob { job, expected, results } in models {
                tickets.push((gpu.mover.start(job).unwrap(), expected, results));
            }
            random.shuffle(&mut tickets);
            for (ticket, expected, results) in tickets {
                let job = gpu.mover.wait(&ticket, LONG).unwrap();
                assert_eq!(job.results(), results, "{cell}");
                for (memory, expected) in job.into_memories().into_iter().zip(&expected) {
                    assert!(bytes_of(memory) == *expected, "{cell}");
                }
                assert!(gpu.mover.poll(&ticket).is_none(), "{cell}");
            }
        }
        assert!(gpu.mover.poll_any().is_none(), "{cell}");
    }
}
