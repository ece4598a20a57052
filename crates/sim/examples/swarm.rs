//! Runs fresh worlds on all cores: `cargo run --release -p headwater-sim --example swarm -- FOLDER SECONDS SEEDS FROM`.
//!
//! Input: the folder for what fails; then optionally seconds, number of seeds and first seed, each `-` for the default.
//! Output: counts and failing seeds; exit code 1 if a world failed.

use headwater_host::clock::Nanos;
use headwater_sim::replay::replay;
use headwater_sim::swarm::{SwarmPlan, run_swarm};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut out = std::io::stdout();
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().map(PathBuf::from);
    let numbers: Vec<Option<u64>> = arguments.map(|text| text.parse().ok()).collect();
    let number = |at: usize| numbers.get(at).copied().flatten();
    let (Some(folder), true) = (folder, number(0).is_some() || number(1).is_some()) else {
        let _ = writeln!(out, "usage: swarm FOLDER SECONDS [SEEDS [FROM]], where - is no limit");
        return ExitCode::from(2);
    };
    let fresh = SwarmPlan::fresh();
    let plan = SwarmPlan {
        seeds: number(1).unwrap_or(fresh.seeds),
        time: number(0).map_or(fresh.time, |seconds| Nanos(seconds.saturating_mul(1_000_000_000))),
        ..number(2).map_or(fresh, |first| fresh.from(first))
    };
    let _ = writeln!(out, "from seed {} on {} threads", plan.first, plan.threads);
    let report = run_swarm(&plan, replay);
    let _ = writeln!(out, "{report}");
    if report.failures.is_empty() {
        return ExitCode::SUCCESS;
    }
    let _ = match report.keep_failures(&folder) {
        Ok(()) => writeln!(out, "kept in {}", folder.display()),
        Err(error) => writeln!(out, "cannot keep them in {}: {error}", folder.display()),
    };
    ExitCode::FAILURE
}
