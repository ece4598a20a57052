//! Our RESP face beside redis-server and beside a server that only has its replies ready.
//!
//! In: the three servers, started with the same durability, and redis-benchmark to drive each in turn. Out: CPU of the
//! server for an operation, operations a second, and the claims `p1.resp.*` as ratios of runs that stood side by side.
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
    claims: &[
        "p1.resp.p16.*",
        "p1.resp.p16.*.throughput",
        "p1.resp.p1.*",
        "p1.resp.always.*",
    ],
    run,
};

/// What a quick run keeps back to stop its servers and to print.
const RESERVE: Nanos = Nanos::from_millis(1_500);
/// Longest that one scenario of a quick run takes on a machine that is not overrun.
const SCENARIO_QUICK: Nanos = Nanos::from_millis(2_000);

fn run(context: &Context) -> Result<Findings, LabError> {
    let mut findings = Findings::default();
    let installed = benchmark_installed();
    for group in GROUPS
        .iter()
        .filter(|group| !(group.full_only && context.is_quick()))
    {
        let contest = match &installed {
            Ok(()) => Contest::open(context, group.mode),
            Err(why) => Err(why.clone()),
        };
        for scenario in scenarios(group) {
            match &contest {
                Ok(_) if context.time_left(RESERVE) < SCENARIO_QUICK => {
                    let why = "the 20 s of a quick run were over: run it without --quick";
                    findings.claims.extend(not_run(&scenario, why));
                }
                Ok(contest) => take(&mut findings, contest, &scenario, context)?,
                Err(why) => findings.claims.extend(not_run(&scenario, why)),
            }
        }
    }
    Ok(findings)
}

fn take(
    findings: &mut Findings,
    contest: &Contest,
    scenario: &Scenario,
    context: &Context,
) -> Result<(), LabError> {
    let measured = contest.measure(scenario, context.is_quick())?;
    findings.rows.extend(measured.rows(scenario));
    match contest.why_incomplete() {
        Some(why) => findings.claims.extend(not_run(scenario, &why)),
        None => findings.claims.extend(found(scenario, &measured, contest)),
    }
    Ok(())
}

fn found(scenario: &Scenario, measured: &Measured, contest: &Contest) -> Vec<Claim> {
    let version = contest.redis_version();
    let claim = |promise: &Promise| match promise {
        Promise::Cpu(goal) => {
            let baseline = format!(
                "{version} at {:.2} us an operation; canned replies {:.2} us",
                measured.cpu_us(Contest::REDIS),
                measured.cpu_us(Contest::CANNED)
            );
            let value = (measured.cpu_ratio(), "ratio of CPU an operation");
            Claim::found(scenario.claim(promise), *goal, value, Label::Measured, baseline)
        }
        Promise::Throughput(goal) => {
            let baseline = format!(
                "{version} at {:.0} operations a second; canned replies {:.0}",
                measured.ops_per_s(Contest::REDIS),
                measured.ops_per_s(Contest::CANNED)
            );
            let value = (measured.throughput_ratio(), "ratio of operations a second");
            Claim::found(scenario.claim(promise), *goal, value, Label::Measured, baseline)
        }
    };
    scenario.promises.iter().map(claim).collect()
}

fn not_run(scenario: &Scenario, why: &str) -> Vec<Claim> {
    let claim = |promise: &Promise| Claim::not_run(scenario.claim(promise), promise.goal(), "ratio", why);
    scenario.promises.iter().map(claim).collect()
}
