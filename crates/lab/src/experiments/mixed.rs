//! Reads beside writes that wait for the disk: 50 clients GET while 8 clients SET, each write durable before its reply.
//!
//! Input: a node with durability `always`, and the peers with an append-only file that is synchronised before each reply.
//! Output: GETs a second and their p99, and the claims `p8.always.mixed*`. One client drives both loads, so its own
//! cost is the same for all servers; the server of fixed replies is the most that it drives. Every client has one command
//! in flight.

use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::driver::drive_together;
use crate::experiment::{ExperimentFindings, LabError, LabExperiment, RunContext};
use crate::redis_peer::PeerPersistence;
use crate::report::ReportRow;
use crate::resp_load::{KEYS, LoadClient, LoadCommand, LoadResult, RespLoad};
use crate::server::RespDurability;
use crate::server_comparison::{ComparedSamples, RoundPlan, ServerComparison, ServerRole, ServerSetup};
use headwater_host::clock::Nanos;

/// The experiment's entry in the table.
pub(crate) const EXPERIMENT: LabExperiment = LabExperiment {
    name: "mixed",
    summary: "GETs of 50 clients beside SETs of 8 clients that are durable before their replies",
    baseline: "redis-server with appendfsync always; floor: canned replies",
    claims: &["p8.always.mixed", "p8.always.mixed.p99"],
    run,
};

const RATE: (&str, ClaimGoal, &str) = ("p8.always.mixed", ClaimGoal::AtLeast(10.0), "ratio of GETs a second");
const P99: (&str, ClaimGoal, &str) =
    ("p8.always.mixed.p99", ClaimGoal::AtMost(0.1), "ratio of the p99 of GETs");
const READERS: u64 = 50;
const WRITERS: u64 = 8;
const CAPACITY_BYTES: u64 = 512 << 20;
const MEMORY: &str = "256MiB";
const FULL: RoundPlan = RoundPlan { rounds: 7, span: Nanos::from_millis(1_000) };
const QUICK: RoundPlan = RoundPlan { rounds: 5, span: Nanos::from_millis(300) };
/// Value lengths; the claims are those of the first.
const LENGTHS: [usize; 2] = [100, 4_096];

/// One run on one server.
#[derive(Clone, Copy, Debug)]
struct MixedSample {
    gets: LoadResult,
    sets: LoadResult,
}

fn run(context: &RunContext) -> Result<ExperimentFindings, LabError> {
    let plan = if context.is_quick() { QUICK } else { FULL };
    let setup = ServerSetup {
        durability: RespDurability::Always,
        capacity_bytes: CAPACITY_BYTES,
        options: &["--memory", MEMORY],
        persistence: PeerPersistence::AppendOnly(RespDurability::Always),
    };
    let servers = ServerComparison::open(context, setup)?;
    let mut findings = ExperimentFindings::default();
    for value_bytes in LENGTHS {
        let samples = measure(&servers, value_bytes, plan)?;
        findings.rows.extend(rows(&samples, value_bytes));
        if value_bytes == LENGTHS[0] {
            findings.claims.extend(claims(&samples, servers.incomplete_reason().as_deref()));
        }
    }
    Ok(findings)
}

fn measure(
    servers: &ServerComparison,
    value_bytes: usize,
    plan: RoundPlan,
) -> Result<ComparedSamples<MixedSample>, LabError> {
    let load = |verb, clients| RespLoad {
        client: LoadClient::Lab,
        verb,
        keys: KEYS,
        value_bytes,
        pipeline: 1,
        clients,
    };
    let loads = [load(LoadCommand::Get, READERS), load(LoadCommand::Set, WRITERS)];
    servers.set_canned_value(value_bytes);
    servers.fill(KEYS, value_bytes)?;
    servers.run(plan.rounds, |_, server| {
        match drive_together(&loads, server.address, plan.span)?.as_slice() {
            &[gets, sets] => Ok(MixedSample { gets, sets }),
            _ => Err(LabError::Measure {
                program: server.name.clone(),
                reason: "one of the loads has no result".to_owned(),
            }),
        }
    })
}

fn rows(samples: &ComparedSamples<MixedSample>, value_bytes: usize) -> Vec<ReportRow> {
    let row = |server: usize| {
        let spread = |of: fn(&MixedSample) -> f64| samples.spread(server, of);
        ReportRow::new()
            .with("value_bytes", value_bytes as u64)
            .with("server", samples.servers[server].name.as_str())
            .with("gets_per_s", spread(|sample| sample.gets.ops_per_s))
            .with("get_p50_ms", spread(|sample| sample.gets.p50_ms))
            .with("get_p99_ms", spread(|sample| sample.gets.p99_ms))
            .with("sets_per_s", spread(|sample| sample.sets.ops_per_s))
            .with("set_p50_ms", spread(|sample| sample.sets.p50_ms))
            .with("set_p99_ms", spread(|sample| sample.sets.p99_ms))
    };
    (0..samples.servers.len()).map(row).collect()
}

fn claims(samples: &ComparedSamples<MixedSample>, incomplete: Option<&str>) -> Vec<LabClaim> {
    let of_peer = |of: fn(&MixedSample) -> f64| samples.median(ServerRole::Peer, of);
    let of_floor = |of: fn(&MixedSample) -> f64| samples.median(ServerRole::Canned, of);
    let peer = samples.peer_name();
    let gets: fn(&MixedSample) -> f64 = |sample| sample.gets.ops_per_s;
    let p99: fn(&MixedSample) -> f64 = |sample| sample.gets.p99_ms;
    let rate = format!("{peer} at {:.0} a second; canned replies {:.0}", of_peer(gets), of_floor(gets));
    let late = format!("{peer} at {:.3} ms; canned replies {:.3} ms", of_peer(p99), of_floor(p99));
    let claim = |(name, goal, unit): (&'static str, ClaimGoal, &'static str), of, baseline| match incomplete {
        Some(why) => LabClaim::not_run(name, goal, unit, why),
        None => {
            let value = samples.ratio(of).map_or(f64::NAN, |spread| spread.median);
            LabClaim::found(name, goal, (value, unit), EvidenceLabel::Measured, baseline)
        }
    };
    vec![claim(RATE, gets, rate), claim(P99, p99, late)]
}
