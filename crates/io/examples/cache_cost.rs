//! Measures the cost of a cache hit against a plain copy, and the hit ratio against plain LRU, in one run.
//!
//! Input: none. Output: lines of text. Invariant: it measures the released code through its public interface.
#![expect(clippy::print_stdout, reason = "this program prints its results")]

use headwater_dma::pool::{Pool, PoolConfig};
use headwater_host::clock::{Clock, Nanos};
use headwater_io::cache::{
    BackingDevice, BackingLimits, BackingTransfer, BlockCache, CacheConfig, CacheRequest, CacheUser,
    DeviceShape, PAGE_BYTES, SharedCache, SubmitResult, TransferCompletion, TransferRefusal,
};
use headwater_io::{Buffer, IoError};
use headwater_nvme::spec::status::Status;
use std::collections::{BTreeMap, VecDeque};
use std::hint::black_box;

const PAGE: u64 = 4_096;
/// The number of rounds, of which the fastest counts.
const ROUNDS: u32 = 9;

/// A device that moves no data and completes at once.
#[derive(Default)]
struct NullBacking {
    completed: VecDeque<u64>,
}

impl BackingDevice for NullBacking {
    fn limits(&self) -> BackingLimits {
        BackingLimits { transfer_bytes_max: 128 * PAGE_BYTES, segments_max: 128, range_bytes_max: PAGE }
    }

    fn submit(&mut self, _: BackingTransfer, ticket: u64) -> Result<(), TransferRefusal> {
        self.completed.push_back(ticket);
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<TransferCompletion>, Status> {
        let done = |ticket| TransferCompletion { ticket, status: Status::SUCCESS };
        Ok(self.completed.pop_front().map(done))
    }
}

struct CacheBench {
    cache: BlockCache,
    lower: NullBacking,
    owner: CacheUser,
    pool: Pool,
}

impl CacheBench {
    fn new(pages: usize) -> Result<Self, IoError> {
        let config = PoolConfig { cap: 512 << 20, ..PoolConfig::default() };
        let pool = Pool::open(config).map_err(|error| IoError::Device { reason: error.to_string() })?;
        let shape = DeviceShape { device_bytes: 1 << 40, block_bytes: 4_096 };
        let config = CacheConfig { pages, prefetch_pages: 0, ..CacheConfig::default() };
        let mut cache = BlockCache::new(shape, config, &mut |bytes| take(&pool, bytes))?;
        let owner = cache.join();
        Ok(Self { cache, lower: NullBacking::default(), owner, pool })
    }

    /// Reads a page; returns true if it was cached.
    fn read(&mut self, page: u64, into: &mut [u8]) -> Result<bool, IoError> {
        if self.cache.read_hit(self.owner, page * PAGE, into) {
            return Ok(true);
        }
        let request = CacheRequest::Read { offset: page * PAGE, into: take(&self.pool, PAGE_BYTES)? };
        let submitted = self.cache.submit(&mut self.lower, self.owner, request, 0);
        if matches!(submitted, Ok(SubmitResult::Pending)) {
            self.cache.poll(&mut self.lower, Nanos::ZERO);
            self.cache.take_finished(self.owner);
        }
        Ok(false)
    }
}

fn take(pool: &Pool, bytes: usize) -> Result<Buffer, IoError> {
    let buffer = pool.buffer(bytes).map_err(|error| IoError::Device { reason: error.to_string() })?;
    Ok(Buffer::from_pool(buffer))
}

/// The calls of one measurement.
const CALLS: u32 = 100_000;

/// Returns nanoseconds per call for each function: the best of several interleaved rounds, so that all see the same
/// machine state.
fn costs<const N: usize>(calls: [&mut dyn FnMut(u32); N]) -> [f64; N] {
    let clock = Clock::start();
    let mut best = [f64::MAX; N];
    let mut calls = calls;
    for _ in 0..ROUNDS {
        for (call, best) in calls.iter_mut().zip(&mut best) {
            let start = clock.now();
            (0..CALLS).for_each(&mut **call);
            *best = best.min(decimal(clock.now().since(start).0) / f64::from(CALLS));
        }
    }
    best
}

#[expect(clippy::cast_precision_loss, reason = "a printed figure")]
fn decimal(number: u64) -> f64 {
    number as f64
}

/// Returns the page of the n-th access: spread over all pages, never the same twice in a row.
fn spread(at: u32, pages: u64) -> u64 {
    u64::from(at).wrapping_mul(7_919) % pages
}

fn hit_cost(pages: u64) -> Result<(), IoError> {
    let count = usize::try_from(pages).unwrap_or(0);
    let (mut bench, mut second) = (CacheBench::new(count)?, CacheBench::new(count)?);
    let mut bytes = vec![0; PAGE_BYTES];
    for page in 0..pages {
        bench.read(page, &mut bytes)?;
        second.read(page, &mut bytes)?;
    }
    let memory = take(&bench.pool, PAGE_BYTES * count)?;
    let (mut small, mut other_small, mut other) = ([0; 8], [0; 8], vec![0; PAGE_BYTES]);
    let mut lent = Some(take(&bench.pool, PAGE_BYTES)?);
    let (mut moved, mut hits, mut answers) = (0_u32, 0_u32, 0_u32);
    let owner = bench.owner;
    let [copy, hit, request] = costs([
        &mut |at| {
            let page = usize::try_from(spread(at, pages)).unwrap_or(0);
            moved += u32::from(memory.read(page * PAGE_BYTES, black_box(&mut other)).is_ok());
        },
        &mut |at| {
            let offset = spread(at, pages) * PAGE;
            hits += u32::from(bench.cache.read_hit(owner, offset, black_box(&mut bytes)));
        },
        &mut |at| {
            let Some(into) = lent.take() else { return };
            let request = CacheRequest::Read { offset: spread(at, pages) * PAGE, into };
            let submitted = second.cache.submit(&mut second.lower, second.owner, black_box(request), 1);
            if let Ok(SubmitResult::Done(finished)) = submitted {
                answers += 1;
                lent = finished.data;
            }
        },
    ]);
    let CacheBench { cache, lower, .. } = second;
    let shared = SharedCache::new(cache, lower);
    let mut member = shared.join();
    let [look_up, locked] = costs([
        &mut |at| {
            let offset = spread(at, pages) * PAGE;
            hits += u32::from(bench.cache.read_hit(owner, offset, black_box(&mut small)));
        },
        &mut |at| {
            let offset = spread(at, pages) * PAGE;
            answers += u32::from(member.read_hit(offset, black_box(&mut other_small)));
        },
    ]);
    println!("{pages} pages: copy of 4 KiB {copy:.0} ns, hit into a slice {hit:.0} ns ({:+.0});", hit - copy);
    println!("  into a pool buffer, lent and returned, {request:.0} ns ({:+.0});", request - copy);
    println!(
        "  hit of 8 bytes {look_up:.0} ns, with the lock of a shared cache {locked:.0} ns; {moved} copies, {hits} and \
         {answers} hits"
    );
    Ok(())
}

/// A plain LRU cache, ordered by the time of last use.
struct LruCache {
    pages: usize,
    used: BTreeMap<u64, u64>,
    order: BTreeMap<u64, u64>,
    time: u64,
}

impl LruCache {
    fn read(&mut self, page: u64) -> bool {
        self.time += 1;
        let before = self.used.insert(page, self.time);
        if let Some(before) = before {
            self.order.remove(&before);
        }
        self.order.insert(self.time, page);
        if self.used.len() > self.pages
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.used.remove(&oldest);
        }
        before.is_some()
    }
}

/// Returns the cumulative Zipf distribution over pages: page n is accessed in proportion to 1/n^0.9.
fn zipf(pages: u32) -> Vec<f64> {
    let mut sum = 0.0;
    let rank = |rank: u32| {
        sum += f64::from(rank).powf(-0.9);
        sum
    };
    (1..=pages).map(rank).collect()
}

/// Returns the hit ratio of reads by Zipf's law, with a scan of 2000 pages after each 10000 reads if `scans`.
fn ratio(scans: bool, mut read: impl FnMut(u64) -> Result<bool, IoError>) -> Result<f64, IoError> {
    let sums = zipf(100_000);
    let total = sums.last().copied().unwrap_or(1.0);
    let mut random = fastrand::Rng::with_seed(42);
    let (mut hits, mut asked, mut scanned) = (0_u32, 0_u32, 1 << 20);
    for step in 0..600_000_u32 {
        let draw = random.f64() * total;
        let rank = sums.partition_point(|&sum| sum < draw);
        // Hot pages are not adjacent.
        let page = (u64::try_from(rank).unwrap_or(0) * 40_503) % 100_003;
        hits += u32::from(read(page)?);
        asked += 1;
        if scans && step % 10_000 == 0 {
            for _ in 0..2_000 {
                read(scanned)?;
                scanned += 1;
            }
        }
    }
    Ok(f64::from(hits) / f64::from(asked))
}

fn main() -> Result<(), IoError> {
    hit_cost(256)?;
    hit_cost(16_384)?;
    for scans in [false, true] {
        for pages in [1_024, 4_096, 16_384] {
            let mut bench = CacheBench::new(pages)?;
            let mut bytes = vec![0; PAGE_BYTES];
            let ours = ratio(scans, |page| bench.read(page, &mut bytes))?;
            let (used, order) = (BTreeMap::new(), BTreeMap::new());
            let mut lru = LruCache { pages, used, order, time: 0 };
            let plain = ratio(scans, |page| Ok(lru.read(page)))?;
            let what = if scans { "zipf 0.9 with scans" } else { "zipf 0.9" };
            println!(
                "{what}, {pages} pages of 100000: hits {:.1} %, LRU {:.1} %",
                ours * 100.0,
                plain * 100.0
            );
        }
    }
    Ok(())
}
