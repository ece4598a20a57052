//! The rows and the baselines of one scenario.
//!
//! Input: the samples of the servers. Output: rows for the report, and the ratios that the claims promise.

use super::scenario::RespScenario;
use crate::measure::SampleSpread;
use crate::report::ReportRow;
use crate::server::RespDurability;
use crate::server_comparison::{ComparedSamples, ServerRole};
use crate::server_sample::{ServerSample, count};

/// The samples of every server in one scenario.
#[derive(Debug)]
pub(super) struct ScenarioOutcome {
    pub(super) mode: RespDurability,
    pub(super) samples: ComparedSamples<ServerSample>,
}

impl ScenarioOutcome {
    /// Returns a row for each server that ran.
    pub(super) fn rows(&self, scenario: &RespScenario) -> Vec<ReportRow> {
        let row = |server: usize| -> ReportRow {
            let flushes = self.flushes(server);
            let spread = |of: fn(&ServerSample) -> f64| self.samples.spread(server, of);
            ReportRow::new()
                .with("scenario", scenario.name())
                .with("durability", self.mode.ours())
                .with("server", self.samples.servers[server].name.as_str())
                .with("client", scenario.load.client.name())
                .with("clients", scenario.load.clients)
                .with("cpu_us_per_op", spread(|sample| sample.cpu_us))
                .with("ops_per_s", spread(|sample| sample.ops_per_s))
                .with("p50_ms", spread(|sample| sample.p50_ms).map(|spread| spread.median))
                .with("p99_ms", spread(|sample| sample.p99_ms).map(|spread| spread.median))
                .with("flushes_per_s", flushes.map(|(per_s, _)| per_s))
                .with("sets_per_flush", flushes.map(|(_, sets)| sets))
        };
        (0..self.samples.servers.len()).map(row).collect()
    }

    /// Returns Headwater's CPU for an operation over the peer's, of adjacent runs.
    pub(super) fn cpu_ratio(&self) -> Option<SampleSpread> {
        self.samples.ratio(|sample| sample.cpu_us)
    }

    /// Returns Headwater's operations a second over the peer's, of adjacent runs.
    pub(super) fn throughput_ratio(&self) -> Option<SampleSpread> {
        self.samples.ratio(|sample| sample.ops_per_s)
    }

    /// Describes the baseline of the CPU.
    pub(super) fn cpu_baseline(&self) -> String {
        let peers = self.samples.peer_medians(|sample| sample.cpu_us).into_iter();
        let peers: Vec<String> =
            peers.map(|(name, us)| format!("{name} at {us:.2} us an operation")).collect();
        let canned = self.samples.median(ServerRole::Canned, |sample| sample.cpu_us);
        format!("{}; canned replies {canned:.2} us", peers.join(", "))
    }

    /// Describes the baseline of the rate.
    pub(super) fn rate_baseline(&self) -> String {
        let peers = self.samples.peer_medians(|sample| sample.ops_per_s).into_iter();
        let peers: Vec<String> =
            peers.map(|(name, rate)| format!("{name} at {rate:.0} operations a second")).collect();
        let canned = self.samples.median(ServerRole::Canned, |sample| sample.ops_per_s);
        format!("{}; canned replies {canned:.0}", peers.join(", "))
    }

    /// Returns a row of both ratios if both servers ran.
    pub(super) fn ratio_row(&self, scenario: &RespScenario) -> Option<ReportRow> {
        let (cpu, rate) = (self.cpu_ratio()?, self.throughput_ratio()?);
        Some(
            ReportRow::new()
                .with("ratio_to_peer", scenario.name())
                .with("client", scenario.load.client.name())
                .with("cpu_ratio", cpu)
                .with("throughput_ratio", rate),
        )
    }

    /// Returns flushes a second and operations a flush over all runs, if the server counts flushes.
    fn flushes(&self, server: usize) -> Option<(f64, f64)> {
        let mut seconds = 0.0;
        let (mut ops, mut flushes) = (0, 0);
        for sample in self.samples.samples(server) {
            flushes += sample.flushes?;
            ops += sample.ops;
            seconds += count(sample.ops) / sample.ops_per_s;
        }
        (flushes > 0).then(|| (count(flushes) / seconds, count(ops) / count(flushes)))
    }
}
