//! Tests of a shared mover with a channel that ends its jobs when the test says so.

use super::waiting::{QUEUE_NAP, TakeOutcome, WaitPause, WaitingThread};
use super::*;
use crate::code::ResultCode;
use crate::job_memory::{JobMemory, MemoryUse};
use crate::move_step::{HW_MOVE_CRC32C, HwMoveStep};
use crate::open_job::{JOBS, OpenJob};
use headwater_dma::mover::policy::{CacheWrites, ChannelTraits, OperationSet, PolicyConfig};
use headwater_dma::mover::{
    CacheIntent, EndedJob, JobEnd, MoveChannel, MoveDurability, RefusedJob, StepResult,
};
use headwater_host::clock::Nanos;
use headwater_host::wake::WaitOutcome;
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

const FOREVER: Nanos = Nanos(u64::MAX);
const LATER: Nanos = Nanos::from_millis(1);

/// The jobs of a channel, and how many of them it has ended.
#[derive(Debug, Default)]
struct HeldJobs {
    jobs: VecDeque<(u64, MoveJob)>,
    ended: usize,
    /// Looks of the mover that do not find the ended jobs yet.
    late_looks: usize,
    panics: bool,
}

/// A channel that ends its jobs when the test says so; the CPU does their steps then.
#[derive(Clone, Debug)]
struct HeldChannel {
    held: Arc<Mutex<HeldJobs>>,
    wake: WakeDescriptor,
    /// False for a channel that must be polled while it has a job.
    has_interrupts: bool,
}

impl HeldChannel {
    fn new(has_interrupts: bool) -> Self {
        Self { held: Arc::default(), wake: WakeDescriptor::new().unwrap(), has_interrupts }
    }

    fn held(&self) -> MutexGuard<'_, HeldJobs> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the oldest job.
    fn end(&self) {
        self.held().ended += 1;
        if self.has_interrupts {
            self.wake.wake().unwrap();
        }
    }
}

impl MoveChannel for HeldChannel {
    fn traits(&self) -> ChannelTraits {
        ChannelTraits {
            node: None,
            depth: 8,
            cache_writes: CacheWrites::Unknown,
            operations: OperationSet::ALL,
        }
    }

    fn submit(&mut self, token: u64, job: MoveJob, _now: Nanos) -> Result<(), RefusedJob> {
        assert!(!self.held().panics, "a planted panic");
        self.held().jobs.push_back((token, job));
        Ok(())
    }

    fn poll(&mut self, _now: Nanos) -> Option<EndedJob> {
        let mut held = self.held();
        if held.late_looks > 0 {
            held.late_looks -= 1;
            return None;
        }
        held.ended = held.ended.checked_sub(1)?;
        let (token, job) = held.jobs.pop_front().unwrap();
        Some(EndedJob { token, job, end: JobEnd::Abandoned, elapsed: Nanos(1) })
    }

    fn take_back(&mut self, _token: u64) -> Option<MoveJob> {
        None
    }

    fn prepare_sleep(&mut self) -> bool {
        if !self.has_interrupts {
            return self.held().jobs.is_empty();
        }
        let _ = self.wake.take();
        self.held().ended == 0
    }

    fn wake_descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.wake.as_fd())
    }
}

fn share(channel: &HeldChannel) -> Arc<SharedMover> {
    let eager = PolicyConfig {
        threshold_bytes: [1; 4],
        cpu_bytes_per_ns: 0.001,
        channel_fixed_ns: 0.0,
        ..PolicyConfig::default()
    };
    let clock = Clock::start();
    let mut mover = Mover::with_channels(vec![Box::new(channel.clone())], eager, clock);
    mover.policy_mut().unwrap().freeze();
    Arc::new(SharedMover::new(mover, clock).unwrap())
}

/// Creates a job that computes the CRC-32C of constant bytes.
fn job() -> *mut MoveJobHandle {
    static BYTES: [u8; 4_096] = [7; 4_096];
    let mut open = OpenJob::new(MoveDurability::Visible, CacheIntent::ReadSoon);
    // SAFETY: the bytes are constant.
    let memory = unsafe { JobMemory::of_program(BYTES.as_ptr(), BYTES.len(), MemoryUse::Read) };
    open.add_memory(memory.unwrap()).unwrap();
    let step = HwMoveStep {
        struct_bytes: size_of::<HwMoveStep>(),
        bytes: BYTES.len(),
        from_offset: 0,
        to_offset: 0,
        second_offset: 0,
        operation: HW_MOVE_CRC32C,
        from: 0,
        to: 0,
        second: 0,
        seed: 0,
        value: 0,
    };
    open.add_step(&step).unwrap();
    JOBS.add(Box::new(open)).unwrap()
}

fn result(job: *mut MoveJobHandle) -> Result<StepResult, CallError> {
    JOBS.with(job, |open| Ok(open.idle()?.result(0)?))
}

fn code<T>(outcome: Result<T, CallError>) -> ResultCode {
    outcome.map_or_else(|error| error.code(), |_| ResultCode::Ok)
}

/// Returns a thread that has called `wait` and not looked yet.
fn waiting_for(shared: &SharedMover, ticket: *mut MoveTicketHandle) -> WaitingThread<'_> {
    let id = TICKETS.with(ticket, |open| Ok(open.id)).unwrap();
    WaitingThread { shared, id, is_counted: false }
}

/// Looks for a job as a thread that has waited for a while.
fn sleep(waiting: &mut WaitingThread<'_>) -> Option<(u64, WakeDescriptor, Nanos)> {
    match waiting.look(LATER, FOREVER).unwrap() {
        TakeOutcome::NotEnded(WaitPause::Sleep { number, wake, until }) => Some((number, wake, until)),
        TakeOutcome::Taken(..) | TakeOutcome::NotEnded(WaitPause::Spin) => None,
    }
}

fn is_readable(descriptor: &impl std::os::fd::AsFd) -> bool {
    poll(&mut [PollFd::new(descriptor, PollFlags::IN)], Some(&Nanos::ZERO.to_timespec())).unwrap() == 1
}

fn is_line_readable(shared: &SharedMover) -> bool {
    shared.ended_descriptor().unwrap();
    is_line_readable_now(shared)
}

/// Looks at the descriptor and does nothing for it.
fn is_line_readable_now(shared: &SharedMover) -> bool {
    let state = shared.lock();
    is_readable(&state.as_ref().unwrap().ended_line.as_ref().unwrap().set)
}

fn settle(shared: &SharedMover) {
    shared
        .with(|state| {
            state.settle();
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_thread_that_takes_what_has_ended_wakes_every_thread_that_sleeps() {
    for has_interrupts in [true, false] {
        let channel = HeldChannel::new(has_interrupts);
        let shared = share(&channel);
        let (first, second) = (job(), job());
        let (first_ticket, second_ticket) = (shared.start(first).unwrap(), shared.start(second).unwrap());
        let [mut first_wait, mut second_wait] =
            [first_ticket, second_ticket].map(|ticket| waiting_for(&shared, ticket));
        let (one, one_wake, until) = sleep(&mut first_wait).unwrap();
        let (two, two_wake, _) = sleep(&mut second_wait).unwrap();
        assert_eq!(until, if has_interrupts { FOREVER.since(LATER) } else { QUEUE_NAP });
        assert_eq!(
            (one_wake.take(), two_wake.take()),
            (Ok(WaitOutcome::NotSignalled), Ok(WaitOutcome::NotSignalled))
        );
        channel.end();
        assert_eq!(is_readable(&shared.channels), has_interrupts);
        // A third thread collects the first job, and resets the descriptor of the channel.
        settle(&shared);
        assert!(!is_readable(&shared.channels));
        assert!(is_readable(&one_wake) && is_readable(&two_wake));
        // A job that a thread waits for is not given to a poll.
        assert_eq!(code(shared.poll()), ResultCode::WouldBlock);
        shared
            .with(|state| {
                state.end_sleep(one, one_wake);
                state.end_sleep(two, two_wake);
                assert!(state.sleepers.is_empty() && state.spare.iter().all(|wake| !is_readable(wake)));
                Ok(())
            })
            .unwrap();
        // The threads are awake, and wait on.
        assert_eq!(code(shared.poll()), ResultCode::WouldBlock);
        drop((first_wait, second_wait));
        assert_eq!(shared.poll().unwrap(), first);
        assert!(
            matches!(result(first), Ok(StepResult::Crc32c(_))) && code(result(second)) == ResultCode::Busy
        );
        assert_eq!(code(shared.wait(first_ticket, FOREVER)), ResultCode::Handle);
        assert_eq!(code(shared.wait(second_ticket, Nanos::ZERO)), ResultCode::Timeout);
        assert_eq!(code(shared.close()), ResultCode::Busy);
        channel.end();
        shared.wait(second_ticket, FOREVER).unwrap();
        assert_eq!(result(second).unwrap(), result(first).unwrap());
        shared.close().unwrap();
        assert_eq!(code(shared.run(first)), ResultCode::Handle);
        assert_eq!(code(result(first)), ResultCode::Unknown);
    }
}

#[test]
fn a_drain_waits_for_the_jobs_before_it_and_takes_none() {
    for has_interrupts in [true, false] {
        let channel = HeldChannel::new(has_interrupts);
        let shared = share(&channel);
        shared.drain(Nanos::ZERO).unwrap();
        let jobs = [job(), job(), job()];
        let tickets = [jobs[0], jobs[1]].map(|job| shared.start(job).unwrap());
        assert_eq!(code(shared.drain(Nanos::ZERO)), ResultCode::Timeout);
        channel.end();
        assert_eq!(code(shared.drain(LATER)), ResultCode::Timeout);
        // The look of a thread that began to drain before the third job was started.
        let last_id = shared.with(|state| Ok(state.last_id)).unwrap();
        let third = shared.start(jobs[2]).unwrap();
        let look =
            |waited| shared.with(|state| Ok(state.drain_or_pause(last_id, waited, FOREVER)?.is_none()));
        assert!(!look(Nanos::ZERO).unwrap());
        channel.end();
        assert!(look(Nanos::ZERO).unwrap(), "the third job is not waited for");
        assert_eq!(code(shared.drain(Nanos::ZERO)), ResultCode::Timeout);
        assert_eq!(code(shared.close()), ResultCode::Busy);
        std::thread::scope(|scope| {
            scope.spawn(|| channel.end());
            shared.drain(FOREVER).unwrap();
        });
        shared.drain(Nanos::ZERO).unwrap();
        assert!(shared.with(|state| Ok(state.sleepers.is_empty())).unwrap());
        assert_eq!(shared.poll().unwrap(), jobs[0]);
        for ticket in [tickets[1], third] {
            shared.wait(ticket, Nanos::ZERO).unwrap();
        }
        shared.close().unwrap();
        assert_eq!(code(shared.drain(Nanos::ZERO)), ResultCode::Handle);
    }
}

#[test]
fn the_descriptor_shows_what_a_drain_has_collected() {
    for has_interrupts in [true, false] {
        let channel = HeldChannel::new(has_interrupts);
        let shared = share(&channel);
        let started = job();
        shared.start(started).unwrap();
        assert_eq!(is_line_readable(&shared), !has_interrupts);
        channel.end();
        shared.drain(FOREVER).unwrap();
        assert!(is_line_readable_now(&shared));
        assert_eq!(shared.poll().unwrap(), started);
        assert!(!is_line_readable_now(&shared));
    }
}

#[test]
fn the_end_of_a_ticket_wakes_the_second_thread_that_waits_for_it() {
    let channel = HeldChannel::new(true);
    let shared = share(&channel);
    let ticket = shared.start(job()).unwrap();
    let mut waiting = waiting_for(&shared, ticket);
    let (_, wake, _) = sleep(&mut waiting).unwrap();
    channel.end();
    settle(&shared);
    wake.take().unwrap();
    shared.wait(ticket, FOREVER).unwrap();
    assert!(is_readable(&wake));
}

#[test]
fn the_descriptor_is_readable_from_the_end_of_a_job_until_it_is_taken() {
    for has_interrupts in [true, false] {
        let channel = HeldChannel::new(has_interrupts);
        let shared = share(&channel);
        assert!(!is_line_readable(&shared));
        let jobs = [job(), job()];
        let tickets = jobs.map(|job| shared.start(job).unwrap());
        assert_eq!(is_line_readable(&shared), !has_interrupts);
        assert_eq!(code(shared.poll()), ResultCode::WouldBlock);
        assert_eq!(is_line_readable(&shared), !has_interrupts);
        channel.end();
        assert!(is_line_readable_now(&shared));
        settle(&shared);
        assert!(is_line_readable(&shared));
        shared.wait(tickets[0], Nanos::ZERO).unwrap();
        assert_eq!(is_line_readable(&shared), !has_interrupts);
        channel.end();
        assert_eq!(shared.poll().unwrap(), jobs[1]);
        assert!(!is_line_readable(&shared));
    }
}

#[test]
fn a_job_stays_with_the_thread_that_waits_for_it_awake() {
    for has_interrupts in [true, false] {
        let channel = HeldChannel::new(has_interrupts);
        let shared = share(&channel);
        let jobs = [job(), job()];
        let tickets = jobs.map(|job| shared.start(job).unwrap());
        assert_eq!(is_line_readable(&shared), !has_interrupts);
        let mut waiting = waiting_for(&shared, tickets[0]);
        assert!(matches!(waiting.look(Nanos::ZERO, FOREVER), Ok(TakeOutcome::NotEnded(WaitPause::Spin))));
        channel.end();
        assert_eq!(code(shared.poll()), ResultCode::WouldBlock);
        // The poller may sleep, and would not be woken for a job that it cannot take.
        assert_eq!(is_line_readable_now(&shared), !has_interrupts);
        assert!(matches!(waiting.look(Nanos::ZERO, FOREVER), Ok(TakeOutcome::Taken(..))));
        assert_eq!(code(shared.wait(tickets[0], FOREVER)), ResultCode::Handle);
        channel.end();
        assert_eq!(shared.poll().unwrap(), jobs[1]);
    }
}

#[test]
fn a_job_whose_waiting_thread_gives_up_is_one_for_polls() {
    for has_interrupts in [true, false] {
        let channel = HeldChannel::new(has_interrupts);
        let shared = share(&channel);
        let started = job();
        let ticket = shared.start(started).unwrap();
        assert_eq!(is_line_readable(&shared), !has_interrupts);
        // The last look of the thread does not find the job, the end of its call does.
        channel.held().late_looks = 1;
        channel.end();
        assert_eq!(code(shared.wait(ticket, Nanos::ZERO)), ResultCode::Timeout);
        assert!(is_line_readable_now(&shared));
        assert_eq!(shared.poll().unwrap(), started);
        assert!(!is_line_readable_now(&shared));
    }
}

#[test]
fn a_poll_never_waits_for_a_thread_that_uses_the_mover() {
    let channel = HeldChannel::new(true);
    let shared = share(&channel);
    let ticket = shared.start(job()).unwrap();
    channel.end();
    let held = shared.lock();
    assert_eq!(code(shared.poll()), ResultCode::WouldBlock);
    assert_eq!(code(shared.close()), ResultCode::Busy);
    drop(held);
    shared.poll().unwrap();
    assert_eq!(code(shared.wait(ticket, FOREVER)), ResultCode::Handle);
}

#[test]
fn a_job_whose_start_panics_or_is_refused_does_not_run() {
    let channel = HeldChannel::new(true);
    let shared = share(&channel);
    let jobs = [job(), job()];
    channel.held().panics = true;
    let start = || shared.start(jobs[0]);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(start)).is_err());
    channel.held().panics = false;
    assert_eq!(code(result(jobs[0])), ResultCode::Unknown);
    let ticket = shared.start(jobs[0]).unwrap();
    assert_eq!(code(shared.start(jobs[0])), ResultCode::Busy);
    channel.end();
    shared.wait(ticket, FOREVER).unwrap();
    shared.close().unwrap();
    assert_eq!(code(shared.start(jobs[1])), ResultCode::Handle);
    // It is idle still.
    JOBS.remove_if(jobs[1], |open| open.check_idle()).unwrap();
}
