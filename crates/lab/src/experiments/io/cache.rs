//! The cost of a read of a cached page compared with copying it.
//!
//! Input: a cache that holds all pages.
//! Output: CPU nanoseconds of a 4 KiB read into a slice, and into a pool buffer that is lent and returned, compared
//! with the plain copy from as much memory at the same offsets: for pages that fit the processor's cache, and for pages
//! that do not. All run interleaved.

use super::{PAGE_BYTES, failed, measured, median};
use crate::claim::ClaimGoal;
use crate::experiment::{ExperimentFindings, LabError, RunContext};
use crate::measure::{CompareCase, CorePin, SampleSpread, cpu_ns_each, run_interleaved};
use crate::report::ReportRow;
use headwater_dma::pool::{Pool, PoolConfig};
use headwater_host::clock::Nanos;
use headwater_host::width::to_usize;
use headwater_io::cache::{
    BackingDevice, BackingLimits, BackingTransfer, BlockCache, CacheConfig, CacheRequest, CacheUser,
    DeviceShape, SubmitResult, TransferCompletion, TransferRefusal,
};
use headwater_io::{Buffer, IoError};
use headwater_nvme::spec::status::Status;
use std::collections::VecDeque;
use std::hint::black_box;

/// Numbers of pages with their names: 1 MiB, and 64 MiB.
const SIZES: [(u64, &str); 2] = [(256, "1m"), (16_384, "64m")];
const NAMES: [&str; 3] = ["plain copy (floor)", "hit into a slice", "hit into a pool buffer"];
/// Maximum ratio of a hit to the plain copy.
const HIT_MAX: f64 = 1.5;

/// A backing device that transfers nothing and completes at once.
#[derive(Default)]
struct NullBackingDevice {
    answers: VecDeque<u64>,
}

impl BackingDevice for NullBackingDevice {
    fn limits(&self) -> BackingLimits {
        let range_bytes_max = PAGE_BYTES as u64;
        BackingLimits { transfer_bytes_max: 128 * PAGE_BYTES, segments_max: 128, range_bytes_max }
    }

    fn submit(&mut self, _: BackingTransfer, ticket: u64) -> Result<(), TransferRefusal> {
        self.answers.push_back(ticket);
        Ok(())
    }

    fn poll(&mut self) -> Result<Option<TransferCompletion>, Status> {
        Ok(self.answers.pop_front().map(|ticket| TransferCompletion { ticket, status: Status::SUCCESS }))
    }
}

/// A cache that holds all its pages, with its backing device and pool.
struct FullCache {
    cache: BlockCache,
    lower: NullBackingDevice,
    owner: CacheUser,
    pool: Pool,
}

impl FullCache {
    fn new(pages: u64) -> Result<Self, IoError> {
        let pool = Pool::open(PoolConfig { cap: 512 << 20, ..PoolConfig::default() })?;
        let shape = DeviceShape { device_bytes: 1 << 40, block_bytes: 4_096 };
        let count = to_usize(pages);
        let config = CacheConfig { pages: count, prefetch_pages: 0, ..CacheConfig::default() };
        let mut cache = BlockCache::new(shape, config, &mut |bytes| buffer(&pool, bytes))?;
        let owner = cache.join();
        let mut full = Self { cache, lower: NullBackingDevice::default(), owner, pool };
        for page in 0..pages {
            let into = buffer(&full.pool, PAGE_BYTES)?;
            let request = CacheRequest::Read { offset: page * PAGE_BYTES as u64, into };
            if let Ok(SubmitResult::Pending) = full.cache.submit(&mut full.lower, full.owner, request, 0) {
                full.cache.poll(&mut full.lower, Nanos::ZERO);
                full.cache.take_finished(full.owner);
            }
        }
        Ok(full)
    }
}

fn buffer(pool: &Pool, bytes: usize) -> Result<Buffer, IoError> {
    Ok(Buffer::from_pool(pool.buffer(bytes)?))
}

/// Returns the page of the n-th read: spread over all pages, never the same twice in a row.
fn spread(at: u64, pages: u64) -> u64 {
    at * 7_919 % pages
}

pub(super) fn run(context: &RunContext, findings: &mut ExperimentFindings) -> Result<(), LabError> {
    let _here = CorePin::current_core();
    for (pages, name) in SIZES {
        compare(context, findings, (pages, name))?;
    }
    Ok(())
}

fn compare(
    context: &RunContext,
    findings: &mut ExperimentFindings,
    (pages, name): (u64, &str),
) -> Result<(), LabError> {
    let (rounds, reads) = if context.is_quick() { (9, 50_000) } else { (41, 200_000) };
    let mut first = FullCache::new(pages).map_err(failed)?;
    let mut second = FullCache::new(pages).map_err(failed)?;
    let bytes = to_usize(pages) * PAGE_BYTES;
    let memory = buffer(&first.pool, bytes).map_err(failed)?;
    let (mut copied, mut hit) = (vec![0; PAGE_BYTES], vec![0; PAGE_BYTES]);
    let mut lent = Some(buffer(&first.pool, PAGE_BYTES).map_err(failed)?);
    let mut copy = || {
        cpu_ns_of_all(reads, |at| {
            let offset = to_usize(spread(at, pages)) * PAGE_BYTES;
            memory.read(offset, black_box(&mut copied)).is_ok()
        })
    };
    let mut slice = || {
        cpu_ns_of_all(reads, |at| {
            let offset = spread(at, pages) * PAGE_BYTES as u64;
            first.cache.read_hit(first.owner, offset, black_box(&mut hit))
        })
    };
    let mut request = || {
        cpu_ns_of_all(reads, |at| {
            let Some(into) = lent.take() else { return false };
            let request = CacheRequest::Read { offset: spread(at, pages) * PAGE_BYTES as u64, into };
            match second.cache.submit(&mut second.lower, second.owner, black_box(request), 1) {
                Ok(SubmitResult::Done(finished)) => {
                    lent = finished.data;
                    true
                }
                _ => false,
            }
        })
    };
    let mut contestants: [CompareCase<'_, f64, LabError>; 3] = [&mut copy, &mut slice, &mut request];
    let samples = run_interleaved(rounds, &mut contestants)?;
    for (method, samples) in NAMES.iter().zip(&samples) {
        findings.rows.push(
            ReportRow::new()
                .with("cached read of 4 KiB", *method)
                .with("pages", pages)
                .with("cpu_ns", SampleSpread::of(samples)),
        );
    }
    let baseline = format!(
        "plain copy {:.0} ns, hit into a slice {:.0} ns, into a pool buffer {:.0} ns",
        median(&samples[0]),
        median(&samples[1]),
        median(&samples[2])
    );
    let ratios: Vec<f64> = samples[1].iter().zip(&samples[0]).map(|(hit, copy)| hit / copy).collect();
    let unit = "times a plain copy, CPU of a hit";
    let name = format!("p4.cache.hit.{name}");
    findings.claims.push(measured(name, ClaimGoal::AtMost(HIT_MAX), (&ratios, unit), &baseline));
    Ok(())
}

/// Returns the CPU nanoseconds of each of `count` calls, which must all succeed.
fn cpu_ns_of_all(count: u64, mut call: impl FnMut(u64) -> bool) -> Result<f64, LabError> {
    let mut succeeded = 0;
    let each = cpu_ns_each(count, || succeeded = (0..count).filter(|&at| call(at)).count());
    if succeeded as u64 == count {
        return Ok(each);
    }
    Err(failed(format!("{succeeded} of {count} reads found their page in the cache")))
}
