//! `headwater bench --device`: puts load on a device and measures the latency of each request.
//!
//! Input: a [`DevicePlan`]. Output: a [`DeviceReport`]. Each thread has its own queue and handle and keeps `depth`
//! requests in flight, at offsets chosen by a seed. Invariant: without writes in the plan nothing on the device
//! changes.

use crate::bench::latency::write_table;
use crate::bench::{LatencyHistogram, LatencySummary, RunEnd};
use headwater::{Buffer, Device, IoError, TransferData, WriteDurability};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::width::to_usize;
use headwater_io::ClientNamespace;
use headwater_io::completion::CompletionPolicy;
use headwater_io::handle::{Handle, IoRequest};
use headwater_io::scheduler::SchedulingPolicy;
use serde::Serialize;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Completions between two reads of the clock for the end of the run.
const CLOCK_CHECK_INTERVAL: u64 = 64;
/// Maximum wait for one completion.
const COMPLETION_WAIT_MAX: Nanos = Nanos::from_millis(30_000);

/// The parameters of a benchmark of a device.
#[derive(Clone, Debug)]
pub struct DevicePlan {
    /// URL of the device.
    pub url: String,
    /// Bytes of each request, a multiple of the block.
    pub bytes: usize,
    /// Share of reads, 0 to 1; the rest are writes.
    pub read_share: f64,
    /// Requests in flight on each thread.
    pub depth: u32,
    /// Number of threads.
    pub threads: u32,
    /// End of the run.
    pub until: RunEnd,
    /// Method of waiting for completions.
    pub completion: CompletionPolicy,
    /// Order of requests.
    pub scheduling: SchedulingPolicy,
    /// Seed of the offsets.
    pub seed: u64,
}

/// The results of a benchmark of a device.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceReport {
    /// URL of the device.
    pub url: String,
    /// Bytes of a request.
    pub bytes: usize,
    /// Requests in flight on each thread.
    pub depth: u32,
    /// Number of threads.
    pub threads: u32,
    /// Seconds to the last completion.
    pub seconds: f64,
    /// Successful requests.
    pub requests: u64,
    /// Requests a second.
    pub rate: f64,
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// Latencies of reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read: Option<LatencySummary>,
    /// Latencies of writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write: Option<LatencySummary>,
    /// Requests that failed.
    pub failed: u64,
    /// The first failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// CPU time of the process for each request, in microseconds, kernel time included.
    pub cpu_us: f64,
}

/// The counts and latencies of one thread.
#[derive(Debug, Default)]
struct DeviceTally {
    reads: LatencyHistogram,
    writes: LatencyHistogram,
    failed: u64,
    failure: Option<String>,
}

impl DeviceTally {
    fn add(&mut self, other: &Self) {
        self.reads.add(&other.reads);
        self.writes.add(&other.writes);
        self.failed += other.failed;
        self.failure = self.failure.take().or_else(|| other.failure.clone());
    }
}

/// A request in flight.
#[derive(Clone, Copy, Debug, Default)]
struct BenchRequest {
    begun: Nanos,
    is_read: bool,
}

/// One thread of a benchmark of a device.
struct DeviceWorker<'a> {
    plan: &'a DevicePlan,
    handle: Handle,
    buffers: Vec<Option<Buffer>>,
    random: fastrand::Rng,
    offsets: u64,
    clock: Clock,
    in_flight: Vec<BenchRequest>,
    tally: DeviceTally,
}

impl DeviceWorker<'_> {
    fn run(&mut self, left: &AtomicU64, over: &AtomicBool) -> Result<(), IoError> {
        let mut answered = 0_u64;
        let slots = u64::from(self.plan.depth);
        let mut more = true;
        for slot in 0..slots {
            more = more && self.submit_next(slot, left, over)?;
        }
        while self.handle.outstanding() > 0 {
            let answer = self.handle.wait(Some(COMPLETION_WAIT_MAX))?;
            let answer =
                answer.ok_or_else(|| IoError::Device { reason: "no completion in 30 s".to_owned() })?;
            let slot = answer.completion.token;
            let index = to_usize(slot);
            let flight = self.in_flight[index];
            let span = self.clock.now().since(flight.begun);
            match answer.completion.into_result() {
                Ok(_) if flight.is_read => self.tally.reads.record(span),
                Ok(_) => self.tally.writes.record(span),
                Err(error) => {
                    self.tally.failed += 1;
                    self.tally.failure.get_or_insert_with(|| error.to_string());
                }
            }
            if let TransferData::ToDevice(buffer) | TransferData::FromDevice(buffer) = answer.data {
                self.buffers[index] = Some(buffer);
            }
            answered += 1;
            if answered.is_multiple_of(CLOCK_CHECK_INTERVAL)
                && let RunEnd::Elapsed(span) = self.plan.until
                && self.clock.now() >= span
            {
                over.store(true, Ordering::Relaxed);
            }
            self.submit_next(slot, left, over)?;
        }
        Ok(())
    }

    /// Submits one more request. Returns false if the run is over.
    fn submit_next(&mut self, slot: u64, left: &AtomicU64, over: &AtomicBool) -> Result<bool, IoError> {
        let take = |left: u64| left.checked_sub(1);
        if over.load(Ordering::Relaxed)
            || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err()
        {
            return Ok(false);
        }
        let index = to_usize(slot);
        let Some(buffer) = self.buffers[index].take() else {
            return Ok(false);
        };
        let is_read = self.plan.read_share >= 1.0 || self.random.f64() < self.plan.read_share;
        let offset = self.random.u64(..self.offsets) * self.plan.bytes as u64;
        let request = match is_read {
            true => IoRequest::read(offset, buffer),
            false => IoRequest::write(offset, buffer, WriteDurability::NamespaceDefault),
        };
        self.in_flight[index] = BenchRequest { begun: self.clock.now(), is_read };
        self.handle.submit(request, slot)?;
        Ok(true)
    }
}

/// Runs a plan.
///
/// # Errors
/// [`IoError`] when the device cannot be opened, has no blocks, is too small, or fails.
pub fn run(plan: &DevicePlan) -> Result<DeviceReport, IoError> {
    let mut device = Device::open(&plan.url)?;
    let facts = device.namespace().clone();
    let places = offset_count(&facts, plan.bytes)?;
    let clock = Clock::start();
    let mut workers = Vec::new();
    for thread in 0..plan.threads {
        let handle = Handle::builder(&facts)
            .queue(device.queue(plan.depth)?)
            .completion(plan.completion)
            .scheduling(plan.scheduling.clone())
            .build()?;
        let mut buffers = Vec::new();
        let mut random = fastrand::Rng::with_seed(plan.seed.wrapping_add(thread.into()));
        for _ in 0..plan.depth {
            let mut buffer = device.buffer(plan.bytes)?;
            if let Some(bytes) = buffer.bytes_mut() {
                random.fill(bytes);
            }
            buffers.push(Some(buffer));
        }
        let flights = vec![BenchRequest::default(); buffers.len()];
        let tally = DeviceTally::default();
        workers.push(DeviceWorker {
            plan,
            handle,
            buffers,
            random,
            offsets: places,
            clock,
            in_flight: flights,
            tally,
        });
    }
    let left = AtomicU64::new(match plan.until {
        RunEnd::Commands(count) => count,
        RunEnd::Elapsed(_) => u64::MAX,
    });
    let over = AtomicBool::new(false);
    let begun = clock.now();
    let cpu = Clock::process_cpu();
    let ended: Result<Vec<DeviceTally>, IoError> = std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .into_iter()
            .map(|mut worker| scope.spawn(|| worker.run(&left, &over).map(|()| worker.tally)))
            .collect();
        threads
            .into_iter()
            .map(|thread| {
                let panicked = || IoError::Device { reason: "a benchmark thread panicked".to_owned() };
                thread.join().map_err(|_| panicked())?
            })
            .collect()
    });
    let (seconds, cpu) =
        (clock.now().since(begun).to_duration().as_secs_f64(), Clock::process_cpu().since(cpu));
    let mut tally = DeviceTally::default();
    ended?.iter().for_each(|one| tally.add(one));
    Ok(DeviceReport::of(plan, &tally, seconds, cpu))
}

/// Returns the number of offsets for requests of `bytes`.
fn offset_count(facts: &ClientNamespace, bytes: usize) -> Result<u64, IoError> {
    let namespace = facts.id;
    let block = u64::from(facts.block_bytes);
    if block == 0 {
        return Err(IoError::Namespace { namespace, what: "holds keys; name one of blocks with ?ns=N" });
    }
    if bytes == 0 || !(bytes as u64).is_multiple_of(block) {
        return Err(IoError::PartialBlocks { bytes, block_bytes: facts.block_bytes as usize });
    }
    let blocks = facts.blocks.map_or(facts.size, |(first, end)| end.saturating_sub(first));
    match blocks.saturating_mul(block) / bytes as u64 {
        0 => Err(IoError::Namespace { namespace, what: "is smaller than one request" }),
        places => Ok(places),
    }
}

#[expect(clippy::cast_precision_loss, reason = "rates need no more than 53 bits")]
impl DeviceReport {
    fn of(plan: &DevicePlan, tally: &DeviceTally, seconds: f64, cpu: Nanos) -> Self {
        let requests = tally.reads.count() + tally.writes.count();
        let each_second = |count: f64| if seconds > 0.0 { count / seconds } else { 0.0 };
        Self {
            url: plan.url.clone(),
            bytes: plan.bytes,
            depth: plan.depth,
            threads: plan.threads,
            seconds,
            requests,
            rate: each_second(requests as f64),
            bytes_per_second: each_second(requests as f64 * plan.bytes as f64),
            read: LatencySummary::from_histogram(&tally.reads),
            write: LatencySummary::from_histogram(&tally.writes),
            failed: tally.failed,
            failure: tally.failure.clone(),
            cpu_us: if requests > 0 { cpu.0 as f64 / 1e3 / requests as f64 } else { 0.0 },
        }
    }
}

impl fmt::Display for DeviceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let megabytes = self.bytes_per_second / 1e6;
        writeln!(
            f,
            "{} requests of {} bytes in {:.2} s: {:.0} a second, {megabytes:.1} MB/s ({} threads, {} in flight each)",
            self.requests, self.bytes, self.seconds, self.rate, self.threads, self.depth
        )?;
        write_table(f, 2, [("read", self.read), ("write", self.write)])?;
        write!(f, "{:.3} us CPU per request; {} failed", self.cpu_us, self.failed)?;
        match &self.failure {
            Some(failure) => write!(f, ", the first: {failure}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(url: &str, until: RunEnd) -> DevicePlan {
        DevicePlan {
            url: url.to_owned(),
            bytes: 4_096,
            read_share: 0.5,
            depth: 8,
            threads: 2,
            until,
            completion: CompletionPolicy::Inline,
            scheduling: SchedulingPolicy::Fifo,
            seed: 7,
        }
    }

    #[test]
    fn run_makes_the_requested_number_of_requests() {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("io-uring:{}?create=1MiB", folder.path().join("disk").display());
        let report = run(&plan(&url, RunEnd::Commands(500))).unwrap();
        assert_eq!((report.requests, report.failed), (500, 0));
        let (reads, writes) = (report.read.unwrap().count, report.write.unwrap().count);
        assert!(reads + writes == 500 && reads > 100 && writes > 100, "{reads} {writes}");
        assert!(report.to_string().contains("500 requests of 4096 bytes"));
    }

    #[test]
    fn latency_is_at_least_the_service_time_of_the_device() {
        let slow = DevicePlan {
            read_share: 1.0,
            depth: 1,
            threads: 1,
            ..plan("model:1MiB?fixed=3ms", RunEnd::Commands(4))
        };
        let read = run(&slow).unwrap().read.unwrap();
        // The model serves each request in 3 ms.
        assert!(read.count == 4 && read.p50_us >= 2_990.0 && read.max_us >= read.p50_us, "{read:?}");
    }

    #[test]
    fn run_by_time_ends_and_impossible_plans_are_refused() {
        let report = run(&plan("null:1GiB", RunEnd::Elapsed(Nanos::from_millis(20)))).unwrap();
        assert!(report.requests > 0 && report.failed == 0);
        let odd = DevicePlan { bytes: 100, ..plan("null:1GiB", RunEnd::Commands(1)) };
        assert!(matches!(run(&odd), Err(IoError::PartialBlocks { bytes: 100, .. })));
        assert!(matches!(run(&plan("mem:64MiB", RunEnd::Commands(1))), Err(IoError::Namespace { .. })));
        assert!(matches!(run(&plan("null:512", RunEnd::Commands(1))), Err(IoError::Namespace { .. })));
    }
}
