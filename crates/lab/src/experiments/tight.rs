//! A store whose memory is a tenth of its data, beside `RocksDB`: YCSB's workloads A to C in process.
//!
//! Input: a device on a flash file and `RocksDB` on the same disk, both with 1,000-byte values, Zipfian keys (0.99) and
//! the same operations, 16 of them in flight: by one thread on the device, by 16 threads on `RocksDB`.
//! Output: operations a second, interleaved, and the claims `p8.tight.*`. Memory is the same: of the device its frames and
//! its index, of `RocksDB` one cache that is charged with memtables, indexes and filters; both read past the page cache.
//! Durability is the same: writes are durable at a later flush. The floor is the reads that no cache of that size
//! avoids, at the rate at which fio reads the flash file.

mod rocks;
mod workload;

use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, LabExperiment, RunContext};
use crate::experiments::io::fio::Fio;
use crate::measure::{CompareCase, SampleSpread, run_interleaved};
use crate::report::ReportRow;
use crate::server_sample::count;
use crate::store_client::{DEPTH, StoreClient};
use bytes::Bytes;
use headwater_host::clock::{Clock, Nanos};
use headwater_host::width::{narrow, to_usize};
use headwater_ssd::engine::{DeviceConfig, Durability};
use headwater_ssd::limits::NAMESPACES;
use headwater_ssd::media::FlashGeometry;
use headwater_ssd::media::file::{FLASH_FILE_NAME, FileMedia, FileOptions};
use headwater_ssd::media::geometry::BLOCK_DATA_BYTES;
use rocks::{RocksPeer, StoreSizes};
use std::path::PathBuf;
use workload::{UPDATE, ZipfRanks, key_name, key_of_rank, miss_share, operations, write_operations};

/// The experiment's entry in the table.
pub(crate) const EXPERIMENT: LabExperiment = LabExperiment {
    name: "tight",
    summary: "YCSB A to C in process, Zipfian keys, memory a tenth of the data",
    baseline: "RocksDB with the same memory and durability; reads that no cache avoids (floor)",
    claims: &["p8.tight.*"],
    run,
};

const OURS: &str = "headwater, one thread";
const GOAL: ClaimGoal = ClaimGoal::AtLeast(4.0);
const UNIT: &str = "times the operations a second";
/// Name of a workload, and its updates in a hundred operations.
const WORKLOADS: [(&str, u32); 3] = [("a", 50), ("b", 5), ("c", 0)];
const VALUE_BYTES: usize = 1_000;
/// Bytes of a record with its key and header.
const RECORD_BYTES: u64 = 1_064;
/// Bytes of the device's index for a key, at most.
const INDEX_BYTES: u64 = 32;
/// Bytes of a frame: a page slot.
const FRAME_BYTES: u64 = 4_608;

struct TightPlan {
    keys: u32,
    rounds: usize,
    operations: usize,
    /// Time of fio.
    span: Nanos,
}

const FULL: TightPlan =
    TightPlan { keys: 500_000, rounds: 5, operations: 200_000, span: Nanos::from_millis(1_000) };
const QUICK: TightPlan =
    TightPlan { keys: 100_000, rounds: 3, operations: 20_000, span: Nanos::from_millis(300) };

/// One round of one store.
#[derive(Clone, Copy, Debug)]
struct TightSample {
    per_s: f64,
    cpu_us: f64,
}

fn run(context: &RunContext) -> Result<ExperimentFindings, LabError> {
    let plan = if context.is_quick() { QUICK } else { FULL };
    let data = u64::from(plan.keys) * VALUE_BYTES as u64;
    let sizes =
        StoreSizes { keys: plan.keys, value_bytes: VALUE_BYTES, memory_bytes: data / 10, depth: DEPTH };
    let mut device = TightDevice::load(context, sizes)?;
    let mut peer = RocksPeer::start(context, sizes);
    if let Ok(peer) = &mut peer {
        peer.load()?;
    }
    let ranks = ZipfRanks::new(plan.keys);
    let mut findings = ExperimentFindings::default();
    for (name, updates) in WORKLOADS {
        let mut random = fastrand::Rng::with_seed(context.seed());
        let list = operations(&ranks, plan.keys, updates, plan.operations, &mut random);
        let file = context.scratch().join(format!("operations.{name}"));
        write_operations(&file, &list)
            .map_err(|source| LabError::Io { what: "write the operations", source })?;
        let floor = floor(context, &list, sizes, plan.span);
        let run = WorkloadRun { name, list: &list, file, rounds: plan.rounds, floor };
        run.measure(&mut device, peer.as_mut().map_err(|why| why.clone()), &mut findings)?;
    }
    Ok(findings)
}

/// Returns the operations a second at which fio reads what a perfect cache of the same memory misses. Updates read nothing.
fn floor(context: &RunContext, list: &[u32], sizes: StoreSizes, span: Nanos) -> Result<f64, String> {
    let flash = context.scratch().join(FLASH_FILE_NAME);
    let bytes = std::fs::metadata(&flash).map_err(|error| error.to_string())?.len();
    let fio = Fio::find(&flash, bytes)?;
    let ran = fio.run(narrow(sizes.depth), span).map_err(|error| error.to_string())?;
    let cached = u32::try_from(sizes.memory_bytes / RECORD_BYTES).unwrap_or(u32::MAX);
    let share = miss_share(list, sizes.keys, cached);
    if share > 0.0 { Ok(ran.iops / share) } else { Err("floor: every read is of a cached key".to_owned()) }
}

/// A workload and what it needs.
struct WorkloadRun<'a> {
    name: &'static str,
    list: &'a [u32],
    file: PathBuf,
    rounds: usize,
    floor: Result<f64, String>,
}

impl WorkloadRun<'_> {
    fn measure(
        &self,
        device: &mut TightDevice,
        peer: Result<&mut RocksPeer, String>,
        findings: &mut ExperimentFindings,
    ) -> Result<(), LabError> {
        let mut ours = || device.run(self.list);
        let peer = match peer {
            Ok(peer) => peer,
            Err(why) => {
                let mut contestants: [CompareCase<'_, TightSample, LabError>; 1] = [&mut ours];
                let samples = run_interleaved(self.rounds, &mut contestants)?;
                findings.rows.push(self.row(OURS, &samples[0]));
                findings.claims.push(LabClaim::not_run(self.claim(), GOAL, UNIT, why));
                return Ok(());
            }
        };
        let version = peer.version.clone();
        let reads = self.list.iter().filter(|&&operation| operation & UPDATE == 0).count() as u64;
        let total = count(self.list.len() as u64);
        let mut theirs = || {
            let ran = peer.run(&self.file)?;
            if ran.read_bytes != reads * VALUE_BYTES as u64 {
                let reason = format!("it read {} bytes in {reads} reads", ran.read_bytes);
                return Err(LabError::Measure { program: version.clone(), reason });
            }
            Ok(TightSample { per_s: total / ran.seconds, cpu_us: ran.cpu_seconds * 1e6 / total })
        };
        let mut contestants: [CompareCase<'_, TightSample, LabError>; 2] = [&mut ours, &mut theirs];
        let samples = run_interleaved(self.rounds, &mut contestants)?;
        findings.rows.extend([self.row(OURS, &samples[0]), self.row(&version, &samples[1])]);
        let (ours, theirs) = (rates(&samples[0]), rates(&samples[1]));
        let ratio = SampleSpread::of_ratios(&ours, &theirs).map_or(f64::NAN, |ratio| ratio.median);
        let theirs = SampleSpread::of(&theirs).map_or(f64::NAN, |rate| rate.median);
        let floor = match &self.floor {
            Ok(floor) => format!("reads that no cache avoids: {floor:.0}"),
            Err(why) => why.clone(),
        };
        let baseline = format!("{version} at {theirs:.0} a second; {floor}");
        findings.claims.push(LabClaim::found(
            self.claim(),
            GOAL,
            (ratio, UNIT),
            EvidenceLabel::Measured,
            baseline,
        ));
        Ok(())
    }

    fn claim(&self) -> String {
        format!("p8.tight.{}", self.name)
    }

    fn row(&self, store: &str, samples: &[TightSample]) -> ReportRow {
        let cpu: Vec<f64> = samples.iter().map(|sample| sample.cpu_us).collect();
        ReportRow::new()
            .with("workload", self.name)
            .with("store", store)
            .with("ops_per_s", SampleSpread::of(&rates(samples)))
            .with("cpu_us_per_op", SampleSpread::of(&cpu))
            .with("floor_ops_per_s", self.floor.as_ref().ok().copied())
    }
}

fn rates(samples: &[TightSample]) -> Vec<f64> {
    samples.iter().map(|sample| sample.per_s).collect()
}

/// The device with all keys.
struct TightDevice {
    stores: StoreClient<FileMedia>,
    keys: Vec<Bytes>,
    value: Bytes,
    clock: Clock,
}

impl TightDevice {
    /// Creates a flash file and stores every key once.
    fn load(context: &RunContext, sizes: StoreSizes) -> Result<Self, LabError> {
        let keys = u64::from(sizes.keys);
        let blocks = narrow(to_usize(keys * RECORD_BYTES / BLOCK_DATA_BYTES as u64 * 3 / 2 + 64));
        let uuid = (u128::from(context.seed()) | 1 << 127).to_le_bytes();
        let geometry = FlashGeometry::with_blocks(blocks);
        let media = FileMedia::create(context.scratch(), geometry, uuid, FileOptions::default()).map_err(
            |error| LabError::Measure { program: "the flash file".to_owned(), reason: error.to_string() },
        )?;
        let frames = to_usize(sizes.memory_bytes.saturating_sub(keys * INDEX_BYTES) / FRAME_BYTES);
        let config = DeviceConfig {
            durability: [Durability::OnFlush; NAMESPACES],
            frames_max: frames,
            ..DeviceConfig::default()
        };
        let mut random = fastrand::Rng::with_seed(context.seed());
        let value: Vec<u8> = (0..sizes.value_bytes).map(|_| random.u8(..)).collect();
        let mut device = Self {
            stores: StoreClient::open(media, config, context.clock())?,
            keys: (0..sizes.keys).map(|key| Bytes::from(key_name(key))).collect(),
            value: Bytes::from(value),
            clock: *context.clock(),
        };
        // The second pass leaves no place of the file unwritten, and a log whose blocks are partly live.
        for _ in 0..2 {
            for rank in 0..sizes.keys {
                let key = device.keys[key_of_rank(rank, sizes.keys) as usize].clone();
                device.stores.store(key, device.value.clone())?;
            }
        }
        device.stores.drain()?;
        Ok(device)
    }

    fn run(&mut self, list: &[u32]) -> Result<TightSample, LabError> {
        let (begun, cpu) = (self.clock.now(), Clock::process_cpu());
        let read_before = self.stores.read_bytes();
        let mut reads = 0;
        for &operation in list {
            let key = self.keys[(operation & !UPDATE) as usize].clone();
            if operation & UPDATE != 0 {
                self.stores.store(key, self.value.clone())?;
            } else {
                reads += 1;
                self.stores.retrieve(key)?;
            }
        }
        self.stores.drain()?;
        let took = self.clock.now().since(begun).to_duration().as_secs_f64();
        let cpu = Clock::process_cpu().since(cpu).to_duration().as_secs_f64();
        let read = self.stores.read_bytes() - read_before;
        if read != reads * self.value.len() as u64 {
            let reason = format!("it read {read} bytes in {reads} reads");
            return Err(LabError::Measure { program: "the device".to_owned(), reason });
        }
        let total = count(list.len() as u64);
        Ok(TightSample { per_s: total / took, cpu_us: cpu * 1e6 / total })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::RunOptions;

    #[test]
    fn device_reads_every_byte_that_the_operations_ask_for() {
        let context = RunContext::open(RunOptions::default()).unwrap();
        let sizes =
            StoreSizes { keys: 20_000, value_bytes: VALUE_BYTES, memory_bytes: 2 << 20, depth: DEPTH };
        let mut device = TightDevice::load(&context, sizes).unwrap();
        let ranks = ZipfRanks::new(sizes.keys);
        let list = operations(&ranks, sizes.keys, 50, 5_000, &mut fastrand::Rng::with_seed(1));
        let sample = device.run(&list).unwrap();
        assert!(sample.per_s > 0.0 && sample.cpu_us > 0.0, "{sample:?}");
        device.keys[7] = Bytes::from("no such key");
        assert!(device.run(&[7]).is_err(), "a missing key is an error and not a figure");
    }
}
