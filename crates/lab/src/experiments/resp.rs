//! Headwater's RESP front end compared with redis-server and with a server that only sends fixed replies.
//!
//! Input: the three servers, started with the same durability, and a client that drives each in turn.
//! Output: server CPU for an operation, operations a second, and the claims `p1.resp.*` as ratios of adjacent runs.
//!
//! The claims are measured with the lab's own client. With one core for the client, redis-benchmark drives the server
//! of fixed replies no faster than redis-server, so at pipeline 16 its own rate is the limit. A full run also drives
//! every load with redis-benchmark, without a claim, to show that both clients measure the same cost. Redis keeps its
//! append-only file and never rewrites it, so it does less than it would in production.

mod contest;
mod scenario;

use crate::claim::{Claim, Label};
use crate::experiment::{Context, Experiment, Findings, LabError};
use crate::load::benchmark_installed;
use contest::{Contest, Measured};
use headwater_host::clock::Nanos;
use scenario::{GROUPS, Promise, Scenario, scenarios};

/// The experiment's entry in the table.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "resp",
    summary: "server CPU for an operation and throughput of SET and GET over RESP",
    baseline: "redis-server with the same durability; floor: canned replies",
    claims: &["p1.resp.p16.*", "p1.resp.p16.*.throughput", "p1.resp.p1.*", "p1.resp.always.*"],
    run,
};

/// Time that a quick run reserves to stop its servers and to print.
const RESERVE: Nanos = Nanos::from_millis(1_500);
/// Maximum duration of one scenario of a quick run on a machine that is not overloaded.
const SCENARIO_QUICK: Nanos = Nanos::from_millis(1_500);

fn run(context: &Context) -> Result<Findings, LabError> {
    let mut findings = Findings::default();
    let mut ratios = Vec::new();
    let also_by_redis_benchmark = !context.is_quick() && benchmark_installed();
    for group in GROUPS.iter().filter(|group| !(group.full_only && context.is_quick())) {
        let contest = Contest::open(context, group.mode)?;
        for scenario in scenarios(group) {
            if context.time_left(RESERVE) < SCENARIO_QUICK {
                let why = "the 20 s of a quick run had passed: run it without --quick".to_owned();
                findings.claims.extend(claims(&scenario, &Err(why), ""));
                continue;
            }
            let measured = contest.measure(&scenario, context.is_quick())?;
            findings.rows.extend(measured.rows(&scenario));
            ratios.extend(measured.ratio_row(&scenario));
            if also_by_redis_benchmark {
                let scenario = scenario.by_redis_benchmark();
                let measured = contest.measure(&scenario, context.is_quick())?;
                findings.rows.extend(measured.rows(&scenario));
                ratios.extend(measured.ratio_row(&scenario));
            }
            let measured = contest.why_incomplete().map_or(Ok(measured), Err);
            findings.claims.extend(claims(&scenario, &measured, contest.redis_version()));
        }
    }
    findings.rows.extend(ratios);
    Ok(findings)
}

/// Evaluates the claims of a scenario.
fn claims(scenario: &Scenario, measured: &Result<Measured, String>, redis: &str) -> Vec<Claim> {
    let claim = |promise: &Promise| {
        let (name, goal, unit) = (scenario.claim(*promise), promise.goal(), promise.unit());
        let measured = match measured {
            Ok(measured) => measured,
            Err(why) => return Claim::not_run(name, goal, unit, why),
        };
        let (ratio, baseline) = match promise {
            Promise::Cpu(_) => (measured.cpu_ratio(), measured.cpu_baseline(redis)),
            Promise::Throughput(_) => (measured.throughput_ratio(), measured.rate_baseline(redis)),
        };
        let value = ratio.map_or(f64::NAN, |spread| spread.median);
        Claim::found(name, goal, (value, unit), Label::Measured, baseline)
    };
    scenario.promises.iter().map(claim).collect()
}
