//! Tests of the pages that a job finds absent: populated before its steps, and only where its steps work.

use super::flush::work_queue;
use super::*;
use crate::mover::prefault::POPULATED_BYTES;
use headwater_host::copy::{PrefaultOutcome, prefault_spare};
use headwater_host::dsa::NoFaults;

const BYTES: usize = 8 << 20;
const STEP_BYTES: usize = 64 << 10;
/// The capacity of a vector whose memory no allocator of a system had in use before.
const FRESH_BYTES: usize = 40 << 20;

fn fresh() -> Vec<u8> {
    Vec::with_capacity(FRESH_BYTES)
}

/// Returns memory of a program that was not accessed yet.
fn fresh_lent() -> &'static mut [u8] {
    vec![0; FRESH_BYTES].leak()
}

/// Returns true if the kernel populates pages, and says which are absent. A kernel that does not has nothing to test.
fn kernel_populates() -> bool {
    let outcome = prefault_spare(fresh().spare_capacity_mut());
    matches!(outcome, PrefaultOutcome::Populated { bytes } if bytes > 0)
}

/// Returns a job that appends a text to a vector, in short steps.
fn append(target: Vec<u8>) -> MoveJob {
    let mut job = MoveJob::new();
    job.add_memory(Bytes::from(vec![7; BYTES]));
    job.add_memory(target);
    for at in (0..BYTES).step_by(STEP_BYTES) {
        let from = MemoryPlace::new(0, at).range(STEP_BYTES);
        job.add_step(MoveStep::Copy { from, to: MemoryPlace::new(1, at) });
    }
    job
}

/// Runs a job. Returns its last memory, and the bytes that were populated for it.
fn run(mover: &mut Mover, job: MoveJob) -> (MoveMemory, usize) {
    POPULATED_BYTES.set(0);
    let ticket = mover.start(job).unwrap();
    let done = mover.wait(&ticket, LONG).unwrap();
    assert_eq!(done.results().len(), done.steps().len());
    (done.into_memories().pop().unwrap(), POPULATED_BYTES.take())
}

/// Returns true for the bytes that are populated where `most` absent ones are accessed. A huge page comes with the first call that
/// names a page of it, which may be one of 4 KiB: no share of `most` is sure.
fn is_populated(bytes: usize, most: usize) -> bool {
    (bytes > 0) == (most > 0) && bytes <= most
}

fn work_queue_mover() -> Mover {
    mover_of(vec![Box::new(work_queue(NoFaults))])
}

#[test]
fn fresh_vector_is_populated_once_whatever_engine_fills_it() {
    if !kernel_populates() {
        return;
    }
    for mut mover in [Mover::default(), work_queue_mover()] {
        let (memory, populated) = run(&mut mover, append(fresh()));
        assert!(is_populated(populated, BYTES), "{populated} bytes");
        let mut filled = memory.into_vec().unwrap();
        assert!(filled.len() == BYTES && filled.iter().all(|byte| *byte == 7));
        filled.clear();
        let (memory, populated) = run(&mut mover, append(filled));
        assert_eq!(populated, 0, "present pages were populated again");
        assert!(memory.into_vec().unwrap().iter().all(|byte| *byte == 7));
    }
}

#[test]
fn memory_between_the_steps_of_a_job_stays_absent() {
    if !kernel_populates() {
        return;
    }
    let mut job = MoveJob::new();
    job.add_memory(LentBytes::from(fresh_lent()));
    for at in [1 << 20, 30 << 20] {
        job.add_step(MoveStep::Fill { to: MemoryPlace::new(0, at).range(2 << 20), value: 3 });
    }
    let (memory, populated) = run(&mut Mover::default(), job);
    assert!(is_populated(populated, 4 << 20), "{populated} bytes");
    let lent = memory.into_lent().unwrap();
    assert_eq!(lent.as_bytes().iter().filter(|byte| **byte == 3).count(), 4 << 20);
}

#[test]
fn absent_source_is_populated_for_a_work_queue_only() {
    if !kernel_populates() {
        return;
    }
    for (mut mover, most) in [(Mover::default(), 0), (work_queue_mover(), BYTES)] {
        let source: &'static [u8] = fresh_lent();
        let mut job = MoveJob::new();
        job.add_memory(LentBytes::from(source));
        job.add_memory(vec![1; BYTES]);
        let from = MemoryPlace::new(0, 0).range(BYTES);
        job.add_step(MoveStep::Copy { from, to: MemoryPlace::new(1, 0) });
        let (memory, populated) = run(&mut mover, job);
        assert!(is_populated(populated, most), "{populated} bytes");
        assert!(memory.into_vec().unwrap().iter().all(|byte| *byte == 0));
    }
}

#[test]
fn work_queue_populates_a_part_of_lent_memory_and_none_while_it_is_full() {
    if !kernel_populates() {
        return;
    }
    let fill = || {
        let mut job = MoveJob::new();
        job.add_memory(LentBytes::from(fresh_lent()));
        // A huge page may have come with the first bytes of the memory.
        job.add_step(MoveStep::Fill { to: MemoryPlace::new(0, 4 << 20).range(BYTES), value: 3 });
        job
    };
    let mut channel = work_queue(NoFaults);
    POPULATED_BYTES.set(0);
    channel.submit(0, fill(), Nanos::ZERO).unwrap();
    let populated = POPULATED_BYTES.take();
    assert!(is_populated(populated, 1 << 20), "{populated} bytes");
    let full = (1..100).find_map(|token| channel.submit(token, job(1), Nanos::ZERO).err());
    assert_eq!(full.unwrap().reason, ChannelRefusal::Full);
    let refused = channel.submit(100, fill(), Nanos::ZERO).unwrap_err();
    assert_eq!((refused.reason, POPULATED_BYTES.take()), (ChannelRefusal::Full, 0));
}

#[test]
fn short_jobs_and_shared_memory_are_left_alone() {
    let mut job = MoveJob::new();
    job.add_memory(Bytes::from(vec![7; STEP_BYTES]));
    job.add_memory(fresh());
    let from = MemoryPlace::new(0, 0).range(STEP_BYTES);
    job.add_step(MoveStep::Copy { from, to: MemoryPlace::new(1, 0) });
    let (_, populated) = run(&mut Mover::default(), job);
    assert_eq!(populated, 0);
    let mut job = MoveJob::new();
    job.add_memory(SharedMemory::anonymous(BYTES).unwrap());
    job.add_step(MoveStep::Fill { to: MemoryPlace::new(0, 0).range(BYTES), value: 1 });
    let (_, populated) = run(&mut Mover::default(), job);
    assert_eq!(populated, 0, "the pages of shared memory belong to its owner");
}
