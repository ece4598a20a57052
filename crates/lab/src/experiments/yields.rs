//! The latency of a client beside another client that sends one long command after the other.
//!
//! Input: a node with small keys and large values; two connections. Output: the p99 of GETs of a small value, alone and
//! beside each long command, and the claims `p7.yield.*`. The loads are those with which one client could keep the
//! node's core for itself. A run in which the long command was never answered counts as not run.

mod long_load;

use crate::claim::{ClaimGoal, EvidenceLabel, LabClaim};
use crate::experiment::{ExperimentFindings, LabError, LabExperiment, RunContext};
use crate::report::ReportRow;
use crate::resp_load::{KEYS, fill};
use crate::server::{RespDurability, RespServer};
use headwater_host::clock::{Clock, Nanos};
use long_load::{LONG_LOADS, LongLoad, RespPeer, RunningLoad};
use std::io;
use std::net::SocketAddr;

const GOAL: ClaimGoal = ClaimGoal::AtMost(2.0);
const UNIT: &str = "ms";
/// Time that each long command is sent.
const SPAN: Nanos = Nanos::from_millis(5_000);
const SPAN_QUICK: Nanos = Nanos::from_millis(1_000);
/// Time before the first counted GET.
const WARM_UP: Nanos = Nanos::from_millis(200);

/// The experiment's entry in the table.
pub(crate) const EXPERIMENT: LabExperiment = LabExperiment {
    name: "yield",
    summary: "p99 of GET of 100 bytes beside a client that sends long commands",
    baseline: "the same client alone",
    claims: &["p7.yield.*"],
    run,
};

/// The latencies of one run.
#[derive(Clone, Copy, Debug)]
struct NeighbourLatency {
    gets: u64,
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
}

fn run(context: &RunContext) -> Result<ExperimentFindings, LabError> {
    let node = RespServer::ours(context, RespDurability::OnFlush)?;
    let address = node.address();
    fill(address, KEYS, 100)?;
    long_load::prepare(address).map_err(failed)?;
    let span = if context.is_quick() { SPAN_QUICK } else { SPAN };
    let alone = measure(context, address, span).map_err(failed)?;
    let mut findings = ExperimentFindings::default();
    findings.rows.push(row("none", 0, alone));
    for load in LONG_LOADS {
        // The crowd that CLIENT LIST lists is there for that command only.
        let crowd =
            if load.name == "client_list" { long_load::connect_crowd(address) } else { Ok(Vec::new()) };
        let crowd = crowd.map_err(failed)?;
        let running = RunningLoad::start(address, *load).map_err(failed)?;
        let beside = measure(context, address, span).map_err(failed)?;
        let sent = running.stop().map_err(failed)?;
        drop(crowd);
        findings.rows.push(row(load.name, sent, beside));
        findings.claims.push(claim(load, sent, (beside, alone)));
    }
    Ok(findings)
}

fn failed(error: io::Error) -> LabError {
    LabError::Measure { program: "the node".to_owned(), reason: error.to_string() }
}

fn row(load: &str, sent: u64, measured: NeighbourLatency) -> ReportRow {
    ReportRow::new()
        .with("long_command", load)
        .with("long_commands", sent)
        .with("gets", measured.gets)
        .with("p50_ms", measured.p50_ms)
        .with("p99_ms", measured.p99_ms)
        .with("max_ms", measured.max_ms)
}

fn claim(load: &LongLoad, sent: u64, (beside, alone): (NeighbourLatency, NeighbourLatency)) -> LabClaim {
    let name = format!("p7.yield.{}", load.name);
    if sent == 0 {
        return LabClaim::not_run(name, GOAL, UNIT, "no long command was answered during the run");
    }
    let baseline = format!("alone {:.3} ms; {}", alone.p99_ms, load.summary);
    LabClaim::found(name, GOAL, (beside.p99_ms, UNIT), EvidenceLabel::Measured, baseline)
}

/// Sends GETs one after the other and returns their latencies.
fn measure(context: &RunContext, address: SocketAddr, span: Nanos) -> io::Result<NeighbourLatency> {
    let mut peer = RespPeer::connect(address)?;
    let clock: &Clock = context.clock();
    let start = clock.now();
    let mut nanos = Vec::new();
    while clock.now().since(start) < span.after(WARM_UP) {
        let before = clock.now();
        peer.call(&[b"GET", b"key:000000000007"])?;
        if before.since(start) >= WARM_UP {
            nanos.push(clock.now().since(before).0);
        }
    }
    nanos.sort_unstable();
    let at = |share: usize| nanos.get((nanos.len() * share / 1_000).min(nanos.len() - 1)).copied();
    let millis =
        |nanos: Option<u64>| nanos.map_or(f64::NAN, |nanos| Nanos(nanos).to_duration().as_secs_f64() * 1e3);
    if nanos.is_empty() {
        return Err(io::Error::other("no GET was answered in the whole run"));
    }
    Ok(NeighbourLatency {
        gets: nanos.len() as u64,
        p50_ms: millis(at(500)),
        p99_ms: millis(at(990)),
        max_ms: millis(nanos.last().copied()),
    })
}
