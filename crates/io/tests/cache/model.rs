//! Seeded runs against an array of bytes: several users, any order of completions, failures, changes of size and
//! policy.

use crate::fake::{FakeDevice, buffer, bytes_of, memory};
use crate::moves::DrivenChannel;
use headwater_dma::mover::LARGE_JOB_BYTES;
use headwater_host::clock::Nanos;
use headwater_io::cache::{
    BackingDevice as _, BackingLimits, BlockCache, CacheConfig, CacheRequest, CacheUser, DeviceShape,
    FinishedRequest, SubmitResult, WritePolicy,
};
use headwater_io::command::WriteDurability;
use headwater_nvme::spec::status::Status;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

const USERS: usize = 3;

/// The expected bytes; `None` after a failed write, until they are written again.
struct ByteModel {
    bytes: Vec<Option<u8>>,
    /// The number of the last write to each byte.
    touched: Vec<u64>,
    writes: u64,
}

/// A request in progress.
struct PendingCheck {
    user: usize,
    range: Range<usize>,
    effect: ExpectedEffect,
}

enum ExpectedEffect {
    Read,
    /// The bytes after the write; unknown after a discard.
    Write(Vec<Option<u8>>),
    Compare {
        equal: bool,
    },
    /// The bytes at submission, and the number of the last write at that time.
    Flush(Vec<Option<u8>>, u64),
    Resize,
}

struct CacheModelRun {
    seed: u64,
    random: fastrand::Rng,
    lower: FakeDevice,
    cache: BlockCache,
    users: Vec<CacheUser>,
    model: ByteModel,
    pending: BTreeMap<u64, PendingCheck>,
    token: u64,
    now: u64,
    cancelled: BTreeSet<u64>,
    /// True if requests may fail.
    failures_allowed: bool,
}

impl CacheModelRun {
    fn new(seed: u64, failures: u32) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let bytes = random.usize(40..400) * 512;
        let mut lower = FakeDevice::new(bytes, seed ^ 0xF00D);
        lower.limits = BackingLimits {
            transfer_bytes_max: [1, 2, 7, 128][random.usize(0..4)] * 4_096,
            segments_max: [1, 2, 128][random.usize(0..3)],
            range_bytes_max: [4_096, 1 << 20][random.usize(0..2)],
        };
        lower.depth = random.usize(1..20);
        (lower.failing_reads, lower.failing_writes) = (failures, failures);
        let config = CacheConfig {
            policy: [WritePolicy::Back, WritePolicy::Through][random.usize(0..2)],
            pages: random.usize(8..60),
            block_pages: [1, 4, 8][random.usize(0..3)],
            dirty_background: random.u8(0..20),
            dirty_max: random.u8(20..=90),
            dirty_age: Nanos(random.u64(1..5_000)),
            prefetch_pages: random.u32(0..20),
            write_backs: random.u32(1..6),
            ..CacheConfig::default()
        };
        let shape = DeviceShape { device_bytes: u64::try_from(bytes).unwrap(), block_bytes: 512 };
        let mut cache = BlockCache::new(shape, config, &mut memory).unwrap();
        let users = (0..USERS).map(|_| cache.join()).collect();
        let model = ByteModel {
            bytes: lower.now.iter().map(|&byte| Some(byte)).collect(),
            touched: vec![0; bytes],
            writes: 0,
        };
        Self {
            seed,
            random,
            lower,
            cache,
            users,
            model,
            pending: BTreeMap::new(),
            token: 0,
            now: 0,
            cancelled: BTreeSet::new(),
            failures_allowed: failures > 0,
        }
    }

    /// Returns a random range without conflicts with other requests; whole blocks if `blocks`.
    fn range(&mut self, blocks: bool, writes: bool) -> Option<Range<usize>> {
        let most = self.model.bytes.len();
        let longest = [600, 4_096, 9_000, 40_000][self.random.usize(0..4)];
        let start = self.random.usize(0..most);
        let bytes = self.random.usize(1..=longest).min(most - start);
        let mut range = start..start + bytes;
        if self.random.bool() {
            range = start / 4_096 * 4_096..(start + bytes).next_multiple_of(4_096).min(most);
        }
        if blocks {
            range = range.start / 512 * 512..range.end.next_multiple_of(512).min(most);
        }
        let conflicts = |ask: &PendingCheck| {
            let overlaps = ask.range.start < range.end && range.start < ask.range.end;
            overlaps && (writes || matches!(ask.effect, ExpectedEffect::Write(_)))
        };
        (!self.pending.values().any(conflicts)).then_some(range)
    }

    fn random_bytes(&mut self, bytes: usize) -> Vec<u8> {
        // Runs of equal bytes, so that mixed data is detected.
        let byte = self.random.u8(..);
        (0..bytes).map(|at| byte.wrapping_add(u8::try_from(at / 512 % 251).unwrap())).collect()
    }

    fn step(&mut self) {
        match self.random.u32(0..100) {
            0..30 => self.submit_read(),
            30..55 => self.submit_write(),
            55..60 => self.submit_compare(),
            60..63 => self.submit_range(),
            63..66 => {
                let what = self.flush();
                self.submit(0..0, what, CacheRequest::Flush);
            }
            66..67 => self.resize(),
            67..68 => {
                let policy = [WritePolicy::Back, WritePolicy::Through][self.random.usize(0..2)];
                self.cache.set_policy(&mut self.lower, policy);
            }
            68..72 => self.hit(),
            72..74 => self.cancel(),
            _ => self.turn(),
        }
    }

    /// Returns the bytes that a flush must make durable: all except those being written.
    fn flush(&self) -> ExpectedEffect {
        let mut bytes = self.model.bytes.clone();
        for ask in self.pending.values().filter(|ask| matches!(ask.effect, ExpectedEffect::Write(_))) {
            bytes[ask.range.clone()].fill(None);
        }
        ExpectedEffect::Flush(bytes, self.model.writes)
    }

    fn submit(&mut self, range: Range<usize>, what: ExpectedEffect, request: CacheRequest) {
        self.token += 1;
        let user = self.random.usize(0..USERS);
        if let ExpectedEffect::Write(bytes) = &what {
            self.model.writes += 1;
            assert_eq!(bytes.len(), range.len());
            self.model.touched[range.clone()].fill(self.model.writes);
        }
        self.pending.insert(self.token, PendingCheck { user, range, effect: what });
        match self.cache.submit(&mut self.lower, self.users[user], request, self.token).unwrap() {
            SubmitResult::Done(finished) => self.check(finished),
            SubmitResult::Pending => {}
        }
    }

    fn submit_read(&mut self) {
        let direct = self.random.u32(0..4) == 0;
        let Some(range) = self.range(direct, false) else { return };
        let (offset, into) = (u64::try_from(range.start).unwrap(), buffer(&vec![0x99; range.len()]));
        let request = if direct {
            CacheRequest::DirectRead { offset, into }
        } else {
            CacheRequest::Read { offset, into }
        };
        self.submit(range, ExpectedEffect::Read, request);
    }

    fn submit_write(&mut self) {
        let direct = self.random.u32(0..4) == 0;
        let Some(range) = self.range(direct, true) else { return };
        let bytes = self.random_bytes(range.len());
        let (offset, from) = (u64::try_from(range.start).unwrap(), buffer(&bytes));
        let durable = [WriteDurability::NamespaceDefault, WriteDurability::Immediate]
            [usize::from(self.random.u32(0..6) == 0)];
        let request = if direct {
            CacheRequest::DirectWrite { offset, from, durable }
        } else {
            CacheRequest::Write { offset, from, durable }
        };
        self.submit(range, ExpectedEffect::Write(bytes.into_iter().map(Some).collect()), request);
    }

    fn submit_compare(&mut self) {
        let Some(range) = self.range(false, false) else { return };
        let Some(mut bytes) = self.model.bytes[range.clone()].iter().copied().collect::<Option<Vec<u8>>>()
        else {
            return;
        };
        let equal = self.random.bool();
        if !equal {
            let at = self.random.usize(0..bytes.len());
            bytes[at] ^= 1;
        }
        let offset = u64::try_from(range.start).unwrap();
        self.submit(
            range,
            ExpectedEffect::Compare { equal },
            CacheRequest::Compare { offset, with: buffer(&bytes) },
        );
    }

    fn submit_range(&mut self) {
        let Some(range) = self.range(true, true) else { return };
        let (offset, bytes) = (u64::try_from(range.start).unwrap(), u64::try_from(range.len()).unwrap());
        let zeroes = self.random.bool();
        let after = if zeroes { Some(0) } else { None };
        let request = if zeroes {
            CacheRequest::Zeroes { offset, bytes, durable: WriteDurability::NamespaceDefault }
        } else {
            CacheRequest::Discard { offset, bytes }
        };
        self.submit(range.clone(), ExpectedEffect::Write(vec![after; range.len()]), request);
    }

    fn resize(&mut self) {
        if self.pending.values().any(|ask| matches!(ask.effect, ExpectedEffect::Resize)) {
            return;
        }
        self.token += 1;
        let (user, pages) = (self.random.usize(0..USERS), self.random.usize(8..60));
        self.pending.insert(self.token, PendingCheck { user, range: 0..0, effect: ExpectedEffect::Resize });
        let given = (pages, self.token);
        match self.cache.resize(&mut self.lower, self.users[user], given, &mut memory).unwrap() {
            SubmitResult::Done(finished) => self.check(finished),
            SubmitResult::Pending => {}
        }
    }

    /// Cancels a random request in progress.
    fn cancel(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let at = self.random.usize(0..self.pending.len());
        let Some((&token, ask)) = self.pending.iter().nth(at) else { return };
        if self.cache.cancel(self.users[ask.user], token) {
            self.cancelled.insert(token);
        }
    }

    /// Calls the operations that never wait.
    fn hit(&mut self) {
        let writes = self.random.bool();
        let Some(range) = self.range(false, writes) else { return };
        let offset = u64::try_from(range.start).unwrap();
        let user = self.users[self.random.usize(0..USERS)];
        if !writes {
            let mut bytes = vec![0; range.len()];
            if self.cache.read_hit(user, offset, &mut bytes) {
                self.assert_bytes(&range, &bytes);
            }
            return;
        }
        let bytes = self.random_bytes(range.len());
        if self.cache.write_hit(user, offset, &bytes) {
            self.model.writes += 1;
            self.model.touched[range.clone()].fill(self.model.writes);
            let bytes = bytes.into_iter().map(Some);
            self.model.bytes[range].iter_mut().zip(bytes).for_each(|(at, byte)| *at = byte);
        }
    }

    fn turn(&mut self) {
        self.now += self.random.u64(0..200);
        self.cache.poll(&mut self.lower, Nanos(self.now));
        for user in 0..USERS {
            while let Some(finished) = self.cache.take_finished(self.users[user]) {
                assert_eq!(self.pending[&finished.token].user, user, "seed {}", self.seed);
                self.check(finished);
            }
        }
    }

    fn assert_bytes(&self, range: &Range<usize>, bytes: &[u8]) {
        for (at, (wanted, byte)) in self.model.bytes[range.clone()].iter().zip(bytes).enumerate() {
            let index = range.start + at;
            assert!(
                wanted.is_none_or(|wanted| wanted == *byte),
                "seed {}: byte {index} {wanted:?} {byte}",
                self.seed
            );
        }
    }

    fn check(&mut self, finished: FinishedRequest) {
        let seed = self.seed;
        let Some(PendingCheck { range, effect: what, .. }) = self.pending.remove(&finished.token) else {
            panic!("seed {seed}: a completion without a request")
        };
        let fine = finished.status.is_success();
        let cancelled = self.cancelled.remove(&finished.token);
        let aborted = finished.status == Status::ABORT_REQUESTED;
        assert!(if cancelled { !fine } else { !aborted }, "seed {seed}: {finished:?}");
        let may_fail = self.failures_allowed || cancelled;
        assert!(fine || may_fail || finished.status == Status::COMPARE_FAILURE, "seed {seed}: {finished:?}");
        match what {
            ExpectedEffect::Read if fine => self.assert_bytes(&range, &bytes_of(&finished.data.unwrap())),
            ExpectedEffect::Write(bytes) => {
                let bytes = bytes.into_iter().map(|byte| byte.filter(|_| fine));
                self.model.bytes[range].iter_mut().zip(bytes).for_each(|(at, byte)| *at = byte);
            }
            ExpectedEffect::Compare { equal } if fine || finished.status == Status::COMPARE_FAILURE => {
                assert_eq!(fine, equal, "seed {seed}");
            }
            ExpectedEffect::Flush(bytes, writes) if fine => {
                let kept = bytes.iter().zip(&self.lower.durable).zip(&self.model.touched).enumerate();
                for (at, ((wanted, byte), &touched)) in kept {
                    let is_expected = touched > writes || wanted.is_none_or(|wanted| wanted == *byte);
                    assert!(is_expected, "seed {seed}: flushed byte {at} was lost: {wanted:?} {byte}");
                }
            }
            ExpectedEffect::Resize if !may_fail => assert!(fine, "seed {seed}"),
            _ => {}
        }
    }

    fn drain(&mut self) {
        for _ in 0..200_000 {
            if self.pending.is_empty() && self.lower.in_flight() == 0 && self.cache.in_flight() == 0 {
                return;
            }
            self.turn();
        }
        panic!("seed {}: {} requests do not finish", self.seed, self.pending.len());
    }

    /// Checks all bytes, after failures have stopped.
    fn finish(&mut self) {
        self.drain();
        (self.lower.failing_reads, self.lower.failing_writes) = (0, 0);
        // Each user receives older failures once, by a flush.
        for round in 0..2 {
            self.failures_allowed &= round == 0;
            for user in 0..USERS {
                self.token += 1;
                let what = self.flush();
                self.pending.insert(self.token, PendingCheck { user, range: 0..0, effect: what });
                let flush = CacheRequest::Flush;
                self.cache.submit(&mut self.lower, self.users[user], flush, self.token).unwrap();
                self.drain();
            }
        }
        let statistics = self.cache.statistics();
        assert_eq!((statistics.dirty_bytes, statistics.unmatched_completions), (0, 0), "seed {}", self.seed);
        let range = 0..self.model.bytes.len();
        self.assert_bytes(&range, &self.lower.now.clone());
        self.assert_bytes(&range, &self.lower.durable.clone());
        let step = self.model.bytes.len();
        self.submit(
            0..step,
            ExpectedEffect::Read,
            CacheRequest::Read { offset: 0, into: buffer(&vec![0; step]) },
        );
        self.drain();
        assert!(self.lower.poll().unwrap().is_none());
    }
}

fn run(seeds: Range<u64>, failures: u32, steps: usize) {
    for seed in seeds {
        let mut run = CacheModelRun::new(seed, failures);
        for _ in 0..steps {
            run.step();
        }
        run.finish();
    }
}

/// Runs with a mover whose channel ends jobs by chance, and dies in every fourth run.
fn run_with_mover(seeds: Range<u64>, failures: u32, steps: usize) {
    let (mut jobs, mut abandoned) = (0, 0);
    for seed in seeds {
        let mut run = CacheModelRun::new(seed, failures);
        let lives = if seed % 4 == 3 { 20 } else { usize::MAX };
        let threshold = [1, 4_096, LARGE_JOB_BYTES][usize::try_from(seed % 3).unwrap()];
        run.cache.set_mover(DrivenChannel::by_chance(seed, lives).mover(threshold)).unwrap();
        for _ in 0..steps {
            run.step();
        }
        run.finish();
        assert_eq!(run.cache.moves_in_flight(), 0, "seed {seed}");
        let counters = run.cache.mover().unwrap().channel_counters();
        jobs += counters.channel_jobs;
        abandoned += counters.abandoned;
    }
    assert!(jobs > 1_000, "only {jobs} jobs of a channel");
    assert!(abandoned > 0, "no channel died with a job");
}

#[test]
fn seeded_runs_agree_with_an_array_of_bytes() {
    run(0..60, 0, 2_000);
}

#[test]
fn seeded_runs_with_failures_lose_no_data_silently() {
    run(1_000..1_060, 40, 2_000);
}

#[test]
fn seeded_runs_with_many_failures_terminate() {
    run(2_000..2_030, 400, 1_000);
}

#[test]
fn seeded_runs_with_a_mover_agree_with_an_array_of_bytes() {
    run_with_mover(3_000..3_060, 0, 2_000);
}

#[test]
fn seeded_runs_with_a_mover_and_failures_lose_no_data_silently() {
    run_with_mover(4_000..4_060, 40, 2_000);
}
