//! Headwater's RESP front end compared with redis-server and with a server that only sends fixed replies.
//!
//! Input: the three servers, started with the same durability, and a client that drives each in turn.
//! Output: server CPU for an operation, operations a second, and the claims `p1.resp.*` as ratios of adjacent runs.
//!
//! The claims are measured with the lab's own client. With one core for the client, redis-benchmark drives the server
//! of fixed replies no faster than redis-server, so at pipeline 16 its own rate is the limit. A full run also drives
//! every load with redis-benchmark, without a claim, to show that both clients measure the same cost. Redis keeps its
//! append-only file and never rewrites it, so it does less than it would in production.
//!
//! # Runs that agree
//! A run depends on nothing but the machine and the program: the bytes of flash and of device DRAM and the number of keys
//! are fixed, all of the flash is written before the first load, every key is stored before its first overwrite, and the
//! first round of each load is not recorded. Before each turn the files of all servers are written back, and no server
//! runs. Otherwise runs differ by the size of the disk, of which the default capacity is a part: a short run ends within
//! the first pass over the file, in which the file system converts the extents that it writes. And they differ by the
//! moments at which the kernel writes back the append-only file of the peer, and the node collects blocks for later: on
//! the core of the server that then has its turn.

mod outcome;
mod scenario;

use crate::claim::{EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, LabExperiment, RunContext};
use crate::redis_peer::PeerPersistence;
use crate::resp_load::benchmark_installed;
use crate::server_comparison::{RoundPlan, ServerComparison, ServerSetup};
use crate::server_sample::ServerSample;
use headwater_host::clock::Nanos;
use outcome::ScenarioOutcome;
use scenario::{GROUPS, RespScenario, ScenarioPromise, scenarios};

/// The experiment's entry in the table.
pub(crate) const EXPERIMENT: LabExperiment = LabExperiment {
    name: "resp",
    summary: "server CPU for an operation and throughput of SET and GET over RESP",
    baseline: "redis-server, and valkey-server if it is installed, with the same durability; floor: canned replies",
    claims: &["p1.resp.p16.*", "p1.resp.p16.*.throughput", "p1.resp.p1.*", "p1.resp.always.*"],
    run,
};

/// Time that a quick run reserves to stop its servers and to print.
const RESERVE: Nanos = Nanos::from_millis(1_500);
/// Maximum duration of one scenario of a quick run for each server, on a machine that is not overloaded.
const SERVER_QUICK: Nanos = Nanos::from_millis(400);
/// The rounds of a quick run.
const QUICK: RoundPlan = RoundPlan { rounds: 5, span: Nanos::from_millis(50) };
const FULL: RoundPlan = RoundPlan { rounds: 7, span: Nanos::from_millis(1_000) };
/// Bytes of the node's flash: four times the longest data.
const CAPACITY_BYTES: u64 = 384 << 20;
/// Device DRAM that holds all of the data, as the peers do.
const MEMORY: &str = "256MiB";

fn run(context: &RunContext) -> Result<ExperimentFindings, LabError> {
    let mut findings = ExperimentFindings::default();
    let mut ratios = Vec::new();
    let also_by_redis_benchmark = !context.is_quick() && benchmark_installed();
    let plan = if context.is_quick() { QUICK } else { FULL };
    for group in GROUPS.iter().filter(|group| !(group.full_only && context.is_quick())) {
        let setup = ServerSetup {
            durability: group.mode,
            capacity_bytes: CAPACITY_BYTES,
            options: &["--memory", MEMORY],
            persistence: PeerPersistence::AppendOnly(group.mode),
        };
        let servers = ServerComparison::open(context, setup)?;
        for scenario in scenarios(group) {
            let needed = Nanos(SERVER_QUICK.0 * servers.servers().len() as u64);
            if context.time_left_beside(servers.peers(), RESERVE) < needed {
                let why = "the time of a quick run had passed: run it without --quick".to_owned();
                findings.claims.extend(claims(&scenario, &Err(why)));
                continue;
            }
            let measure = |scenario: &RespScenario| -> Result<ScenarioOutcome, LabError> {
                let samples = ServerSample::measure(&servers, scenario.load, plan)?;
                Ok(ScenarioOutcome { mode: group.mode, samples })
            };
            let measured = measure(&scenario)?;
            findings.rows.extend(measured.rows(&scenario));
            ratios.extend(measured.ratio_row(&scenario));
            if also_by_redis_benchmark {
                let scenario = scenario.by_redis_benchmark();
                let measured = measure(&scenario)?;
                findings.rows.extend(measured.rows(&scenario));
                ratios.extend(measured.ratio_row(&scenario));
            }
            let measured = servers.incomplete_reason().map_or(Ok(measured), Err);
            findings.claims.extend(claims(&scenario, &measured));
        }
    }
    findings.rows.extend(ratios);
    Ok(findings)
}

/// Evaluates the claims of a scenario.
fn claims(scenario: &RespScenario, measured: &Result<ScenarioOutcome, String>) -> Vec<LabClaim> {
    let claim = |promise: &ScenarioPromise| {
        let (name, goal, unit) = (scenario.claim(*promise), promise.goal(), promise.unit());
        let measured = match measured {
            Ok(measured) => measured,
            Err(why) => return LabClaim::not_run(name, goal, unit, why),
        };
        let (ratio, baseline) = match promise {
            ScenarioPromise::Cpu(_) => (measured.cpu_ratio(), measured.cpu_baseline()),
            ScenarioPromise::Throughput(_) => (measured.throughput_ratio(), measured.rate_baseline()),
        };
        let value = ratio.map_or(f64::NAN, |spread| spread.median);
        LabClaim::found(name, goal, (value, unit), EvidenceLabel::Measured, baseline)
    };
    scenario.promises.iter().map(claim).collect()
}
