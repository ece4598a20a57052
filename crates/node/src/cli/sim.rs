//! `headwater sim`: repeats a run of the simulator from its seed.
//!
//! Input: a seed. Output: the events line by line with `--verbose`, and a summary; exit code 1 when a promise was
//! broken.

use super::failure::{CommandFailure, write_json, write_line};
use clap::{Args, Subcommand};

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
}

/// Runs `headwater sim`.
///
/// # Errors
/// When a promise was broken.
pub fn run(args: SimArgs) -> Result<(), CommandFailure> {
    let SimOp::Replay { seed, verbose, json } = args.op;
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
