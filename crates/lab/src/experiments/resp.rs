//! Our RESP face beside redis-server and beside a server that only has its replies ready.
//!
//! In: the three servers, started with the same durability, and a client that drives each in turn. Out: CPU of the
//! server for an operation, operations a second, and the claims `p1.resp.*` as ratios of runs that stood side by side.
//!
//! The claims are measured with the lab's own client. With one core for the client, redis-benchmark gets no more out of a
//! server that only has its replies ready than out of redis-server, so at pipeline 16 its rates are its own. A full run
//! drives every load with it as well, without a claim, to show that both see the same cost.
//! Redis keeps its append-only file and never rewrites it, so it does less than it would in production.

mod contest;
mod scenario;

use crate::claim::{Claim, Label};
use crate::experiment::{Context, Experiment, Findings, LabError};
use crate::load::benchmark_installed;
use contest::{Contest, Measured};
use headwater_host::clock::Nanos;
use scenario::{GROUPS, Promise, Scenario, scenarios};

/// The table's line.
pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "resp",
    summary: "server CPU for an operation and throughput of SET and GET over RESP",
    baseline: "redis-server with the same durability; floor: canned replies",
    claims: &["p1.resp.p16.*", "p1.resp.p16.*.throughput", "p1.resp.p1.*", "p1.resp.always.*"],
    run,
};

/// What a quick run keeps back to stop its servers and to print.
const RESERVE: Nanos = Nanos::from_millis(1_500);
/// Longest that one scenario of a quick run takes on a machine that is not overrun.
const SCENARIO_QUICK: Nanos = Nanos::from_millis(1_500);

fn run(context: &Context) -> Result<Findings, LabError> {
    let mut findings = Findings::default();
    let mut ratios = Vec::new();
    let also_by_redis_benchmark = !context.is_quick() && benchmark_installed();
    for group in GROUPS.iter().filter(|group| !(group.full_only && context.is_quick())) {
        let contest = Contest::open(context, group.mode)?;
        for scenario in scenarios(group) {
            if context.time_left(RESERVE) < SCENARIO_QUICK {
                let why = "the 20 s of a quick run were over: run it without --quick".to_owned();
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

/// The claims of a scenario.
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
