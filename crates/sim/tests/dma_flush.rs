//! Persistent jobs on a device whose writes stay in the cache, or pass it by: a power cut behind the end of a job takes nothing
//! that was declared rightly.

#![expect(clippy::unwrap_used, reason = "a test fails if its setup fails")]

use headwater_dma::mover::policy::{CacheWrites, ChannelTraits, OperationSet, PolicyConfig};
use headwater_dma::mover::{
    ChannelCounters, EndedJob, JobEnd, MemoryPlace, MoveChannel, MoveDurability, MoveJob, MoveStep, Mover,
    RefusedJob,
};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::persistent_memory::PersistentMemory as _;
use headwater_sim::persistence::{CrashBounds, CrashImage, CrashSweep, SimPersistentMemory};
use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};

const MEMORY_BYTES: usize = 16 * 64;
const LONG: Nanos = Nanos::from_millis(60_000);

/// A device that writes to persistent memory.
#[derive(Debug)]
struct PersistentDevice {
    memory: Arc<Mutex<SimPersistentMemory>>,
    /// True if its writes stay in the cache until they are flushed.
    allocates: bool,
    ended: VecDeque<EndedJob>,
}

impl MoveChannel for PersistentDevice {
    fn traits(&self) -> ChannelTraits {
        ChannelTraits {
            node: None,
            depth: 4,
            cache_writes: CacheWrites::Unknown,
            operations: OperationSet::ALL,
        }
    }

    fn submit(&mut self, token: u64, mut job: MoveJob, _now: Nanos) -> Result<(), RefusedJob> {
        let memory = self.memory.lock().unwrap();
        for step in job.steps() {
            let MoveStep::Fill { to, value } = *step else { panic!("{step:?} is no fill") };
            let bytes = vec![value; to.bytes];
            if self.allocates {
                memory.store(to.start.offset, &bytes);
            } else {
                memory.store_streaming(to.start.offset, &bytes);
            }
            if job.needs_flush() {
                memory.flush(to.start.offset..to.start.offset + to.bytes);
            }
        }
        memory.fence().unwrap();
        job.run_steps(usize::MAX);
        self.ended.push_back(EndedJob { token, job, end: JobEnd::Done, elapsed: Nanos(1) });
        Ok(())
    }

    fn poll(&mut self, _now: Nanos) -> Option<EndedJob> {
        self.ended.pop_front()
    }

    fn take_back(&mut self, _token: u64) -> Option<MoveJob> {
        None
    }

    fn prepare_sleep(&mut self) -> bool {
        self.ended.is_empty()
    }

    fn wake_descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A job that has ended: the power may be cut at any point from there on.
struct EndedFill {
    point: usize,
    range: Range<usize>,
    value: u8,
}

impl EndedFill {
    fn check(&self, image: &CrashImage) -> Result<(), String> {
        let is_kept = image.bytes[self.range.clone()].iter().all(|byte| *byte == self.value);
        if image.point < self.point || is_kept {
            return Ok(());
        }
        Err(format!("{:?} lost {}", self.range, self.value))
    }
}

/// Runs persistent jobs on the device, and cuts the power at every point.
fn cut_power(allocates: bool, declared: CacheWrites) -> (Result<CrashSweep, String>, ChannelCounters) {
    let memory = Arc::new(Mutex::new(SimPersistentMemory::zeroed(MEMORY_BYTES)));
    let device = PersistentDevice { memory: Arc::clone(&memory), allocates, ended: VecDeque::new() };
    let eager = PolicyConfig {
        threshold_bytes: [1; 4],
        cpu_bytes_per_ns: 0.001,
        channel_bytes_per_ns: 100.0,
        channel_fixed_ns: 0.0,
        cache_writes: declared,
        ..PolicyConfig::default()
    };
    let mut mover = Mover::with_channels(vec![Box::new(device)], eager, Clock::start());
    mover.policy_mut().unwrap().freeze();
    let mut ended = Vec::new();
    for (start, value) in [(3, 1), (200, 2), (512, 3)] {
        let range = start..start + 100;
        let mut job = MoveJob::new().with_durability(MoveDurability::Persistent);
        let target = job.add_memory(vec![0; MEMORY_BYTES]);
        job.add_step(MoveStep::Fill { to: MemoryPlace::new(target, start).range(100), value });
        let ticket = mover.start(job).unwrap();
        mover.wait(&ticket, LONG).unwrap();
        ended.push(EndedFill { point: memory.lock().unwrap().point(), range, value });
    }
    let bounds = CrashBounds::sampled(1 << 8, 1);
    let sweep = memory
        .lock()
        .unwrap()
        .crash_sweep(bounds, |image| ended.iter().try_for_each(|ended| ended.check(image)));
    (sweep.map_err(|failure| failure.to_string()), mover.channel_counters())
}

#[test]
fn no_power_cut_takes_what_a_device_wrote_for_a_job_that_has_ended() {
    use CacheWrites::{Allocating, NonAllocating, Unknown};
    for (allocates, declared) in
        [(true, Unknown), (true, Allocating), (false, Unknown), (false, Allocating), (false, NonAllocating)]
    {
        let (sweep, counters) = cut_power(allocates, declared);
        let sweep = sweep.unwrap_or_else(|lost| panic!("{allocates} {declared:?}: {lost}"));
        assert!(sweep.points >= 6 && sweep.states > 100, "{sweep}");
        let found = [counters.flushed_unknown, counters.flushed_allocating, counters.not_flushed];
        let expected = [Unknown, Allocating, NonAllocating].map(|way| if way == declared { 3 } else { 0 });
        assert_eq!(found, expected, "{allocates} {declared:?}");
    }
}

#[test]
fn a_missing_flush_behind_a_device_is_found() {
    // The declaration is wrong: the writes stay in the cache.
    let (sweep, counters) = cut_power(true, CacheWrites::NonAllocating);
    let lost = sweep.unwrap_err();
    assert!(lost.contains("lost 1"), "{lost}");
    assert_eq!(counters.not_flushed, 3);
}
