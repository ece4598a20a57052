//! Tests of a cache with a mover: long requests are jobs, of the CPU or of a channel that the test drives.

use crate::fake::{CacheRig, buffer, bytes_of, memory, small_config, write};
use crate::over_handle::{BLOCK, FIRST, device, facts};
use headwater_dma::mover::policy::{CacheWrites, ChannelTraits, OperationSet, PolicyConfig};
use headwater_dma::mover::{
    ChannelRefusal, EndedJob, JobEnd, LARGE_JOB_BYTES, MoveChannel, MoveJob, Mover, RefusedJob,
    SoftwareChannel,
};
use headwater_host::clock::{Clock, Nanos};
use headwater_io::cache::{CacheConfig, CacheRequest, SubmitResult};
use headwater_io::command::WriteDurability;
use headwater_io::{CachedHandle, Handle, IoRequest, Queue};
use headwater_nvme::spec::status::Status;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};

const PAGE: usize = 4_096;
/// The length of a request that is moved as a job.
const LONG: usize = 8 * PAGE;
const START: u64 = FIRST * BLOCK as u64;

#[derive(Debug)]
struct DrivenJobs {
    jobs: VecDeque<(u64, MoveJob)>,
    /// No job ends while this is true.
    is_held: bool,
    /// Draws if a poll finds the end of a job; `None` if each does.
    random: Option<fastrand::Rng>,
    /// The jobs that it takes before it dies.
    lives: usize,
}

/// A channel that ends its jobs when the test says so, or by chance. A dead one has done the first step of each.
#[derive(Clone, Debug)]
pub(crate) struct DrivenChannel {
    state: Arc<Mutex<DrivenJobs>>,
}

impl DrivenChannel {
    fn new() -> Self {
        let jobs = DrivenJobs { jobs: VecDeque::new(), is_held: false, random: None, lives: usize::MAX };
        Self { state: Arc::new(Mutex::new(jobs)) }
    }

    /// Returns a channel whose jobs end by chance, and that dies behind so many.
    pub(crate) fn by_chance(seed: u64, lives: usize) -> Self {
        let channel = Self::new();
        channel.state().random = Some(fastrand::Rng::with_seed(seed));
        channel.state().lives = lives;
        channel
    }

    fn state(&self) -> MutexGuard<'_, DrivenJobs> {
        self.state.lock().unwrap()
    }

    fn hold(&self) {
        self.state().is_held = true;
    }

    fn release(&self) {
        self.state().is_held = false;
    }

    fn die(&self) {
        self.state().lives = 0;
    }

    /// Returns a mover that gives this channel every job of at least so many bytes.
    pub(crate) fn mover(&self, threshold: usize) -> Mover {
        let eager = PolicyConfig {
            threshold_bytes: [u64::try_from(threshold).unwrap(); 4],
            cpu_bytes_per_ns: 0.001,
            channel_fixed_ns: 0.0,
            ..PolicyConfig::default()
        };
        let mut mover = Mover::with_channels(vec![Box::new(self.clone())], eager, Clock::start());
        mover.policy_mut().unwrap().freeze();
        mover
    }
}

impl MoveChannel for DrivenChannel {
    fn traits(&self) -> ChannelTraits {
        ChannelTraits {
            node: None,
            depth: 8,
            cache_writes: CacheWrites::Unknown,
            operations: OperationSet::ALL,
        }
    }

    fn submit(&mut self, token: u64, job: MoveJob, _now: Nanos) -> Result<(), RefusedJob> {
        let mut state = self.state();
        let Some(lives) = state.lives.checked_sub(1) else {
            return Err(RefusedJob { job, reason: ChannelRefusal::Dead });
        };
        state.lives = lives;
        state.jobs.push_back((token, job));
        Ok(())
    }

    fn poll(&mut self, _now: Nanos) -> Option<EndedJob> {
        let mut state = self.state();
        let is_dead = state.lives == 0;
        let is_due = is_dead || state.random.as_mut().is_none_or(|random| random.u8(0..3) == 0);
        if !is_due || (state.is_held && !is_dead) {
            return None;
        }
        let (token, mut job) = state.jobs.pop_front()?;
        job.run_steps(if is_dead { 1 } else { usize::MAX });
        let end = if is_dead { JobEnd::Abandoned } else { JobEnd::Done };
        Some(EndedJob { token, job, end, elapsed: Nanos(1) })
    }

    fn take_back(&mut self, _token: u64) -> Option<MoveJob> {
        None
    }

    fn prepare_sleep(&mut self) -> bool {
        false
    }

    fn wake_descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Returns a cache whose pages all may be dirty, over a device of 64 pages.
fn rig(mover: Mover) -> CacheRig {
    let config = CacheConfig { dirty_background: 90, dirty_max: 90, ..small_config() };
    let mut rig = CacheRig::new(64 * PAGE, config, 1);
    rig.cache.set_mover(mover).unwrap();
    rig
}

fn long_read() -> CacheRequest {
    CacheRequest::Read { offset: 0, into: buffer(&[0; LONG]) }
}

/// Returns a cache that has the first pages in its second half, with a job that reads them and does not end.
fn rig_with_held_read() -> (CacheRig, DrivenChannel) {
    let channel = DrivenChannel::new();
    let mut rig = rig(channel.mover(LARGE_JOB_BYTES));
    rig.read(40 * PAGE as u64, LONG);
    assert_eq!(rig.read(0, LONG), rig.lower.now[..LONG]);
    channel.hold();
    assert!(matches!(submit(&mut rig, long_read()), SubmitResult::Pending));
    rig.turn();
    assert!(rig.cache.take_finished(rig.owner).is_none());
    assert_eq!(rig.cache.moves_in_flight(), 1);
    (rig, channel)
}

const HELD: u64 = 900;

fn submit(rig: &mut CacheRig, request: CacheRequest) -> SubmitResult {
    rig.cache.submit(&mut rig.lower, rig.owner, request, HELD).unwrap()
}

fn jobs(rig: &CacheRig) -> (u64, u64, u64) {
    let counters = rig.cache.mover().unwrap().counters();
    (counters.large_jobs, counters.large_bytes, counters.small_jobs)
}

#[test]
fn long_requests_are_one_job_each_and_short_ones_none() {
    let mut rig = rig(Mover::default());
    let long = LONG as u64;
    let bytes: Vec<u8> = (0..LONG).map(|at| u8::try_from(at % 251).unwrap()).collect();
    assert!(matches!(submit(&mut rig, write(0, &bytes)), SubmitResult::Done(_)));
    assert_eq!(jobs(&rig), (1, long, 0), "a write to pages that were not cached");
    assert!(matches!(submit(&mut rig, write(0, &bytes)), SubmitResult::Done(_)));
    assert_eq!(jobs(&rig), (2, 2 * long, 0), "a write to cached pages");
    assert_eq!(rig.read(0, LONG), bytes);
    assert_eq!(jobs(&rig), (3, 3 * long, 0), "a read of cached pages");
    assert_eq!(rig.read(100, 20_000), bytes[100..20_100]);
    assert_eq!(jobs(&rig), (4, 3 * long + 20_000, 0), "a read that begins and ends inside of pages");
    assert_eq!(rig.read(5, 3 * PAGE), bytes[5..5 + 3 * PAGE]);
    assert_eq!(rig.write(7, &bytes[7..7 + 3 * PAGE]), Status::SUCCESS);
    let mut slice = vec![0; LONG];
    assert!(rig.cache.read_hit(rig.owner, 0, &mut slice));
    // Eight of at most 14 pages are dirty: a slice of more than six pages is no hit.
    assert!(rig.cache.write_hit(rig.owner, 0, &slice[..5 * PAGE]));
    assert_eq!((slice, jobs(&rig)), (bytes, (4, 3 * long + 20_000, 0)), "short requests and slices");
    let wanted = rig.lower.now[LONG..2 * LONG].to_vec();
    assert_eq!(rig.read(long, LONG), wanted);
    assert_eq!(jobs(&rig), (5, 4 * long + 20_000, 0), "pages that were read for the request");
    assert_eq!(rig.flush(), Status::SUCCESS);
}

#[test]
fn a_cache_takes_one_mover() {
    let mut rig = rig(Mover::default());
    assert!(rig.cache.set_mover(Mover::default()).is_err());
}

#[test]
fn pages_that_a_job_reads_are_neither_evicted_nor_written() {
    let (mut rig, channel) = rig_with_held_read();
    let before = rig.lower.now[..LONG].to_vec();
    for page in 20..60 {
        let wanted = rig.lower.now[page * PAGE..(page + 1) * PAGE].to_vec();
        assert_eq!(rig.read((page * PAGE) as u64, PAGE), wanted);
    }
    assert!(!rig.cache.write_hit(rig.owner, 10, &[9; 10]), "a page that a job reads was written");
    assert!(matches!(rig.submit(write(0, &[9; PAGE])), SubmitResult::Pending));
    assert!(rig.cache.resize(&mut rig.lower, rig.owner, (8, 0), &mut memory).is_ok());
    rig.turn();
    assert!(rig.cache.take_finished(rig.owner).is_none(), "a write or a shrink did not wait for the job");
    channel.release();
    let read = rig.wait();
    assert_eq!((read.token, read.status), (HELD, Status::SUCCESS));
    assert_eq!(bytes_of(&read.data.unwrap()), before);
    for _ in 0..2 {
        assert_eq!(rig.wait().status, Status::SUCCESS);
    }
    assert_eq!(rig.read(0, PAGE), [9; PAGE]);
    assert_eq!(rig.cache.statistics().capacity_bytes, 8 * PAGE as u64);
}

#[test]
fn pages_that_a_job_writes_are_read_and_written_back_after_it() {
    let channel = DrivenChannel::new();
    let mut rig = rig(channel.mover(LARGE_JOB_BYTES));
    channel.hold();
    assert!(matches!(submit(&mut rig, write(0, &[7; LONG])), SubmitResult::Pending));
    assert!(!rig.cache.read_hit(rig.owner, 0, &mut [0; 10]));
    assert!(matches!(
        rig.submit(CacheRequest::Read { offset: 0, into: buffer(&[0; 10]) }),
        SubmitResult::Pending
    ));
    assert!(matches!(rig.submit(CacheRequest::Flush), SubmitResult::Pending));
    for _ in 0..100 {
        rig.turn();
    }
    assert_eq!(
        rig.lower.log,
        [],
        "a page was written back, or the device flushed, before the page had its bytes"
    );
    assert!(rig.cache.take_finished(rig.owner).is_none());
    channel.release();
    for _ in 0..3 {
        let finished = rig.wait();
        assert_eq!(finished.status, Status::SUCCESS);
        let data = finished.data.filter(|_| finished.token != HELD);
        assert!(data.is_none_or(|data| bytes_of(&data) == [7; 10]));
    }
    assert_eq!(rig.lower.durable[..LONG], [7; LONG]);
}

#[test]
fn shrink_does_not_wait_for_reads_that_are_submitted_after_it() {
    let (mut rig, channel) = rig_with_held_read();
    assert!(rig.cache.resize(&mut rig.lower, rig.owner, (8, 0), &mut memory).is_ok());
    let second = submit(&mut rig, long_read());
    assert!(matches!(second, SubmitResult::Done(_)), "a job reads pages that the shrink waits for");
    channel.release();
    for _ in 0..2 {
        assert_eq!(rig.wait().status, Status::SUCCESS);
    }
    assert_eq!(rig.cache.statistics().capacity_bytes, 8 * PAGE as u64);
}

#[test]
fn read_longer_than_the_cache_continues_after_it_has_gathered_every_page() {
    // It failed: it held every page when it stopped, and nothing else was in progress that could free one.
    let mut rig = CacheRig::new(64 * PAGE, CacheConfig { pages: 8, ..small_config() }, 1);
    rig.cache.set_mover(Mover::default()).unwrap();
    rig.read(0, LONG);
    rig.lower.completing = false;
    let (from, durable) = (buffer(&[6; PAGE]), WriteDurability::NamespaceDefault);
    let direct = CacheRequest::DirectWrite { offset: 0, from, durable };
    assert!(matches!(rig.submit(direct), SubmitResult::Pending));
    let read = CacheRequest::Read { offset: 0, into: buffer(&[0; 2 * LONG]) };
    assert!(matches!(submit(&mut rig, read), SubmitResult::Pending));
    rig.lower.completing = true;
    assert_eq!(rig.wait().status, Status::SUCCESS);
    let read = rig.wait();
    assert_eq!((read.token, read.status), (HELD, Status::SUCCESS));
    assert_eq!(bytes_of(&read.data.unwrap()), rig.lower.now[..2 * LONG]);
}

#[test]
fn cancelled_request_returns_its_buffer_when_its_job_has_ended() {
    let (mut rig, channel) = rig_with_held_read();
    assert!(rig.cache.cancel(rig.owner, HELD));
    rig.turn();
    assert!(rig.cache.take_finished(rig.owner).is_none(), "a job still writes to the buffer");
    channel.release();
    let finished = rig.wait();
    assert_eq!((finished.token, finished.status), (HELD, Status::ABORT_REQUESTED));
    assert!(finished.data.unwrap().is_only_handle(), "the job kept a handle to the buffer");
    assert_eq!((rig.cache.in_flight(), rig.cache.moves_in_flight()), (0, 0));
}

#[test]
fn cancelled_write_writes_no_page_that_arrives_before_its_job_has_ended() {
    // It wrote the last page, of which it has a part, when that was read behind the cancellation.
    let channel = DrivenChannel::new();
    let mut rig = rig(channel.mover(LARGE_JOB_BYTES));
    channel.hold();
    rig.lower.completing = false;
    let unchanged = rig.lower.now[LONG..LONG + PAGE].to_vec();
    assert!(matches!(submit(&mut rig, write(0, &[7; LONG + 100])), SubmitResult::Pending));
    rig.turn();
    assert_eq!((rig.cache.moves_in_flight(), rig.lower.in_flight()), (1, 1), "a job, and a page to be read");
    assert!(rig.cache.cancel(rig.owner, HELD));
    rig.lower.completing = true;
    while rig.lower.in_flight() > 0 {
        rig.turn();
    }
    assert_eq!(rig.read(LONG as u64, PAGE), unchanged);
    channel.release();
    let finished = rig.wait();
    assert_eq!((finished.token, finished.status), (HELD, Status::ABORT_REQUESTED));
    assert_eq!(rig.read(LONG as u64, PAGE), unchanged);
    assert_eq!(rig.read(0, LONG), [7; LONG], "what its job wrote remains");
}

#[test]
fn request_of_a_lost_device_ends_when_its_job_has_ended() {
    let (mut rig, channel) = rig_with_held_read();
    rig.lower.gone = true;
    rig.turn();
    assert!(rig.cache.take_finished(rig.owner).is_none(), "a job still writes to the buffer");
    channel.release();
    let finished = rig.wait();
    assert_eq!((finished.token, finished.status), (HELD, Status::NAMESPACE_NOT_READY));
    assert!(finished.data.unwrap().is_only_handle());
}

#[test]
fn jobs_of_a_channel_that_dies_are_ended_by_the_cpu() {
    let (mut rig, channel) = rig_with_held_read();
    let wanted = rig.lower.now[..LONG].to_vec();
    channel.die();
    let finished = rig.wait();
    assert_eq!((finished.token, finished.status), (HELD, Status::SUCCESS));
    assert_eq!(bytes_of(&finished.data.unwrap()), wanted);
    assert_eq!(rig.cache.mover().unwrap().channel_counters().abandoned, 1);
    assert!(
        matches!(submit(&mut rig, long_read()), SubmitResult::Done(_)),
        "the CPU does what a dead one refuses"
    );
    assert_eq!(rig.write(0, &[3; LONG]), Status::SUCCESS);
    assert_eq!(rig.read(0, LONG), [3; LONG]);
}

fn cached(mover: Mover) -> (CachedHandle, Arc<Mutex<Vec<u8>>>) {
    let (device, bytes) = device();
    let below = Handle::builder(&facts()).queue(Queue::over(Box::new(device))).build().unwrap();
    let mut handle = CachedHandle::new(below, &facts(), small_config(), &mut memory).unwrap();
    handle.set_mover(mover).unwrap();
    (handle, bytes)
}

#[test]
fn handles_over_a_software_channel_agree_with_an_array_of_bytes() {
    let clock = Clock::start();
    let channel = SoftwareChannel::start(clock, Nanos::from_micros(20)).unwrap();
    let config = PolicyConfig {
        threshold_bytes: [LARGE_JOB_BYTES as u64; 4],
        cpu_bytes_per_ns: 0.001,
        channel_fixed_ns: 0.0,
        ..PolicyConfig::default()
    };
    let mut mover = Mover::with_channels(vec![Box::new(channel)], config, clock);
    mover.policy_mut().unwrap().freeze();
    let (mut first, device) = cached(mover);
    let mut second = CachedHandle::join(&first.cache(), &facts());
    let start = usize::try_from(START).unwrap();
    let mut wanted = device.lock().unwrap()[start..start + 200 * BLOCK].to_vec();
    let mut random = fastrand::Rng::with_seed(5);
    for _ in 0..300 {
        let handle = if random.bool() { &mut first } else { &mut second };
        let offset = random.usize(0..wanted.len());
        let bytes = random.usize(1..=50_000).min(wanted.len() - offset);
        let at = START + u64::try_from(offset).unwrap();
        if random.bool() {
            wanted[offset..offset + bytes].fill(random.u8(..));
            let from = buffer(&wanted[offset..offset + bytes]);
            handle.write(at, from, WriteDurability::NamespaceDefault).unwrap();
        } else {
            let read = handle.read(at, buffer(&vec![0; bytes])).unwrap();
            assert!(bytes_of(&read) == wanted[offset..offset + bytes]);
        }
    }
    assert!(first.mover_counters().unwrap().large_jobs > 0);
    second.flush().unwrap();
    assert!(device.lock().unwrap()[start..start + 200 * BLOCK] == wanted);
}

#[test]
fn request_with_a_timeout_completes_when_its_job_has_ended() {
    let channel = DrivenChannel::new();
    let (mut handle, _) = cached(channel.mover(LARGE_JOB_BYTES));
    handle.read(START, buffer(&[0; LONG])).unwrap();
    channel.hold();
    let request = IoRequest::read(START, buffer(&[0; LONG])).with_timeout(Nanos(1));
    handle.submit(request, 7).unwrap();
    for _ in 0..1_000 {
        assert!(handle.poll().unwrap().is_none());
    }
    channel.release();
    let done = handle.wait(None).unwrap().unwrap();
    assert_eq!((done.completion.token, done.completion.status), (7, Status::ABORT_REQUESTED));
    assert_eq!((done.data.bytes(), handle.outstanding()), (LONG, 0));
}

#[test]
fn handle_that_is_closed_leaves_its_job_the_memory() {
    let channel = DrivenChannel::new();
    let (mut handle, _) = cached(channel.mover(LARGE_JOB_BYTES));
    let wanted = bytes_of(&handle.read(START, buffer(&[0; LONG])).unwrap());
    channel.hold();
    let into = buffer(&[0; LONG]);
    let kept = into.clone();
    handle.submit(IoRequest::read(START, into), 7).unwrap();
    drop(handle);
    let (_, mut job) = channel.state().jobs.pop_front().unwrap();
    job.run_steps(usize::MAX);
    assert_eq!(bytes_of(&kept), wanted);
}
