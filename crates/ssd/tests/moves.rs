//! Values that channels of the mover move while the device goes on: other commands run, memory stays until its jobs have
//! ended, and each command completes once, whatever happens to it or to the channel.

#![expect(clippy::unwrap_used, reason = "a test fails if its setup fails")]

use bytes::Bytes;
use headwater_dma::iova::{ClientMemory, ClientSegments, Iova};
use headwater_dma::mover::policy::{CacheWrites, ChannelTraits, OperationSet, PolicyConfig};
use headwater_dma::mover::{
    ChannelRefusal, EndedJob, JobEnd, MoveChannel, MoveJob, Mover, RefusedJob, SoftwareChannel,
};
use headwater_host::clock::{Clock, Nanos, UnixMillis};
use headwater_host::shared_memory::SharedMemory;
use headwater_nvme::spec::status::Status;
use headwater_ssd::command::{
    FrontEndId, NamespaceId, ReadRelease, RecordExpiry, SsdCommand, SsdCompletion, ValueReader, ValueSink,
    ValueSource, WriteCondition,
};
use headwater_ssd::engine::{DeviceConfig, SsdDevice, StartTime};
use headwater_ssd::media::file::{FileMedia, FileOptions};
use headwater_ssd::media::{FlashGeometry, Media as _};
use headwater_ssd::namespace::{BlockFormat, Namespace, NamespaceChange, NamespaceKind};
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use tempfile::TempDir;

const FRONT_END: FrontEndId = FrontEndId(1);
const WALL: UnixMillis = UnixMillis(1_000_000);
const START: StartTime = StartTime { now: Nanos::ZERO, wall: WALL };
const EXTENT: usize = 262_144;
const OTHER: NamespaceId = NamespaceId(2);

/// The jobs of a channel that ends them when the test says so.
#[derive(Debug, Default)]
struct HeldJobs {
    jobs: VecDeque<(u64, MoveJob)>,
    /// Jobs that may end, and the side from which they do.
    may_end: usize,
    last_first: bool,
    is_dead: bool,
    taken: usize,
}

#[derive(Clone, Debug, Default)]
struct HeldChannel(Arc<Mutex<HeldJobs>>);

impl HeldChannel {
    fn lock(&self) -> MutexGuard<'_, HeldJobs> {
        self.0.lock().unwrap()
    }

    /// Returns a mover whose jobs all go to this channel.
    fn mover(&self) -> Mover {
        let always =
            PolicyConfig { threshold_bytes: [1; 4], busy_cpu_factor: 1e12, ..PolicyConfig::default() };
        Mover::with_channels(vec![Box::new(self.clone())], always, Clock::start())
    }
}

impl MoveChannel for HeldChannel {
    fn traits(&self) -> ChannelTraits {
        ChannelTraits {
            node: None,
            depth: 1_000,
            cache_writes: CacheWrites::Allocating,
            operations: OperationSet::ALL,
        }
    }

    fn submit(&mut self, token: u64, job: MoveJob, _now: Nanos) -> Result<(), RefusedJob> {
        let mut held = self.lock();
        if held.is_dead {
            return Err(RefusedJob { job, reason: ChannelRefusal::Dead });
        }
        held.jobs.push_back((token, job));
        held.taken += 1;
        Ok(())
    }

    fn poll(&mut self, _now: Nanos) -> Option<EndedJob> {
        let mut held = self.lock();
        let elapsed = Nanos::from_micros(1);
        if held.is_dead {
            let (token, job) = held.jobs.pop_front()?;
            return Some(EndedJob { token, job, end: JobEnd::Abandoned, elapsed });
        }
        held.may_end = held.may_end.checked_sub(1)?;
        let next = if held.last_first { held.jobs.pop_back() } else { held.jobs.pop_front() };
        let (token, mut job) = next?;
        job.run_steps(usize::MAX);
        Some(EndedJob { token, job, end: JobEnd::Done, elapsed })
    }

    fn take_back(&mut self, _token: u64) -> Option<MoveJob> {
        None
    }

    fn prepare_sleep(&mut self) -> bool {
        self.lock().jobs.is_empty()
    }

    fn wake_descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A device on a file, whose mover has one channel.
struct Bench {
    device: SsdDevice<FileMedia>,
    channel: HeldChannel,
    /// Completions by the order of their release.
    done: Vec<SsdCompletion>,
    _folder: TempDir,
}

impl Bench {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let geometry = FlashGeometry::with_blocks(64);
        let media = FileMedia::create(folder.path(), geometry, [7; 16], FileOptions::default()).unwrap();
        let mut device = SsdDevice::open(media, DeviceConfig::default(), START, &mut |_| {}).unwrap();
        let channel = HeldChannel::default();
        device.set_mover(channel.mover());
        Self { device, channel, done: Vec::new(), _folder: folder }
    }

    fn submit(&mut self, namespace: NamespaceId, token: u64, command: SsdCommand) {
        self.device.submit(FRONT_END, namespace, token, command).unwrap();
    }

    fn turn(&mut self) {
        self.device.poll(Nanos::ZERO, WALL);
        while let Some(completion) = self.device.next_completion(FRONT_END) {
            self.done.push(completion);
        }
    }

    /// Polls until `until` holds.
    #[track_caller]
    fn poll_until(&mut self, mut until: impl FnMut(&Self) -> bool) {
        for _ in 0..50_000_000 {
            if until(self) {
                return;
            }
            self.turn();
        }
        panic!("the device does not come to it: {:?}", self.device.stats());
    }

    /// Polls until so many jobs are on the channel.
    #[track_caller]
    fn poll_until_held(&mut self, jobs: usize) {
        self.poll_until(|bench| bench.channel.lock().jobs.len() == jobs);
    }

    /// Lets every job end from now on.
    fn let_end(&mut self) {
        self.channel.lock().may_end = usize::MAX;
    }

    /// Polls until a command has completed, and returns its completion.
    #[track_caller]
    fn complete(&mut self, token: u64) -> SsdCompletion {
        self.poll_until(|bench| bench.done.iter().any(|done| done.token == token));
        let at = self.done.iter().position(|done| done.token == token).unwrap();
        self.done.swap_remove(at)
    }

    /// Stores a value, whose jobs end at once.
    #[track_caller]
    fn store(&mut self, key: &'static str, value: &[u8]) {
        self.let_end();
        self.submit(NamespaceId::FIRST, 900, store(key, value.to_vec().into()));
        assert_eq!(self.complete(900).status, Status::SUCCESS);
        self.channel.lock().may_end = 0;
    }

    /// Asserts that nothing is left of any command.
    #[track_caller]
    fn is_quiet(&mut self) {
        for _ in 0..1_000 {
            self.turn();
        }
        assert_eq!((self.done.len(), self.device.in_flight()), (0, 0), "a command completed twice, or never");
        assert!(self.device.prepare_sleep() && self.device.next_deadline().is_none_or(|due| due.0 > 1_000));
    }
}

fn store(key: &'static str, value: ValueSource) -> SsdCommand {
    let key = Bytes::from_static(key.as_bytes());
    SsdCommand::Store { key, value, condition: WriteCondition::Always, expiry: RecordExpiry::Never }
}

fn retrieve(key: &'static str, sink: ValueSink) -> SsdCommand {
    let key = Bytes::from_static(key.as_bytes());
    SsdCommand::retrieve_whole(key, sink, ReadRelease::WhenDurable)
}

fn text(bytes: usize, salt: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(salt);
    let mut text = vec![0; bytes];
    random.fill(&mut text);
    text
}

/// Registers a region of a client, and returns its table and its bytes.
fn client(bytes: usize) -> (ClientMemory, ClientSegments) {
    let mut memory = ClientMemory::new();
    memory.register(Iova(0), SharedMemory::anonymous(bytes).unwrap()).unwrap();
    let segments = memory.resolve(Iova(0), bytes as u64).unwrap();
    (memory, segments)
}

#[test]
fn commands_run_while_a_channel_moves_a_value() {
    let mut bench = Bench::new();
    let value = text(EXTENT + 700, 1);
    bench.submit(NamespaceId::FIRST, 1, store("long", value.clone().into()));
    // A block of 64 pages, 16 a job.
    bench.poll_until_held(4);
    bench.submit(NamespaceId::FIRST, 2, store("short", b"bytes".to_vec().into()));
    assert_eq!(bench.complete(2).status, Status::SUCCESS);
    bench.submit(NamespaceId::FIRST, 3, retrieve("short", Vec::new().into()));
    assert_eq!(bench.complete(3).sink, b"bytes");
    assert_eq!((bench.done.len(), bench.channel.lock().jobs.len()), (0, 4), "the store waits");
    bench.let_end();
    assert_eq!(bench.complete(1).status, Status::SUCCESS);
    bench.channel.lock().may_end = 0;

    bench.submit(NamespaceId::FIRST, 4, retrieve("long", Vec::new().into()));
    bench.poll_until_held(1);
    bench.submit(NamespaceId::FIRST, 5, retrieve("short", Vec::new().into()));
    assert_eq!(bench.complete(5).sink, b"bytes");
    assert!(bench.done.is_empty(), "the read waits for its job");
    bench.let_end();
    let found = bench.complete(4);
    assert!(found.status == Status::SUCCESS && found.sink == value);
    assert_eq!(bench.device.stats().moves_waited, 5);
    bench.is_quiet();
}

#[test]
fn pages_are_programmed_in_their_order_whatever_order_their_jobs_end_in() {
    let mut bench = Bench::new();
    let value = text(3 * EXTENT + 9, 2);
    bench.submit(NamespaceId::FIRST, 1, store("long", value.clone().into()));
    bench.poll_until_held(12);
    bench.channel.lock().last_first = true;
    for _ in 0..12 {
        bench.channel.lock().may_end = 1;
        (0..20).for_each(|_| bench.turn());
    }
    assert_eq!(bench.complete(1).status, Status::SUCCESS);
    bench.let_end();
    bench.submit(NamespaceId::FIRST, 2, retrieve("long", Vec::new().into()));
    assert!(bench.complete(2).sink == value);
    bench.is_quiet();
}

#[test]
fn client_memory_stays_mapped_until_its_jobs_have_ended() {
    let mut bench = Bench::new();
    let value = text(2 * EXTENT, 3);
    let (mut memory, segments) = client(value.len());
    segments.copy_out(0, &value);
    bench.submit(NamespaceId::FIRST, 1, store("long", ValueSource::Client(segments)));
    bench.poll_until_held(8);
    let revocation = memory.revoke(Iova(0)).unwrap();
    assert!(!revocation.is_drained());
    bench.let_end();
    assert_eq!(bench.complete(1).status, Status::SUCCESS);
    assert!(revocation.is_drained());
    bench.channel.lock().may_end = 0;

    let (mut memory, segments) = client(value.len());
    let sink = ValueSink::Client(segments.clone());
    bench.submit(NamespaceId::FIRST, 2, retrieve("long", sink));
    bench.poll_until_held(8);
    let revocation = memory.revoke(Iova(0)).unwrap();
    // All jobs but one end: the command still waits.
    bench.channel.lock().may_end = 7;
    (0..2_000).for_each(|_| bench.turn());
    assert!(bench.done.is_empty() && !revocation.is_drained());
    bench.let_end();
    assert_eq!(bench.complete(2).status, Status::SUCCESS);
    let mut found = vec![0; value.len()];
    segments.copy_in(0, &mut found);
    assert!(found == value);
    drop(segments);
    assert!(revocation.is_drained());
    bench.is_quiet();
}

#[test]
fn a_channel_that_dies_ends_every_command_once() {
    let mut bench = Bench::new();
    let (first, second) = (text(2 * EXTENT + 1, 4), text(EXTENT, 5));
    bench.store("first", &first);
    bench.submit(NamespaceId::FIRST, 1, retrieve("first", Vec::new().into()));
    bench.poll_until_held(1);
    bench.submit(NamespaceId::FIRST, 2, store("second", second.clone().into()));
    bench.poll_until_held(5);
    bench.channel.lock().is_dead = true;
    let (read, write) = (bench.complete(1), bench.complete(2));
    assert!(read.status == Status::SUCCESS && read.sink == first);
    assert_eq!(write.status, Status::SUCCESS);
    bench.submit(NamespaceId::FIRST, 3, retrieve("second", Vec::new().into()));
    assert!(bench.complete(3).sink == second);
    let stats = bench.device.stats();
    assert!(stats.move_channels.abandoned == 5 && stats.move_channels.refused > 0, "{stats:?}");
    bench.is_quiet();
}

#[test]
fn a_store_whose_namespace_changes_keeps_its_blocks_until_its_jobs_have_ended() {
    let mut bench = Bench::new();
    let change = |change| SsdCommand::Namespace(change);
    let kind = NamespaceKind::Kv;
    let made = Namespace { kind, size: 32 << 20, ..Namespace::IMPLICIT };
    bench.submit(NamespaceId::FIRST, 1, change(NamespaceChange::Create(made)));
    assert_eq!(bench.complete(1).status, Status::SUCCESS);
    let free = bench.device.stats().free_blocks;
    bench.submit(OTHER, 2, store("long", text(8 * EXTENT, 6).into()));
    bench.poll_until_held(32);
    bench.submit(OTHER, 3, change(NamespaceChange::Delete));
    assert_eq!(bench.complete(3).status, Status::SUCCESS);
    let blocks = Namespace { kind: NamespaceKind::Block(BlockFormat::B512), size: 8, ..made };
    bench.submit(NamespaceId::FIRST, 4, change(NamespaceChange::Create(blocks)));
    assert_eq!(bench.complete(4).status, Status::SUCCESS);
    // The pages of one job wake the store, which finds a namespace of blocks.
    bench.channel.lock().may_end = 1;
    let status = bench.complete(2).status;
    assert_eq!((status, bench.channel.lock().jobs.len()), (Status::INVALID_NAMESPACE, 31));
    // Blocks with jobs in flight are not erased, so the jobs find the blocks that they were started for.
    (0..20_000).for_each(|_| bench.turn());
    bench.let_end();
    bench.poll_until(|bench| bench.channel.lock().jobs.is_empty());
    for salt in 0..16 {
        bench.store("next", &text(5 * EXTENT, salt));
    }
    bench.let_end();
    bench.submit(NamespaceId::FIRST, 5, retrieve("next", Vec::new().into()));
    assert!(bench.complete(5).sink == text(5 * EXTENT, 15), "{status:?}, {free} blocks were free");
    bench.is_quiet();
}

#[test]
fn parts_of_a_value_are_read_by_channels() {
    let mut bench = Bench::new();
    let value = text(3 * EXTENT + 5_000, 7);
    bench.store("long", &value);
    let reader = ValueReader::new(9);
    let key = Bytes::from_static(b"long");
    bench.submit(NamespaceId::FIRST, 1, SsdCommand::OpenValue { key, reader: reader.clone() });
    assert_eq!(bench.complete(1).value_bytes as usize, value.len());
    let mut found = Vec::new();
    while found.len() < value.len() {
        let sink = vec![9; 77];
        let offset = u32::try_from(found.len()).unwrap();
        let part = SsdCommand::ReadPart { reader: reader.clone(), offset, sink, bytes_max: 300_001 };
        bench.submit(NamespaceId::FIRST, 2, part);
        bench.poll_until(|bench| !bench.channel.lock().jobs.is_empty() || !bench.done.is_empty());
        (0..100).for_each(|_| bench.turn());
        let is_waiting = !bench.channel.lock().jobs.is_empty();
        assert_eq!(bench.done.is_empty(), is_waiting, "behind {} bytes", found.len());
        bench.let_end();
        let part = bench.complete(2);
        assert_eq!(part.status, Status::SUCCESS, "behind {} bytes", found.len());
        found.extend_from_slice(&part.sink);
        bench.channel.lock().may_end = 0;
    }
    assert!(found == value);
    assert!(bench.channel.lock().taken > 12, "the parts were jobs of the channel");
    let stats = bench.device.stats();
    let moved = stats.moved_in_large_jobs + stats.moved_in_small_jobs;
    assert_eq!(moved, 6 * EXTENT as u64, "every byte was moved once by the store, and once for its part");
    bench.is_quiet();
}

#[test]
fn a_device_is_dropped_while_jobs_are_in_flight() {
    let mut bench = Bench::new();
    let (memory, segments) = client(2 * EXTENT);
    bench.submit(NamespaceId::FIRST, 1, store("long", ValueSource::Client(segments)));
    bench.poll_until_held(8);
    let channel = bench.channel.clone();
    drop(bench);
    assert_eq!(channel.lock().jobs.len(), 8, "the channel owns the memories");
    drop(memory);
    channel.lock().jobs.clear();
}

#[test]
fn a_core_does_not_sleep_without_a_way_to_learn_that_a_job_has_ended() {
    let mut bench = Bench::new();
    bench.submit(NamespaceId::FIRST, 1, store("long", text(EXTENT, 8).into()));
    bench.poll_until_held(4);
    assert!(!bench.device.prepare_sleep(), "the channel has no descriptor");
    assert!(bench.device.next_deadline().is_some_and(|due| due.0 <= 1_000));
    bench.let_end();
    assert_eq!(bench.complete(1).status, Status::SUCCESS);
    bench.is_quiet();

    // A thread has a descriptor, which wakes the core when the job has ended.
    let clock = Clock::start();
    let channel = SoftwareChannel::start(clock, Nanos::ZERO).unwrap();
    let always = PolicyConfig { threshold_bytes: [1; 4], busy_cpu_factor: 1e12, ..PolicyConfig::default() };
    bench.device.set_mover(Mover::with_channels(vec![Box::new(channel)], always, clock));
    let value = text(4 * EXTENT, 9);
    bench.submit(NamespaceId::FIRST, 2, store("long", value.clone().into()));
    bench.submit(NamespaceId::FIRST, 3, retrieve("long", Vec::new().into()));
    let mut slept = 0;
    while bench.done.len() < 2 {
        bench.turn();
        if bench.device.prepare_sleep() && bench.device.stats().moves_waited > 0 {
            let moves: Vec<_> = bench.device.move_descriptors().collect();
            let medium = bench.device.media().wake_descriptor();
            let all = moves.into_iter().chain(medium);
            let mut all: Vec<_> = all.map(|wake| PollFd::from_borrowed_fd(wake, PollFlags::IN)).collect();
            poll(&mut all, Some(&Nanos::from_millis(50).to_timespec())).unwrap();
            slept += 1;
        }
    }
    assert!(bench.complete(3).sink == value);
    assert_eq!(bench.complete(2).status, Status::SUCCESS);
    assert!(slept > 0);
}
