//! Runs one load on three servers, interleaved.
//!
//! Input: a scenario.
//! Output: samples of each server; those with the same index are adjacent in time. A server that cannot be started has
//! no samples: the rest are measured, and the claims state why they have no value.

use super::scenario::RespScenario;
use crate::canned_server::CannedServer;
use crate::cpu_account::CpuAccount;
use crate::experiment::{LabError, RunContext};
use crate::measure::{CompareCase, SampleSpread, run_interleaved};
use crate::report::ReportRow;
use crate::resp_load::{LoadCommand, LoadResult, RespLoad, fill, info_number};
use crate::server::{RespDurability, RespServer, redis_version};
use headwater_host::clock::Nanos;
use std::cell::Cell;
use std::net::SocketAddr;

/// Rate assumed for the unrecorded first round; the following rounds use the measured rate.
const PILOT_PER_S: f64 = 10_000.0;
/// The rounds of a quick run.
const QUICK: RoundPlan = RoundPlan { rounds: 5, span: Nanos::from_millis(50) };
const FULL: RoundPlan = RoundPlan { rounds: 7, span: Nanos::from_millis(1_000) };

struct RoundPlan {
    rounds: usize,
    span: Nanos,
}

/// The three servers, with one durability.
#[derive(Debug)]
pub(super) struct ServerComparison {
    mode: RespDurability,
    ours: Result<RespServer, String>,
    redis: Result<(String, RespServer), String>,
    canned: CannedServer,
    /// Length of the values with which the servers were filled.
    filled: Cell<usize>,
}

/// One run of one server.
#[derive(Clone, Copy, Debug)]
struct ServerSample {
    cpu_us: f64,
    ops_per_s: f64,
    p50_ms: f64,
    p99_ms: f64,
    ops: u64,
    /// Flushes of the medium in the run, if the server counts them.
    flushes: Option<u64>,
}

/// The samples of every server in one scenario, by server index.
#[derive(Debug)]
pub(super) struct ServerSamples {
    mode: RespDurability,
    samples: [Vec<ServerSample>; 3],
}

impl ServerComparison {
    /// Index of the Headwater node.
    pub(super) const OURS: usize = 0;
    /// Index of redis-server.
    pub(super) const REDIS: usize = 1;
    /// Index of the canned-reply server.
    pub(super) const CANNED: usize = 2;
    const NAMES: [&'static str; 3] = ["headwater", "redis-server", "canned replies"];

    /// Starts the servers.
    pub(super) fn open(context: &RunContext, mode: RespDurability) -> Result<Self, LabError> {
        let redis = redis_version().and_then(|version| {
            let server = RespServer::redis(context, mode).map_err(|error| error.to_string())?;
            Ok((version, server))
        });
        Ok(Self {
            mode,
            ours: RespServer::ours(context, mode).map_err(|error| error.to_string()),
            redis,
            canned: CannedServer::start()?,
            filled: Cell::new(0),
        })
    }

    /// Returns the reason why no ratios can be formed, if there is one.
    pub(super) fn incomplete_reason(&self) -> Option<String> {
        let ours = self.ours.as_ref().err();
        ours.or(self.redis.as_ref().err()).cloned()
    }

    /// Returns the name and version of redis-server.
    pub(super) fn redis_version(&self) -> &str {
        self.redis.as_ref().map_or("no redis-server", |(version, _)| version)
    }

    /// Measures the servers interleaved.
    pub(super) fn measure(&self, scenario: &RespScenario, quick: bool) -> Result<ServerSamples, LabError> {
        let load = scenario.load;
        self.canned.set_value_bytes(load.value_bytes);
        self.fill_for(load)?;
        let effort = if quick { QUICK } else { FULL };
        let running: Vec<(usize, SocketAddr, CpuAccount)> = self.running_servers();
        let mut work: Vec<_> = running
            .iter()
            .map(|&(server, address, account)| {
                let mut expected_per_s = PILOT_PER_S;
                let counts_flushes = server == Self::OURS;
                move || {
                    let ran = || load.run(address, effort.span, expected_per_s);
                    let sample = sample(ran, address, account, counts_flushes)?;
                    expected_per_s = sample.ops_per_s;
                    Ok::<ServerSample, LabError>(sample)
                }
            })
            .collect();
        let mut contestants: Vec<CompareCase<'_, ServerSample, LabError>> = Vec::new();
        for server_work in &mut work {
            contestants.push(server_work);
        }
        let taken = run_interleaved(effort.rounds, &mut contestants)?;
        let mut samples = [Vec::new(), Vec::new(), Vec::new()];
        for ((server, _, _), of_server) in running.iter().zip(taken) {
            samples[*server] = of_server;
        }
        Ok(ServerSamples { mode: self.mode, samples })
    }

    fn running_servers(&self) -> Vec<(usize, SocketAddr, CpuAccount)> {
        let mut running = Vec::new();
        if let Ok(server) = &self.ours {
            running.push((Self::OURS, server.address(), server.account()));
        }
        if let Ok((_, server)) = &self.redis {
            running.push((Self::REDIS, server.address(), server.account()));
        }
        running.push((Self::CANNED, self.canned.address(), self.canned.account()));
        running
    }

    /// Fills every key with values of the load's length before reads, because a miss would cost less.
    fn fill_for(&self, load: RespLoad) -> Result<(), LabError> {
        if load.verb == LoadCommand::Get && self.filled.get() != load.value_bytes {
            for (server, address, _) in self.running_servers() {
                if server != Self::CANNED {
                    fill(address, load.value_bytes)?;
                }
            }
            self.filled.set(load.value_bytes);
        }
        Ok(())
    }
}

fn sample(
    run: impl FnOnce() -> Result<LoadResult, LabError>,
    address: SocketAddr,
    account: CpuAccount,
    counts_flushes: bool,
) -> Result<ServerSample, LabError> {
    let flushes = || counts_flushes.then(|| info_number(address, "flushes")).flatten();
    let gone = || LabError::Measure { program: address.to_string(), reason: "the server ended".to_owned() };
    let flushes_before = flushes();
    let before = account.used().ok_or_else(gone)?;
    let ran = run()?;
    let used = account.used().ok_or_else(gone)?.since(before);
    Ok(ServerSample {
        cpu_us: used.to_duration().as_secs_f64() * 1e6 / count(ran.ops),
        ops_per_s: ran.ops_per_s,
        p50_ms: ran.p50_ms,
        p99_ms: ran.p99_ms,
        ops: ran.ops,
        flushes: flushes().zip(flushes_before).map(|(after, before)| after.saturating_sub(before)),
    })
}

#[expect(clippy::cast_precision_loss, reason = "a count of operations is far below 2^52")]
fn count(ops: u64) -> f64 {
    ops.max(1) as f64
}

impl ServerSamples {
    /// Returns a row for each server that ran.
    pub(super) fn rows(&self, scenario: &RespScenario) -> Vec<ReportRow> {
        let row = |server: usize| -> ReportRow {
            let flushes = self.flushes(server);
            ReportRow::new()
                .with("scenario", scenario.name())
                .with("durability", self.mode.ours())
                .with("server", ServerComparison::NAMES[server])
                .with("client", scenario.load.client.name())
                .with("clients", scenario.load.clients)
                .with("cpu_us_per_op", self.spread(server, |sample| sample.cpu_us))
                .with("ops_per_s", self.spread(server, |sample| sample.ops_per_s))
                .with("p50_ms", self.spread(server, |sample| sample.p50_ms).map(|spread| spread.median))
                .with("p99_ms", self.spread(server, |sample| sample.p99_ms).map(|spread| spread.median))
                .with("flushes_per_s", flushes.map(|(per_s, _)| per_s))
                .with("sets_per_flush", flushes.map(|(_, sets)| sets))
        };
        (0..3).filter(|server| !self.samples[*server].is_empty()).map(row).collect()
    }

    /// Returns the median CPU microseconds of an operation.
    fn cpu_us(&self, server: usize) -> f64 {
        self.spread(server, |sample| sample.cpu_us).map_or(f64::NAN, |spread| spread.median)
    }

    /// Returns the median operations a second.
    fn ops_per_s(&self, server: usize) -> f64 {
        self.spread(server, |sample| sample.ops_per_s).map_or(f64::NAN, |spread| spread.median)
    }

    /// Returns Headwater's CPU for an operation over Redis's, of adjacent runs.
    pub(super) fn cpu_ratio(&self) -> Option<SampleSpread> {
        self.ratio(|sample| sample.cpu_us)
    }

    /// Returns Headwater's operations a second over Redis's, of adjacent runs.
    pub(super) fn throughput_ratio(&self) -> Option<SampleSpread> {
        self.ratio(|sample| sample.ops_per_s)
    }

    /// Describes the baseline of the CPU.
    pub(super) fn cpu_baseline(&self, redis: &str) -> String {
        format!(
            "{redis} at {:.2} us an operation; canned replies {:.2} us",
            self.cpu_us(ServerComparison::REDIS),
            self.cpu_us(ServerComparison::CANNED)
        )
    }

    /// Describes the baseline of the rate.
    pub(super) fn rate_baseline(&self, redis: &str) -> String {
        format!(
            "{redis} at {:.0} operations a second; canned replies {:.0}",
            self.ops_per_s(ServerComparison::REDIS),
            self.ops_per_s(ServerComparison::CANNED)
        )
    }

    /// Returns a row of both ratios if both servers ran.
    pub(super) fn ratio_row(&self, scenario: &RespScenario) -> Option<ReportRow> {
        let (cpu, rate) = (self.cpu_ratio()?, self.throughput_ratio()?);
        Some(
            ReportRow::new()
                .with("ratio_to_redis", scenario.name())
                .with("client", scenario.load.client.name())
                .with("cpu_ratio", cpu)
                .with("throughput_ratio", rate),
        )
    }

    fn ratio(&self, of: impl Fn(&ServerSample) -> f64) -> Option<SampleSpread> {
        let (ours, redis) =
            (self.numbers(ServerComparison::OURS, &of), self.numbers(ServerComparison::REDIS, &of));
        SampleSpread::of_ratios(&ours, &redis)
    }

    fn spread(&self, server: usize, of: impl Fn(&ServerSample) -> f64) -> Option<SampleSpread> {
        SampleSpread::of(&self.numbers(server, of))
    }

    fn numbers(&self, server: usize, of: impl Fn(&ServerSample) -> f64) -> Vec<f64> {
        self.samples[server].iter().map(of).collect()
    }

    /// Returns flushes a second and operations a flush over all runs, if the server counts flushes.
    fn flushes(&self, server: usize) -> Option<(f64, f64)> {
        let mut seconds = 0.0;
        let (mut ops, mut flushes) = (0, 0);
        for sample in &self.samples[server] {
            flushes += sample.flushes?;
            ops += sample.ops;
            seconds += count(sample.ops) / sample.ops_per_s;
        }
        (flushes > 0).then(|| (count(flushes) / seconds, count(ops) / count(flushes)))
    }
}
