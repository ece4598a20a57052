//! `headwater sim`: runs the simulator, with fresh seeds or with a given one.
//!
//! Input: a seed, or a time or number of seeds. Output: the events line by line with `--verbose`, and a summary; exit
//! code 1 when a promise was broken.

use super::failure::{CommandFailure, write_json, write_line};
use clap::{Args, Subcommand};
use headwater_host::clock::Nanos;
use headwater_sim::swarm::{SwarmPlan, run_swarm};
use std::path::PathBuf;

/// Arguments of `headwater sim`.
#[derive(Debug, Args)]
pub struct SimArgs {
    #[command(subcommand)]
    op: SimOp,
}

#[derive(Debug, Subcommand)]
enum SimOp {
    /// Repeat the run of a seed: the same commands, faults and power cuts, completion by completion
    #[command(after_help = "\
Example:
  headwater sim replay --seed 4711 --verbose")]
    Replay {
        /// The seed that a failed run printed
        #[arg(long, value_name = "N")]
        seed: u64,
        /// Print every command, completion and power cut
        #[arg(short, long)]
        verbose: bool,
        /// Print the report as JSON
        #[arg(long, conflicts_with = "verbose")]
        json: bool,
    },
    /// Run many seeds on all cores, and keep the worlds that fail
    #[command(after_help = "\
Example:
  headwater sim swarm --seconds 60")]
    Swarm(SwarmArgs),
}

/// Arguments of `headwater sim swarm`.
#[derive(Debug, Args)]
#[group(required = true, multiple = true, id = "end", args = ["seconds", "seeds"])]
struct SwarmArgs {
    /// End after this many seconds
    #[arg(long, value_name = "N")]
    seconds: Option<u64>,
    /// End after this many seeds
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// The first seed; without it, one that no run had before, and worlds of all kinds
    #[arg(long, value_name = "N")]
    from: Option<u64>,
    /// Threads; without it, one for each core
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// The folder that gets a file for each world that fails
    #[arg(long, value_name = "FOLDER", default_value = "swarm-failures")]
    keep: PathBuf,
}

/// Runs `headwater sim`.
///
/// # Errors
/// When a promise was broken.
pub fn run(args: SimArgs) -> Result<(), CommandFailure> {
    let (seed, verbose, json) = match args.op {
        SimOp::Replay { seed, verbose, json } => (seed, verbose, json),
        SimOp::Swarm(args) => return swarm(&args),
    };
    let mut closed = None;
    let mut print = |line: &str| {
        if closed.is_none() {
            closed = write_line(line).err();
        }
    };
    let report = headwater_sim::replay::replay(
        seed,
        verbose.then_some(&mut print as headwater_sim::world::LineSink<'_>),
    )?;
    if json {
        return write_json(&serde_json::json!({
            "seed": report.seed,
            "commands": report.commands,
            "completions": report.completions,
            "cuts": report.cuts,
            "cuts_in_recovery": report.cuts_in_recovery,
            "virtual_time_ns": report.virtual_time.0,
            "digest": format!("{:016x}", report.digest),
        }));
    }
    write_line(&format!(
        "seed {}: every promise kept; {} commands, {} completions, {} power cuts ({} during recovery), {} of virtual time, \
         digest {:016x}",
        report.seed,
        report.commands,
        report.completions,
        report.cuts,
        report.cuts_in_recovery,
        report.virtual_time,
        report.digest
    ))
}

/// Runs the swarm.
fn swarm(args: &SwarmArgs) -> Result<(), CommandFailure> {
    let fresh = SwarmPlan::fresh();
    let plan = SwarmPlan {
        seeds: args.seeds.unwrap_or(fresh.seeds),
        time: args.seconds.map_or(fresh.time, |seconds| Nanos(seconds.saturating_mul(1_000_000_000))),
        threads: args.threads.unwrap_or(fresh.threads),
        ..args.from.map_or(fresh, |first| fresh.from(first))
    };
    write_line(&format!("from seed {} on {} threads", plan.first, plan.threads))?;
    let report = run_swarm(&plan, headwater_sim::replay::replay);
    write_line(&report.to_string())?;
    if report.failures.is_empty() {
        return Ok(());
    }
    report.keep_failures(&args.keep).map_err(|error| {
        CommandFailure::failed(format!("cannot keep the failed worlds in {}: {error}", args.keep.display()))
    })?;
    write_line(&format!("kept in {}", args.keep.display()))?;
    Err(CommandFailure::negative_result())
}
