//! Tests of the flush behind the writes of a device: declared, decided, done and counted.

use super::*;
use crate::mover::run::FLUSHED_RANGES;
use headwater_host::dsa::{
    DsaOpcode, DsaOpcodeSet, FaultSource, PortalFault, PortalKind, SoftwarePortal, WorkQueueMode,
};

const BYTES: usize = 10_000;

/// Ends the first descriptor at a missing page, if there is a place for it.
struct MissingPage(Option<u32>);

impl FaultSource for MissingPage {
    fn fault(&mut self, nth: u64, _opcode: Option<DsaOpcode>) -> PortalFault {
        match self.0 {
            Some(done) if nth == 0 => PortalFault::PageFault { done, is_write: true },
            _ => PortalFault::None,
        }
    }
}

/// Starts a work queue of a device without hardware that ends its descriptors so.
pub(super) fn work_queue(faults: impl FaultSource) -> DsaChannel {
    let kind = PortalKind {
        mode: WorkQueueMode::Dedicated,
        size: 8,
        transfer_bytes_max: 1 << 20,
        batch_max: 16,
        opcodes: DsaOpcodeSet::ALL,
    };
    let portal = SoftwarePortal::start(kind, faults).unwrap();
    DsaChannel::software(portal, DsaConfig { patience: LONG, ..DsaConfig::default() }).unwrap()
}

/// Starts a job on a work queue of a device whose writes are declared so. Returns the counters, and the ranges that the CPU
/// flushed.
fn flushed_of(job: MoveJob, declared: CacheWrites, page: Option<u32>) -> (ChannelCounters, Vec<MemoryRange>) {
    let channel = work_queue(MissingPage(page));
    let config = PolicyConfig { cache_writes: declared, ..eager() };
    let mut mover = Mover::with_channels(vec![Box::new(channel)], config, Clock::start());
    mover.policy_mut().unwrap().freeze();
    FLUSHED_RANGES.take();
    let is_persistent = job.durability() == MoveDurability::Persistent;
    let ticket = mover.start(job).unwrap();
    let done = mover.wait(&ticket, LONG).unwrap();
    assert_eq!(done.results().len(), done.steps().len());
    assert_eq!(done.promise().is_some(), is_persistent);
    assert_eq!(mover.channel_counters().channel_jobs, 1);
    (mover.channel_counters(), FLUSHED_RANGES.take())
}

/// Returns a job that copies, fills, and copies with a CRC, each to a memory of its own.
fn device_job(durability: MoveDurability) -> MoveJob {
    let mut job = MoveJob::new().with_durability(durability);
    job.add_memory(Bytes::from(vec![5; BYTES]));
    for _ in 0..3 {
        job.add_memory(vec![0; BYTES]);
    }
    let from = MemoryPlace::new(0, 3).range(BYTES - 3);
    job.add_step(MoveStep::Copy { from, to: MemoryPlace::new(1, 1) });
    job.add_step(MoveStep::Fill { to: MemoryPlace::new(2, 70).range(900), value: 9 });
    job.add_step(MoveStep::CopyCrc32c { from, to: MemoryPlace::new(3, 2), seed: 0 });
    job
}

/// Returns the bytes that a job writes and no range covers.
fn unflushed_bytes(job: &MoveJob, flushed: &[MemoryRange]) -> usize {
    let is_flushed = |memory: usize, at: usize| {
        flushed.iter().any(|MemoryRange { start, bytes }| {
            start.memory == memory && (start.offset..start.offset + bytes).contains(&at)
        })
    };
    let mut unflushed = 0;
    for step in job.steps() {
        step.for_each_write(|MemoryRange { start, bytes }| {
            let written = start.offset..start.offset + bytes;
            unflushed += written.filter(|at| !is_flushed(start.memory, *at)).count();
        });
    }
    unflushed
}

#[test]
fn every_byte_of_a_device_that_may_stay_in_the_cache_is_flushed_and_counted_with_the_reason() {
    use CacheWrites::{Allocating, NonAllocating, Unknown};
    let written = device_job(MoveDurability::Persistent);
    let all = 2 * (BYTES - 3) + 900;
    for declared in [Unknown, Allocating, NonAllocating] {
        let (counters, flushed) = flushed_of(device_job(MoveDurability::Persistent), declared, None);
        let found = [counters.flushed_unknown, counters.flushed_allocating, counters.not_flushed];
        assert_eq!(found, [Unknown, Allocating, NonAllocating].map(|way| u64::from(way == declared)));
        // The portal of this process writes through the cache: the declaration that it does not is a planted missing flush.
        let expected = if declared == NonAllocating { all } else { 0 };
        assert_eq!(unflushed_bytes(&written, &flushed), expected, "{declared:?}: {flushed:?}");
        let (counters, flushed) = flushed_of(device_job(MoveDurability::Visible), declared, None);
        let found = [counters.flushed_unknown, counters.flushed_allocating, counters.not_flushed];
        assert_eq!((found, flushed.len()), ([0; 3], 0), "{declared:?}");
    }
}

#[test]
fn bytes_that_the_cpu_did_for_a_device_are_flushed_whatever_the_device_does() {
    let mut job = MoveJob::new().with_durability(MoveDurability::Persistent);
    job.add_memory(Bytes::from(vec![5; BYTES]));
    job.add_memory(vec![0; BYTES]);
    let from = MemoryPlace::new(0, 0).range(BYTES);
    job.add_step(MoveStep::CopyCrc32c { from, to: MemoryPlace::new(1, 0), seed: 0 });
    let (counters, flushed) = flushed_of(job, CacheWrites::NonAllocating, Some(1_000));
    assert_eq!((counters.page_faults, counters.not_flushed), (1, 1), "{counters:?}");
    assert_eq!(flushed, [MemoryPlace::new(1, 0).range(BYTES)]);
}

#[test]
fn a_channel_that_knows_its_writes_keeps_its_word_beside_one_that_does_not() {
    let software = SoftwareChannel::start(Clock::start(), SPIN).unwrap();
    for (declared, expected) in [
        (CacheWrites::Unknown, [CacheWrites::Allocating, CacheWrites::Unknown]),
        (CacheWrites::NonAllocating, [CacheWrites::Allocating, CacheWrites::NonAllocating]),
    ] {
        let config = PolicyConfig { cache_writes: declared, ..eager() };
        let faulty = FaultyChannel::boxed(ChannelFault::Full);
        let traits = [software.traits(), faulty.traits()];
        let policy = MovePolicy::new(&traits, config);
        assert_eq!([0, 1].map(|channel| policy.cache_writes(channel)), expected);
        assert_eq!(policy.cache_writes(2), CacheWrites::Unknown);
    }
}
