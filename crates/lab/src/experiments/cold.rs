//! Reads of values that are not in device DRAM, beside fio on the same file.
//!
//! Input: a node whose data are ten times its `--memory`, and an attached client with 32 random GETs of 4 KiB in flight.
//! Output: reads a second of both, interleaved, and the claim `p8.cold.get`. fio reads 4 KiB at random places of the flash
//! file with its `io_uring` engine, registered buffers and direct I/O, at the same depth: it is the floor too, because
//! it checks no byte and finds no key.

use crate::attached_client::{AttachedClient, TransferVerb};
use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::cpu_account::CpuAccount;
use crate::experiment::{ExperimentFindings, LabError, LabExperiment, RunContext};
use crate::experiments::io::fio::Fio;
use crate::measure::{CompareCase, CorePair, SampleSpread, run_interleaved};
use crate::report::ReportRow;
use crate::resp_load::age;
use crate::server::{RespDurability, RespServer};
use crate::server_sample::count;
use headwater_host::clock::{Clock, Nanos};
use headwater_host::width::to_usize;

const CLAIM: &str = "p8.cold.get";
const GOAL: ClaimGoal = ClaimGoal::AtLeast(0.9);
const UNIT: &str = "of fio's reads a second";

/// The experiment's entry in the table.
pub(crate) const EXPERIMENT: LabExperiment = LabExperiment {
    name: "cold",
    summary: "random GETs of 4 KiB over attach, of data ten times as large as device DRAM",
    baseline: "fio's io_uring engine on the same file",
    claims: &[CLAIM],
    run,
};

const DEPTH: u32 = 32;
const VALUE_BYTES: usize = 4_096;
/// Device DRAM is a tenth of the data.
const TIMES: u64 = 10;

struct ColdPlan {
    memory_bytes: u64,
    rounds: usize,
    /// Reads of a round.
    reads: u64,
    /// Duration of a round of fio.
    span: Nanos,
}

const FULL: ColdPlan =
    ColdPlan { memory_bytes: 128 << 20, rounds: 9, reads: 120_000, span: Nanos::from_millis(2_000) };
const QUICK: ColdPlan =
    ColdPlan { memory_bytes: 32 << 20, rounds: 5, reads: 30_000, span: Nanos::from_millis(500) };

/// The result of one round.
#[derive(Clone, Copy, Debug)]
struct ColdSample {
    reads_per_s: f64,
    /// CPU of the reading side: the node, or fio.
    cpu_us: f64,
}

fn run(context: &RunContext) -> Result<ExperimentFindings, LabError> {
    let not_run = |why: &str| ExperimentFindings {
        rows: Vec::new(),
        claims: vec![LabClaim::not_run(CLAIM, GOAL, UNIT, why)],
    };
    let Some(cores) = CorePair::first() else {
        return Ok(not_run("the run needs two cores"));
    };
    let plan = if context.is_quick() { QUICK } else { FULL };
    let data = plan.memory_bytes * TIMES;
    let capacity = data / 4 * 7;
    let (memory, bytes) = (plan.memory_bytes.to_string(), capacity.to_string());
    let options = ["--memory", &memory, "--capacity", &bytes];
    let node = match RespServer::ours_with(context, RespDurability::OnFlush, &options) {
        Ok(node) => node,
        Err(error) => return Ok(not_run(&error.to_string())),
    };
    // fio would read extents that were never written without the disk.
    age(node.address(), capacity)?;
    let flash = node.flash_file();
    let flash_bytes = std::fs::metadata(&flash)
        .map_err(|source| LabError::Io { what: "read the length of the flash file", source })?
        .len();
    let fio = match Fio::find(&flash, flash_bytes) {
        Ok(fio) => fio,
        Err(why) => return Ok(not_run(&why)),
    };
    cores.pin_server(node.pid());
    let _client = cores.pin_client();
    measure(&node, &fio, &plan, data)
}

fn measure(node: &RespServer, fio: &Fio, plan: &ColdPlan, data: u64) -> Result<ExperimentFindings, LabError> {
    let mut client = AttachedClient::attach(&node.attach_socket(), VALUE_BYTES, to_usize(u64::from(DEPTH)))?;
    let keys = data / VALUE_BYTES as u64;
    let mut next = 0;
    client.transfer(TransferVerb::Put, keys, || {
        next += 1;
        next - 1
    })?;
    let mut random = fastrand::Rng::with_seed(11);
    let mut get = || {
        let before = node.account().used();
        let took = client.transfer(TransferVerb::Get, plan.reads, || random.u64(..keys))?;
        Ok(ColdSample {
            reads_per_s: count(plan.reads) / took.to_duration().as_secs_f64(),
            cpu_us: cpu_us(node.account(), before, plan.reads),
        })
    };
    let mut file = || {
        // The node needs a moment to find that it is idle, and sleeps.
        Clock::sleep(Nanos::from_millis(50));
        let ran = fio.run(DEPTH, plan.span)?;
        Ok(ColdSample { reads_per_s: ran.iops, cpu_us: ran.cpu_ns / 1e3 })
    };
    let mut contestants: [CompareCase<'_, ColdSample, LabError>; 2] = [&mut get, &mut file];
    let samples = run_interleaved(plan.rounds, &mut contestants)?;
    let of =
        |index: usize, of: fn(&ColdSample) -> f64| -> Vec<f64> { samples[index].iter().map(of).collect() };
    let rate = |index: usize| of(index, |sample| sample.reads_per_s);
    let row = |index: usize, name: &str| {
        ReportRow::new()
            .with("reads of 4 KiB at depth 32", name)
            .with("data_over_memory", TIMES)
            .with("reads_per_s", SampleSpread::of(&rate(index)))
            .with("cpu_us_per_read", SampleSpread::of(&of(index, |sample| sample.cpu_us)))
    };
    let ratio = SampleSpread::of_ratios(&rate(0), &rate(1));
    let fio_rate = SampleSpread::of(&rate(1)).map_or(f64::NAN, |rate| rate.median);
    let claim = LabClaim::found(
        CLAIM,
        GOAL,
        (ratio.map_or(f64::NAN, |ratio| ratio.median), UNIT),
        EvidenceLabel::Measured,
        format!("{} at {fio_rate:.0} reads a second", fio.version),
    );
    Ok(ExperimentFindings {
        rows: vec![row(0, "node, GET over attach"), row(1, &fio.version)],
        claims: vec![claim],
    })
}

fn cpu_us(account: CpuAccount, before: Option<Nanos>, reads: u64) -> f64 {
    let used = account.used().zip(before).map(|(after, before)| after.since(before));
    used.map_or(f64::NAN, |used| used.to_duration().as_secs_f64() * 1e6 / count(reads))
}
