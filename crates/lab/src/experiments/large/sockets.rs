//! SET and GET of large values over RESP, one after the other on each of four connections.
//!
//! Input: the node, the peers and the server of fixed replies. Output: server CPU and time for a gigabyte.

use super::{LargePromise, LargeSize, SIZES, memory_option};
use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, RunContext};
use crate::measure::{CompareCase, SampleSpread, run_interleaved};
use crate::payload_floor::{FloorWork, PayloadCost, PayloadFloor};
use crate::redis_peer::PeerPersistence;
use crate::report::ReportRow;
use crate::resp_load::{LoadClient, LoadCommand, RespLoad, flush_all};
use crate::server::RespDurability;
use crate::server_comparison::{ComparedSamples, RoundPlan, ServerComparison, ServerRole, ServerSetup};
use crate::server_sample::ServerSample;
use headwater_host::clock::Nanos;

const UNIT: &str = "ratio of CPU a GB";
pub(super) const SET: LargePromise = LargePromise { name: "set", goal: ClaimGoal::AtMost(1.3), unit: UNIT };
const GET: LargePromise = LargePromise { name: "get", goal: ClaimGoal::AtMost(0.9), unit: UNIT };
/// Connections, each with one command in flight.
const CLIENTS: u64 = 4;
const CAPACITY_BYTES: u64 = 2 << 30;
/// Bytes of all values of one length: more than device DRAM.
const DATA_BYTES: usize = 512 << 20;
const DATA_BYTES_QUICK: usize = 128 << 20;
const CAPACITY_BYTES_QUICK: u64 = 640 << 20;
const FULL: RoundPlan = RoundPlan { rounds: 5, span: Nanos::from_millis(400) };
const QUICK: RoundPlan = RoundPlan { rounds: 3, span: Nanos::from_millis(40) };
/// Bytes that the floor moves in a round.
const FLOOR_BYTES: usize = 128 << 20;
const FLOOR_BYTES_QUICK: usize = 16 << 20;

pub(super) fn run(context: &RunContext, findings: &mut ExperimentFindings) -> Result<(), LabError> {
    let quick = context.is_quick();
    let (data, capacity) =
        if quick { (DATA_BYTES_QUICK, CAPACITY_BYTES_QUICK) } else { (DATA_BYTES, CAPACITY_BYTES) };
    let memory = memory_option();
    let setup = ServerSetup {
        durability: RespDurability::OnFlush,
        capacity_bytes: capacity,
        options: &["--memory", &memory],
        persistence: PeerPersistence::None,
    };
    let servers = ServerComparison::open(context, setup)?;
    let longest = SIZES.map(|size| size.bytes).into_iter().max().unwrap_or(0);
    let mut floor = PayloadFloor::create(context.scratch(), data.max(longest), longest)?;
    for size in SIZES {
        if let Some(why) = size.refused() {
            findings.claims.extend([SET.not_run(size, &why), GET.not_run(size, &why)]);
            continue;
        }
        for server in servers.servers().iter().filter(|server| server.role != ServerRole::Canned) {
            flush_all(server.address)?;
        }
        let works = [(SET, LoadCommand::Set, FloorWork::Write), (GET, LoadCommand::Get, FloorWork::Read)];
        let plan = if quick { QUICK } else { FULL };
        for (promise, verb, work) in works {
            let load = RespLoad {
                client: LoadClient::Lab,
                verb,
                keys: size.keys(data),
                value_bytes: size.bytes,
                pipeline: 1,
                clients: CLIENTS,
            };
            let samples = ServerSample::measure(&servers, load, plan)?;
            let floor_bytes = if quick { FLOOR_BYTES_QUICK } else { FLOOR_BYTES };
            let mut least = || floor.round(work, size.bytes, size.count(floor_bytes));
            let mut contestants: [CompareCase<'_, PayloadCost, LabError>; 1] = [&mut least];
            let costs = run_interleaved(plan.rounds, &mut contestants)?;
            let outcome = SocketOutcome { promise, size, samples, floor: costs[0].clone() };
            outcome.rows(findings, floor.direct);
            findings.claims.push(match servers.incomplete_reason() {
                Some(why) => promise.not_run(size, &why),
                None => outcome.claim(),
            });
        }
    }
    Ok(())
}

/// The samples of one verb and length.
struct SocketOutcome {
    promise: LargePromise,
    size: LargeSize,
    samples: ComparedSamples<ServerSample>,
    floor: Vec<PayloadCost>,
}

impl SocketOutcome {
    /// Returns the milliseconds of server CPU for a gigabyte.
    #[expect(clippy::cast_precision_loss, reason = "bytes of one value are far below 2^52")]
    fn cpu_ms_per_gb(&self, sample: &ServerSample) -> f64 {
        sample.cpu_us * 1e6 / self.size.bytes as f64
    }

    #[expect(clippy::cast_precision_loss, reason = "bytes of one value are far below 2^52")]
    fn gb_per_s(&self, sample: &ServerSample) -> f64 {
        sample.ops_per_s * self.size.bytes as f64 / 1e9
    }

    fn floor(&self, of: fn(&PayloadCost) -> f64) -> Option<SampleSpread> {
        SampleSpread::of(&self.floor.iter().map(of).collect::<Vec<f64>>())
    }

    fn rows(&self, findings: &mut ExperimentFindings, direct: bool) {
        let row = |what: &str, cpu: Option<SampleSpread>, rate: Option<SampleSpread>| {
            ReportRow::new()
                .with("over RESP", self.promise.name)
                .with("bytes", self.size.bytes as u64)
                .with("server", what)
                .with("cpu_ms_per_gb", cpu)
                .with("gb_per_s", rate)
        };
        for (index, server) in self.samples.servers.iter().enumerate() {
            let cpu = self.samples.spread(index, |sample| self.cpu_ms_per_gb(sample));
            let rate = self.samples.spread(index, |sample| self.gb_per_s(sample));
            findings.rows.push(row(&server.name, cpu, rate));
        }
        let what = if direct { "floor: file past the page cache, crc" } else { "floor: file, crc" };
        findings.rows.push(row(
            what,
            self.floor(PayloadCost::cpu_ms_per_gb),
            self.floor(PayloadCost::gb_per_s),
        ));
    }

    fn claim(&self) -> LabClaim {
        let ratio = self.samples.ratio(|sample| sample.cpu_us);
        let value = ratio.map_or(f64::NAN, |spread| spread.median);
        let cpu = |role| self.samples.median(role, |sample| self.cpu_ms_per_gb(sample));
        let baseline = format!(
            "{} at {:.0} ms a GB; floor: file and crc {:.0}, canned replies {:.0}",
            self.samples.peer_name(),
            cpu(ServerRole::Peer),
            self.floor(PayloadCost::cpu_ms_per_gb).map_or(f64::NAN, |spread| spread.median),
            cpu(ServerRole::Canned)
        );
        let name = self.promise.claim(self.size);
        LabClaim::found(name, self.promise.goal, (value, UNIT), EvidenceLabel::Measured, baseline)
    }
}
