//! `headwater lab`: the experiments behind every figure.
//!
//! In: a name. Out: a table, or one JSON object `{experiment, machine, rows, claims}`. A claim that does not hold is an
//! answer, not a failure.

use super::failure::{Failure, answer_json, answer_line};
use clap::{Args, Subcommand};
use headwater_lab::Options;
use std::path::PathBuf;

/// Arguments of `headwater lab`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  headwater lab list
  headwater lab run NAME --quick        at most 20 seconds (io: a minute)
  headwater lab run NAME --json > result.json")]
pub struct LabArgs {
    #[command(subcommand)]
    op: LabOp,
}

#[derive(Debug, Subcommand)]
enum LabOp {
    /// List the experiments
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Run one and print what it found
    Run {
        /// Its name
        name: String,
        /// End within 20 seconds (io: a minute): fewer rounds, the same claims
        #[arg(long)]
        quick: bool,
        /// Seed of everything random
        #[arg(long, value_name = "N", default_value_t = 1)]
        seed: u64,
        /// Where scratch files go: choose the disk that matters
        #[arg(long, value_name = "DIR")]
        scratch: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// Runs `headwater lab`.
///
/// # Errors
/// When there is no such experiment, or measuring itself failed.
pub fn run(args: LabArgs) -> Result<(), Failure> {
    match args.op {
        LabOp::List { json: true } => answer_json(&headwater_lab::list()),
        LabOp::List { json: false } => answer_line(&headwater_lab::render_list(headwater_lab::list())),
        LabOp::Run { name, quick, seed, scratch, json } => {
            let outcome = headwater_lab::run(&name, Options { quick, seed, scratch, ..Options::default() })?;
            if json { answer_json(&outcome) } else { answer_line(&headwater_lab::render_table(&outcome)) }
        }
    }
}
