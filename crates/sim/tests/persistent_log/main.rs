//! A log in persistent memory survives every power cut, and each fault that is planted in it is found.
//!
//! The same log runs on the simulator and on a mapped file.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]
#![expect(clippy::print_stdout, reason = "the extent of a sweep, and the seed of its samples")]

mod log;

use headwater_host::persistent_memory::{DurabilityMethod, MappedPersistentMemory, PersistentMemory};
use headwater_sim::persistence::{
    CrashBounds, CrashFailure, CrashImage, CrashSweep, MemoryMisuse, SimPersistentMemory,
};
use log::{LogFault, PersistentLog};

const MEMORY_BYTES: usize = 4_096;
/// Most states of a point at which every state is to be checked.
const EVERY_STATE: usize = 1 << 17;
const FAULTS: [LogFault; 7] = [
    LogFault::RecordNotFlushed,
    LogFault::NoFenceBeforeCommit,
    LogFault::CommitNotFlushed,
    LogFault::NoFenceAfterCommit,
    LogFault::TornCommit,
    LogFault::CommitFirst,
    LogFault::LastLineNotFlushed,
];

/// A recorded run of a log.
struct RecordedRun {
    memory: SimPersistentMemory,
    payloads: Vec<Vec<u8>>,
    fault: LogFault,
    /// For each payload the points at which its append began and returned.
    spans: Vec<(usize, usize)>,
}

impl RecordedRun {
    fn new(memory: SimPersistentMemory, payloads: Vec<Vec<u8>>, fault: LogFault) -> Self {
        let mut spans = Vec::new();
        {
            let (mut log, _) = PersistentLog::open(&memory, fault).unwrap();
            for payload in &payloads {
                let begun = memory.point();
                log.append(payload).unwrap();
                spans.push((begun, memory.point()));
            }
        }
        Self { memory, payloads, fault, spans }
    }

    /// Cuts the power at every point. Recovery must find each append that had returned, and nothing that had not begun.
    fn sweep(&self, bounds: CrashBounds) -> Result<CrashSweep, CrashFailure<String>> {
        self.memory.crash_sweep(bounds, |image| self.check(image))
    }

    fn check(&self, image: &CrashImage) -> Result<(), String> {
        let next = SimPersistentMemory::with_bytes(image.bytes.clone());
        let (_, found) = PersistentLog::open(&next, self.fault).map_err(|damage| damage.0)?;
        let returned = self.spans.iter().filter(|(_, end)| *end <= image.point).count();
        let begun = self.spans.iter().filter(|(start, _)| *start < image.point).count();
        if found.len() < returned {
            return Err(format!("{} of {returned} records that were acknowledged", found.len()));
        }
        if found.len() > begun || found != self.payloads[..found.len()] {
            return Err("records that were not appended".to_owned());
        }
        Ok(())
    }
}

/// Returns payloads of up to `bytes_max` bytes.
fn payloads(seed: u64, count: usize, bytes_max: usize) -> Vec<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..count)
        .map(|_| {
            let bytes = random.usize(0..=bytes_max);
            (0..bytes).map(|_| random.u8(1..)).collect()
        })
        .collect()
}

#[test]
fn acknowledged_records_survive_every_state_of_every_power_cut() {
    // 7 records of 1 to 7 words: some lie in two lines.
    let payloads: Vec<Vec<u8>> = (0..7_u8).map(|record| vec![record + 1; usize::from(record) * 8]).collect();
    let run = RecordedRun::new(SimPersistentMemory::zeroed(MEMORY_BYTES), payloads, LogFault::Correct);
    let sweep = run.sweep(CrashBounds::sampled(EVERY_STATE, 0)).unwrap();
    println!("{sweep}");
    assert_eq!(sweep.sampled_points, 0, "{sweep}");
    assert_eq!(run.memory.misuse(), []);
}

#[test]
fn acknowledged_records_of_any_length_survive_sampled_power_cuts() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    for streaming_from in [0, 100, usize::MAX] {
        let memory = SimPersistentMemory::zeroed(MEMORY_BYTES).with_streaming_from(streaming_from);
        let run = RecordedRun::new(memory, payloads(seed, 20, 150), LogFault::Correct);
        let sweep = run.sweep(CrashBounds::sampled(300, seed)).unwrap();
        println!("streaming from {streaming_from}: {sweep}");
        assert_eq!(run.memory.misuse(), []);
    }
}

#[test]
fn every_planted_fault_is_found_in_all_states_of_a_small_run() {
    let payloads: Vec<Vec<u8>> = (0..7_u8).map(|record| vec![record + 1; usize::from(record) * 8]).collect();
    for fault in FAULTS {
        let memory = SimPersistentMemory::zeroed(MEMORY_BYTES);
        let run = RecordedRun::new(memory, payloads.clone(), fault);
        let failure = run.sweep(CrashBounds::sampled(EVERY_STATE, 0)).unwrap_err();
        println!("{fault:?}: {failure}");
    }
}

#[test]
fn every_planted_fault_is_found_by_samples_of_any_seed() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    for fault in FAULTS {
        for nth in 0..10 {
            let memory = SimPersistentMemory::zeroed(MEMORY_BYTES).with_streaming_from(usize::MAX);
            let run = RecordedRun::new(memory, payloads(seed ^ nth, 20, 150), fault);
            let failure = run.sweep(CrashBounds::sampled(300, seed ^ nth));
            assert!(failure.is_err(), "{fault:?} passed {}, seed {seed}", failure.unwrap());
        }
    }
}

#[test]
fn streamed_record_without_a_fence_is_found() {
    let memory = SimPersistentMemory::zeroed(MEMORY_BYTES).with_streaming_from(0);
    let run = RecordedRun::new(memory, vec![vec![7; 24]; 3], LogFault::NoFenceBeforeCommit);
    let failure = run.sweep(CrashBounds::sampled(EVERY_STATE, 0)).unwrap_err();
    println!("{failure}");
}

#[test]
fn missing_flush_and_missing_fence_are_also_found_as_misuse() {
    let misuse_of = |fault| {
        let memory = SimPersistentMemory::zeroed(MEMORY_BYTES);
        RecordedRun::new(memory, vec![vec![1; 100]; 3], fault).memory.misuse()
    };
    assert_eq!(misuse_of(LogFault::Correct), []);
    for fault in [LogFault::RecordNotFlushed, LogFault::CommitNotFlushed, LogFault::LastLineNotFlushed] {
        let found = misuse_of(fault);
        let is_found = found.iter().any(|misuse| matches!(misuse, MemoryMisuse::NeverFlushed { .. }));
        assert!(is_found, "{fault:?}: {found:?}");
    }
    let found = misuse_of(LogFault::NoFenceAfterCommit);
    assert!(matches!(found[..], [MemoryMisuse::NeverFenced { line: 0, .. }]), "{found:?}");
}

#[test]
fn log_goes_on_after_a_power_cut_and_survives_the_next_one() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let run =
        RecordedRun::new(SimPersistentMemory::zeroed(MEMORY_BYTES), payloads(seed, 6, 60), LogFault::Correct);
    let mut images = Vec::new();
    let kept = run.memory.crash_sweep(CrashBounds::sampled(50, seed), |image| {
        images.push(image.bytes.clone());
        Ok::<(), String>(())
    });
    println!("{}", kept.unwrap());
    for _ in 0..30 {
        let memory = SimPersistentMemory::with_bytes(images[random.usize(0..images.len())].clone());
        let (mut log, before) = PersistentLog::open(&memory, LogFault::Correct).unwrap();
        log.append(b"after the cut").unwrap();
        let end = memory.point();
        let sweep = memory.crash_sweep(CrashBounds::sampled(100, seed), |image| {
            let next = SimPersistentMemory::with_bytes(image.bytes.clone());
            let (_, found) = PersistentLog::open(&next, LogFault::Correct).map_err(|damage| damage.0)?;
            let is_whole = found.len() == before.len() + 1 || image.point < end;
            let is_prefix = found[..before.len()] == before[..];
            if is_whole && is_prefix { Ok(()) } else { Err(format!("{} records", found.len())) }
        });
        sweep.unwrap();
    }
}

#[test]
fn log_in_a_mapped_file_is_read_back_by_the_next_mapping() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let file = tempfile::tempfile().unwrap();
    file.set_len(1 << 20).unwrap();
    let payloads = payloads(seed, 300, 2_000);
    {
        let memory = MappedPersistentMemory::map_file(&file, 1 << 20).unwrap();
        assert_ne!(memory.method(), DurabilityMethod::Volatile);
        let (mut log, found) = PersistentLog::open(&memory, LogFault::Correct).unwrap();
        assert!(found.is_empty());
        for payload in &payloads {
            log.append(payload).unwrap();
        }
    }
    let memory = MappedPersistentMemory::map_file(&file, 1 << 20).unwrap();
    assert_eq!(memory.bytes(), 1 << 20);
    let (_, found) = PersistentLog::open(&memory, LogFault::Correct).unwrap();
    assert!(found == payloads, "seed {seed}");
}
