//! `headwater lab`: runs the experiments behind the published figures.
//!
//! Input: a name. Output: a table, or one JSON object `{experiment, machine, rows, claims}`. A claim that does not hold
//! is a result, not a failure; two runs that do not agree are one for `compare`.

use super::failure::{CommandFailure, write_json, write_line};
use clap::{Args, Subcommand};
use headwater_lab::RunOptions;
use std::path::{Path, PathBuf};

/// Arguments of `headwater lab`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  headwater lab list
  headwater lab run NAME --quick        at most 20 seconds (io: a minute; resp: 10 more for each peer after the first)
  headwater lab run NAME --json > docs/figures/NAME.json
  headwater lab figures --plots docs/figures docs/figures/*.json > docs/figures.md
  headwater lab compare A.json B.json --within 0.10")]
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
    /// Run an experiment and print its results
    Run {
        /// Name of the experiment
        name: String,
        /// End within 20 seconds (io: a minute): fewer rounds, the same claims
        #[arg(long)]
        quick: bool,
        /// Seed of all random choices
        #[arg(long, value_name = "N", default_value_t = 1)]
        seed: u64,
        /// Directory for scratch files, on the disk to be measured
        #[arg(long, value_name = "DIR")]
        scratch: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Write the page of figures from the JSON of runs
    Figures {
        /// Files that `headwater lab run NAME --json` wrote
        #[arg(required = true)]
        runs: Vec<PathBuf>,
        /// Directory for the plots of the runs, as SVG; without it none are written
        #[arg(long, value_name = "DIR")]
        plots: Option<PathBuf>,
    },
    /// Compare two runs of one experiment claim by claim; the exit code is 1 if one claim differs by more than --within
    Compare {
        /// File that `headwater lab run NAME --json` wrote
        first: PathBuf,
        /// File of the second run
        second: PathBuf,
        /// Difference of two values that agree, as a share of the lower one
        #[arg(long, value_name = "SHARE", default_value_t = 0.10, value_parser = parse_difference)]
        within: f64,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// Runs `headwater lab`.
///
/// # Errors
/// When there is no such experiment, the measurement failed, or compared runs do not agree.
pub fn run(args: LabArgs) -> Result<(), CommandFailure> {
    match args.op {
        LabOp::List { json: true } => write_json(&headwater_lab::list()),
        LabOp::List { json: false } => write_line(&headwater_lab::render_list(headwater_lab::list())),
        LabOp::Run { name, quick, seed, scratch, json } => {
            let outcome =
                headwater_lab::run(&name, RunOptions { quick, seed, scratch, ..RunOptions::default() })?;
            if json { write_json(&outcome) } else { write_line(&headwater_lab::render_table(&outcome)) }
        }
        LabOp::Figures { runs, plots } => {
            let runs = read_runs(&runs)?;
            let page = headwater_lab::render_figures(&runs)
                .map_err(|error| CommandFailure::failed(error.to_string()))?;
            if let Some(folder) = plots {
                write_plots(&runs, &folder)?;
            }
            write_line(page.trim_end())
        }
        LabOp::Compare { first, second, within, json } => {
            let comparison = headwater_lab::compare_runs(&read_run(&first)?, &read_run(&second)?, within)?;
            if json {
                write_json(&comparison)?;
            } else {
                write_line(headwater_lab::render_comparison(&comparison).trim_end())?;
            }
            if comparison.is_within() { Ok(()) } else { Err(CommandFailure::negative_result()) }
        }
    }
}

/// Parses the difference that two runs may have.
fn parse_difference(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|share: &f64| share.is_finite() && *share >= 0.0)
        .ok_or_else(|| format!("`{text}` is not a share: write 0.10 for 10 %"))
}

/// Returns a file with its text.
fn read_run(file: &Path) -> Result<(String, String), CommandFailure> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| CommandFailure::failed(format!("cannot read {}: {error}", file.display())))?;
    Ok((file.display().to_string(), text))
}

/// Returns the files with their text, in their order.
fn read_runs(files: &[PathBuf]) -> Result<Vec<(String, String)>, CommandFailure> {
    files.iter().map(|file| read_run(file)).collect()
}

/// Writes the plots of the runs into a folder.
fn write_plots(runs: &[(String, String)], folder: &Path) -> Result<(), CommandFailure> {
    let plots =
        headwater_lab::render_plots(runs).map_err(|error| CommandFailure::failed(error.to_string()))?;
    for plot in plots {
        let file = folder.join(plot.name);
        std::fs::write(&file, plot.svg).map_err(|error| {
            CommandFailure::failed(format!(
                "cannot write the plot {}: {error}; name a directory that you can write to",
                file.display()
            ))
        })?;
    }
    Ok(())
}
