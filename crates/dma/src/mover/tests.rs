//! Tests of the mover's channels: faults of a channel, tickets, and jobs that are split and joined.

#![expect(clippy::unwrap_used, reason = "a test fails if its setup fails")]

mod direction;
mod drain;
mod flush;
mod merge;
mod prefault;
mod streaming;

use super::memory::LOOKS_FOR_ONE_MAPPING;
use super::policy::{CacheWrites, ChannelTraits, OperationSet};
use super::*;
use bytes::Bytes;
use headwater_host::copy::crc32c;
use headwater_host::lent_bytes::LentBytes;
use headwater_host::shared_memory::SharedMemory;
use headwater_host::sync::{AtomicBool, Ordering};

const SPIN: Nanos = Nanos::from_micros(20);
const LONG: Nanos = Nanos::from_millis(60_000);

/// Returns settings by which every job goes to channels as far as it can.
fn eager() -> PolicyConfig {
    PolicyConfig {
        threshold_bytes: [1; 4],
        part_min_bytes: 1,
        cpu_bytes_per_ns: 0.001,
        channel_bytes_per_ns: 100.0,
        channel_fixed_ns: 0.0,
        ..PolicyConfig::default()
    }
}

fn mover_of(channels: Vec<Box<dyn MoveChannel>>) -> Mover {
    let mut mover = Mover::with_channels(channels, eager(), Clock::start());
    mover.policy_mut().unwrap().freeze();
    mover
}

/// Returns a job that copies `parts` different texts, each to a vector of its own.
fn job(parts: u8) -> MoveJob {
    let mut job = MoveJob::new();
    for part in 0..parts {
        let from = job.add_memory(Bytes::from(vec![part + 1; 1_000]));
        let to = job.add_memory(vec![0; 1_000]);
        let from = MemoryPlace::new(from, 0).range(1_000);
        job.add_step(MoveStep::CopyCrc32c { from, to: MemoryPlace::new(to, 0), seed: 0 });
    }
    job
}

fn check(job: MoveJob, parts: u8) {
    let expected: Vec<StepResult> =
        (0..parts).map(|part| StepResult::Crc32c(crc32c(0, &vec![part + 1; 1_000]))).collect();
    assert_eq!(job.results(), expected);
    let vectors: Vec<Vec<u8>> = job.into_memories().into_iter().filter_map(MoveMemory::into_vec).collect();
    assert_eq!(vectors, (0..parts).map(|part| vec![part + 1; 1_000]).collect::<Vec<_>>());
}

#[test]
fn copies_with_a_checksum_extend_a_vector_within_its_capacity() {
    let text: Vec<u8> = (0..=255).cycle().take(9_000).collect();
    let mut job = MoveJob::new();
    let from = job.add_memory(Bytes::from(text.clone()));
    let mut target = Vec::with_capacity(7 + text.len());
    target.extend_from_slice(b"in use.");
    let to = job.add_memory(target);
    for (start, end, seed) in [(0, 4_096, 9), (4_096, 4_096, 8), (4_096, 9_000, 7)] {
        let (from, to) = (MemoryPlace::new(from, start).range(end - start), MemoryPlace::new(to, 7 + start));
        job.add_step(MoveStep::CopyCrc32c { from, to, seed });
    }
    Mover::default().run(&mut job).unwrap();
    let sums = [crc32c(9, &text[..4_096]), 8, crc32c(7, &text[4_096..])];
    assert_eq!(job.results(), sums.map(StepResult::Crc32c));
    let vector = job.into_memories().into_iter().find_map(MoveMemory::into_vec).unwrap();
    assert!(vector == [&b"in use."[..], &text].concat());
}

/// The fault of a channel of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChannelFault {
    /// Every job is refused.
    Full,
    /// No job is begun.
    Stuck,
    /// Jobs end in the opposite order.
    Reordered,
    /// Each job takes ten seconds, by what the channel says.
    Late,
    /// Each job is abandoned behind its first step, of which the last bytes are missing.
    Abandons,
}

#[derive(Debug)]
struct FaultyChannel {
    fault: ChannelFault,
    jobs: Vec<(u64, MoveJob)>,
    polls: usize,
}

impl FaultyChannel {
    fn boxed(fault: ChannelFault) -> Box<dyn MoveChannel> {
        Box::new(Self { fault, jobs: Vec::new(), polls: 0 })
    }
}

impl MoveChannel for FaultyChannel {
    fn traits(&self) -> ChannelTraits {
        ChannelTraits {
            node: None,
            depth: 4,
            cache_writes: CacheWrites::Unknown,
            operations: OperationSet::ALL,
        }
    }

    fn submit(&mut self, token: u64, job: MoveJob, _now: Nanos) -> Result<(), RefusedJob> {
        if self.fault == ChannelFault::Full {
            return Err(RefusedJob { job, reason: ChannelRefusal::Full });
        }
        self.jobs.push((token, job));
        Ok(())
    }

    fn poll(&mut self, _now: Nanos) -> Option<EndedJob> {
        self.polls += 1;
        if self.fault == ChannelFault::Stuck || self.polls < 4 {
            return None;
        }
        let (token, mut job) = self.jobs.pop()?;
        let mut end = JobEnd::Done;
        if self.fault == ChannelFault::Abandons {
            let rest = job.steps.split_off(1.min(job.steps.len()));
            run::run(&mut job);
            job.steps.extend(rest);
            end = JobEnd::Abandoned;
        } else {
            run::run(&mut job);
        }
        let elapsed = if self.fault == ChannelFault::Late { Nanos::from_millis(10_000) } else { Nanos(1) };
        Some(EndedJob { token, job, end, elapsed })
    }

    fn take_back(&mut self, token: u64) -> Option<MoveJob> {
        if self.fault != ChannelFault::Stuck {
            return None;
        }
        let at = self.jobs.iter().position(|(waiting, _)| *waiting == token)?;
        Some(self.jobs.remove(at).1)
    }

    fn prepare_sleep(&mut self) -> bool {
        false
    }

    fn wake_descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[test]
fn every_fault_of_a_channel_leaves_each_step_done_once() {
    use ChannelFault::{Abandons, Full, Late, Reordered, Stuck};
    for faults in [
        vec![Full],
        vec![Stuck],
        vec![Reordered],
        vec![Abandons],
        vec![Late],
        vec![Full, Abandons, Stuck, Reordered],
    ] {
        let mut mover = mover_of(faults.iter().copied().map(FaultyChannel::boxed).collect());
        for parts in [0, 1, 2, 7, 16] {
            let mut job = job(parts);
            mover.run(&mut job).unwrap();
            check(job, parts);
        }
        let counters = mover.channel_counters();
        for fault in &faults {
            let count = match fault {
                Full => counters.refused,
                Stuck => counters.taken_back,
                Reordered => counters.channel_jobs,
                Late => counters.late,
                Abandons => counters.abandoned,
            };
            assert!(count > 0, "{faults:?}: {counters:?}");
        }
    }
}

#[test]
fn jobs_of_a_thread_that_dies_are_done_by_the_cpu() {
    for steps_before_death in [0, 1, 3] {
        let mut jobs = 0;
        let dies = move |job: &mut MoveJob| {
            jobs += 1;
            if jobs < 3 {
                return run::run(job);
            }
            let rest = job.steps.split_off(steps_before_death.min(job.steps.len()));
            run::run(job);
            job.steps.extend(rest);
            std::panic::resume_unwind(Box::new("a planted fault"));
        };
        let channel = SoftwareChannel::start_with(Clock::start(), SPIN, dies).unwrap();
        let mut mover = mover_of(vec![Box::new(channel)]);
        let tickets: Vec<MoveTicket> = (0..6).map(|_| mover.start(job(4)).unwrap()).collect();
        for ticket in tickets {
            check(mover.wait(&ticket, LONG).unwrap(), 4);
            assert!(mover.poll(&ticket).is_none(), "a job returns once");
        }
        let mut last = job(5);
        mover.run(&mut last).unwrap();
        check(last, 5);
        let counters = mover.channel_counters();
        assert!(counters.abandoned >= 1 && counters.channel_jobs >= 3, "{counters:?}");
        assert!(counters.refused >= 1, "{counters:?}");
    }
}

#[test]
fn any_ended_job_is_polled_once_with_the_number_of_its_ticket() {
    use ChannelFault::{Full, Reordered};
    for channels in [vec![], vec![Full], vec![Reordered, Reordered]] {
        let mut mover = match channels.is_empty() {
            true => Mover::default(),
            false => mover_of(channels.into_iter().map(FaultyChannel::boxed).collect()),
        };
        assert!(mover.poll_any().is_none());
        let tickets: Vec<MoveTicket> = (1..=5).map(|parts| mover.start(job(parts)).unwrap()).collect();
        let mut waiting: Vec<(TicketNumber, u8)> =
            tickets.iter().map(MoveTicket::number).zip(1..=5).filter(|(_, parts)| *parts != 3).collect();
        check(mover.wait(&tickets[2], LONG).unwrap(), 3);
        for (number, job) in (0..100).filter_map(|_| mover.poll_any()) {
            let at = waiting.iter().position(|(waiting, _)| *waiting == number).unwrap();
            check(job, waiting.swap_remove(at).1);
        }
        assert!(waiting.is_empty() && mover.poll_any().is_none());
        assert!(tickets.iter().all(|ticket| mover.poll(ticket).is_none()));
    }
}

#[test]
fn a_started_job_returns_once_by_poll_or_by_wait_asleep() {
    let clock = Clock::start();
    // The thread takes longer than the owner polls, so that the owner sleeps.
    let slow = move |job: &mut MoveJob| {
        Clock::sleep(Nanos::from_millis(2));
        run::run(job);
    };
    let channel = SoftwareChannel::start_with(clock, Nanos::ZERO, slow).unwrap();
    let mut mover = mover_of(vec![Box::new(channel)]);
    for _ in 0..10 {
        let ticket = mover.start(job(2)).unwrap();
        check(mover.wait(&ticket, LONG).unwrap(), 2);
        let ticket = mover.start(job(3)).unwrap();
        let done = loop {
            if let Some(done) = mover.poll(&ticket) {
                break done;
            }
            if let Some(descriptors) = mover.prepare_sleep() {
                assert_eq!(descriptors.len(), 1);
            }
        };
        check(done, 3);
        assert!(mover.wait(&ticket, LONG).is_none());
    }
    assert_eq!(mover.channel_counters().channel_jobs, 20);
}

#[test]
fn two_handles_to_one_shared_memory_are_one_memory() {
    let shared = SharedMemory::anonymous(16_384).unwrap();
    let mut job = MoveJob::new();
    let (first, second) = (job.add_memory(shared.clone()), job.add_memory(shared));
    let copy = |at: usize, to: usize, bytes: usize| MoveStep::Copy {
        from: MemoryPlace::new(first, at).range(bytes),
        to: MemoryPlace::new(second, to),
    };
    job.add_step(copy(0, 8_192, 4_096));
    job.add_step(copy(8_192, 0, 4_096));
    let mut mover = mover_of(vec![FaultyChannel::boxed(ChannelFault::Stuck)]);
    mover.run(&mut job).unwrap();
    assert_eq!(job.results().len(), 2);
    assert!(!job.may_split());
    job.add_step(copy(0, 4_096, 8_192));
    assert_eq!(mover.run(&mut job), Err(InvalidStep::Overlap { step: 2, memory: second }));
    assert!(job.results().is_empty(), "nothing was done");
}

#[test]
fn a_run_looks_at_each_memory_once_and_below_the_threshold_at_none() {
    let mut job = MoveJob::new();
    let shared = SharedMemory::anonymous(4_096).unwrap();
    for nth in 0..100 {
        let memory: MoveMemory = match nth {
            0 => shared.clone().into(),
            50 | 99 => SharedMemory::anonymous(4_096).unwrap().into(),
            _ => vec![0; 64].into(),
        };
        let memory = job.add_memory(memory);
        job.add_step(MoveStep::Fill { to: MemoryPlace::new(memory, 0).range(64), value: 7 });
    }
    for (threshold, looks_max, is_split) in [(1 << 20, 0, false), (1, 100, true)] {
        let channels = vec![FaultyChannel::boxed(ChannelFault::Stuck)];
        let config = PolicyConfig { threshold_bytes: [threshold; 4], ..eager() };
        let mut mover = Mover::with_channels(channels, config, Clock::start());
        let looks = LOOKS_FOR_ONE_MAPPING.get();
        mover.run(&mut job).unwrap();
        let looks = LOOKS_FOR_ONE_MAPPING.get() - looks;
        assert!(looks <= looks_max, "{looks} looks with a threshold of {threshold} bytes");
        assert_eq!(mover.channel_counters().channel_jobs > 0, is_split);
        assert_eq!(job.results(), vec![StepResult::Done; 100]);
    }
    assert!(job.may_split());
    // One mapping by two handles, also if one of them keeps a value too.
    for second in [shared.clone(), shared.clone().kept_with(Box::new(()))] {
        job.add_memory(second);
        assert!(!job.may_split());
        job.memories.pop();
    }
    assert!(job.may_split());
}

#[test]
fn steps_of_one_shared_memory_are_split_and_those_of_one_lent_memory_are_not() {
    let lent = LentBytes::from(vec![0_u8; 4_096].leak());
    let memories: [(MoveMemory, bool); 2] =
        [(SharedMemory::anonymous(4_096).unwrap().into(), true), (lent.into(), false)];
    for (memory, is_split) in memories {
        let mut job = MoveJob::new();
        let memory = job.add_memory(memory);
        for quarter in 0..4_u8 {
            let to = MemoryPlace::new(memory, usize::from(quarter) * 1_024).range(1_024);
            job.add_step(MoveStep::Fill { to, value: quarter });
        }
        // The CPU and the channel are alike, so that a job that can be split is.
        let even = PolicyConfig { cpu_bytes_per_ns: 1.0, channel_bytes_per_ns: 1.0, ..eager() };
        let channel = FaultyChannel::boxed(ChannelFault::Reordered);
        let mut mover = Mover::with_channels(vec![channel], even, Clock::start());
        mover.policy_mut().unwrap().freeze();
        mover.run(&mut job).unwrap();
        let mut bytes = vec![9; 4_096];
        job.memories()[0].copy_in(0, &mut bytes);
        assert!(bytes.iter().enumerate().all(|(at, byte)| usize::from(*byte) == at / 1_024));
        let counters = mover.channel_counters();
        assert_eq!((1..4_096).contains(&counters.channel_bytes), is_split, "{counters:?}");
    }
}

#[test]
fn both_copies_of_a_dualcast_are_alike_though_their_source_changes() {
    let source = SharedMemory::anonymous(65_536).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let (scribbled, stopped) = (source.clone(), Arc::clone(&stop));
    let scribbler = std::thread::spawn(move || {
        let mut value = 0_u8;
        while !stopped.load(Ordering::Relaxed) {
            value = value.wrapping_add(1);
            scribbled.copy_out(0, &vec![value; 65_536]).unwrap();
        }
    });
    let kinds: [fn() -> MoveMemory; 2] =
        [|| vec![0; 65_536].into(), || SharedMemory::anonymous(65_536).unwrap().into()];
    for (first, second) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        for _ in 0..50 {
            let mut job = MoveJob::new();
            job.add_memory(source.clone());
            job.add_memory(kinds[first]());
            job.add_memory(kinds[second]());
            let place = |memory| MemoryPlace::new(memory, 0);
            job.add_step(MoveStep::Dualcast { from: place(0).range(65_536), to: [place(1), place(2)] });
            job.add_step(MoveStep::Compare { range: place(1).range(65_536), with: place(2) });
            Mover::default().run(&mut job).unwrap();
            assert_eq!(job.results(), [StepResult::Done, StepResult::Equal], "targets {first} and {second}");
        }
    }
    stop.store(true, Ordering::Relaxed);
    scribbler.join().unwrap();
}

#[test]
fn an_owner_sleeps_only_while_no_job_waits_for_it() {
    let channel = SoftwareChannel::start(Clock::start(), SPIN).unwrap();
    for mut mover in [mover_of(vec![Box::new(channel)]), Mover::default()] {
        assert!(mover.prepare_sleep().is_some());
        let (first, second) = (mover.start(job(1)).unwrap(), mover.start(job(2)).unwrap());
        // The first job has ended too, and its wake-up is spent.
        check(mover.wait(&second, LONG).unwrap(), 2);
        assert!(mover.prepare_sleep().is_none());
        check(mover.poll(&first).unwrap(), 1);
        assert!(mover.prepare_sleep().is_some());
    }
}

#[test]
fn a_ticket_has_no_job_at_another_mover_and_untaken_jobs_have_a_limit() {
    let stuck = || mover_of(vec![FaultyChannel::boxed(ChannelFault::Stuck)]);
    for (mut mover, mut other) in [(Mover::default(), Mover::default()), (stuck(), stuck())] {
        let tickets: Vec<MoveTicket> = (0..STARTED_JOBS_MAX).map(|_| mover.start(job(1)).unwrap()).collect();
        let _foreign = other.start(job(1)).unwrap();
        assert!(other.poll(&tickets[0]).is_none());
        let refused = mover.start(job(1)).unwrap_err();
        assert_eq!(refused.reason, StartRefusal::Full { max: STARTED_JOBS_MAX });
        let mut last = tickets.into_iter().rev();
        if let Some(done) = last.find_map(|ticket| mover.poll(&ticket)) {
            check(done, 1);
            let _ticket = mover.start(*refused.job).unwrap();
        }
    }
}

#[test]
fn a_channel_that_holds_up_its_owner_rests() {
    let mut mover = mover_of(vec![FaultyChannel::boxed(ChannelFault::Late)]);
    for _ in 0..300 {
        let mut job = job(4);
        mover.run(&mut job).unwrap();
        check(job, 4);
    }
    let counters = mover.channel_counters();
    assert_eq!((counters.channel_jobs, counters.late), (1, 1), "{counters:?}");
}

#[test]
fn a_wait_ends_with_its_time_and_the_job_stays() {
    let mut mover = mover_of(vec![FaultyChannel::boxed(ChannelFault::Stuck)]);
    let ticket = mover.start(job(1)).unwrap();
    assert!(mover.wait(&ticket, Nanos::from_micros(100)).is_none());
    assert!(mover.poll(&ticket).is_none());
}

#[test]
fn a_mover_without_channels_returns_started_jobs_at_once() {
    let mut mover = Mover::default();
    let (first, second) = (mover.start(job(1)).unwrap(), mover.start(job(2)).unwrap());
    check(mover.poll(&second).unwrap(), 2);
    check(mover.wait(&first, Nanos::ZERO).unwrap(), 1);
    assert!(mover.poll(&first).is_none());
    let mut invalid = job(1);
    invalid.add_step(MoveStep::Crc32c { of: MemoryPlace::new(9, 0).range(1), seed: 0 });
    let refused = mover.start(invalid).unwrap_err();
    let reason = InvalidStep::NoMemory { step: 1, memory: 9, memories: 2 };
    assert_eq!(refused.reason, StartRefusal::Invalid(reason));
    assert_eq!(refused.job.memories().len(), 2);
}

#[test]
fn parts_that_need_one_private_memory_or_what_the_other_writes_are_not_split() {
    let copy = |from: usize, at: usize, to: usize, into: usize| MoveStep::Copy {
        from: MemoryPlace::new(from, at).range(8),
        to: MemoryPlace::new(to, into),
    };
    let shared = || SharedMemory::anonymous(4_096).unwrap();
    // Memories: 0 a text, 1 and 2 vectors, 3 shared.
    let cases = [
        (copy(0, 0, 1, 0), copy(0, 8, 2, 0), true),
        (copy(0, 0, 1, 0), copy(0, 8, 1, 8), false),
        (copy(0, 0, 1, 0), copy(1, 0, 2, 0), false),
        (copy(0, 0, 3, 0), copy(0, 8, 3, 8), true),
        (copy(0, 0, 3, 0), copy(0, 8, 3, 7), false),
        (copy(0, 0, 3, 0), copy(3, 0, 1, 0), false),
        (copy(3, 0, 1, 0), copy(3, 0, 2, 0), true),
        (copy(3, 0, 1, 0), copy(0, 0, 3, 4), false),
    ];
    for (first, second, is_split) in cases {
        let mut job = MoveJob::new();
        job.add_memory(Bytes::from_static(b"sixteen letters!"));
        job.add_memory(vec![0; 32]);
        job.add_memory(vec![0; 32]);
        job.add_memory(shared());
        job.add_step(first);
        job.add_step(second);
        job.check().unwrap();
        let split = job.split_off(1);
        assert_eq!(split.is_some(), is_split, "{first:?}, {second:?}");
        if let Some((tail, rest)) = split {
            assert_eq!((job.steps().len(), tail.steps().len()), (1, 1));
            job.join(tail, rest);
        }
        assert_eq!(job.steps(), [first, second]);
        assert_eq!(job.memories().iter().map(MoveMemory::bytes).collect::<Vec<_>>(), [16, 32, 32, 4_096]);
    }
}
