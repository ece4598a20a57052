//! The CPU cost of an idle node.
//!
//! Input: a node with some keys and one silent client, and a redis-server if it is installed.
//! Output: the share of a core that each used over the same five seconds.

use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::cpu_account::CpuAccount;
use crate::experiment::{ExperimentFindings, LabError, LabExperiment, RunContext};
use crate::redis_peer::{PeerPersistence, RedisPeer};
use crate::report::ReportRow;
use crate::resp_load::{KEYS, fill};
use crate::server::{RespDurability, RespServer};
use headwater_host::clock::{Clock, Nanos};
use std::net::TcpStream;

const CLAIM: &str = "p1.idle";
const GOAL: ClaimGoal = ClaimGoal::AtMost(0.5);
const UNIT: &str = "% of a core";
/// Time after which earlier commands have left the caches and the log.
const SETTLE: Nanos = Nanos::from_millis(2_000);
const MEASURED_SPAN: Nanos = Nanos::from_millis(5_000);

/// The experiment's entry in the table.
pub(crate) const EXPERIMENT: LabExperiment = LabExperiment {
    name: "idle",
    summary: "CPU that a node uses without any commands",
    baseline: "redis-server, idle in the same seconds",
    claims: &[CLAIM],
    run,
};

fn run(context: &RunContext) -> Result<ExperimentFindings, LabError> {
    let ours = match RespServer::ours(context, RespDurability::Always) {
        Ok(server) => server,
        Err(error) => {
            return Ok(ExperimentFindings {
                rows: Vec::new(),
                claims: vec![LabClaim::not_run(CLAIM, GOAL, UNIT, error.to_string())],
            });
        }
    };
    let redis = RedisPeer::redis().and_then(|peer| {
        let persistence = PeerPersistence::AppendOnly(RespDurability::Always);
        let server = peer.start(context, persistence).map_err(|error| error.to_string())?;
        Ok((peer.name().to_owned(), server))
    });
    fill(ours.address(), KEYS, 100)?;
    let silent = TcpStream::connect(ours.address())
        .map_err(|source| LabError::Io { what: "connect to the node", source })?;
    Clock::sleep(SETTLE);

    let before = [Some(ours.account()), redis.as_ref().ok().map(|(_, server)| server.account())];
    let began: Vec<Option<Nanos>> = before.iter().map(|account| account.and_then(CpuAccount::used)).collect();
    let start = context.clock().now();
    Clock::sleep(MEASURED_SPAN);
    let watched = context.clock().now().since(start);
    let share = |index: usize| -> Option<f64> {
        let used = before[index]?.used()?.since(began[index]?);
        Some(percent(used, watched))
    };
    let (our_share, redis_share) = (share(0), share(1));
    drop(silent);

    let baseline = match (&redis, redis_share) {
        (Ok((version, _)), Some(share)) => format!("{version} idle: {share:.2} %"),
        (Err(why), _) => format!("no baseline: {why}"),
        (Ok((version, _)), None) => format!("no baseline: {version} ended"),
    };
    let row = |server: &str, share: Option<f64>| {
        ReportRow::new()
            .with("server", server)
            .with("watched_s", watched.to_duration().as_secs_f64())
            .with("cpu_percent_of_a_core", share)
    };
    Ok(ExperimentFindings {
        rows: vec![row("headwater", our_share), row("redis-server", redis_share)],
        claims: vec![match our_share {
            Some(share) => LabClaim::found(CLAIM, GOAL, (share, UNIT), EvidenceLabel::Measured, baseline),
            None => LabClaim::not_run(CLAIM, GOAL, UNIT, "the node ended during the measurement"),
        }],
    })
}

fn percent(used: Nanos, watched: Nanos) -> f64 {
    100.0 * used.to_duration().as_secs_f64() / watched.to_duration().as_secs_f64()
}
