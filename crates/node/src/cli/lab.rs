//! `headwater lab`: runs the experiments behind the published figures.
//!
//! Input: a name. Output: a table, or one JSON object `{experiment, machine, rows, claims}`. A claim that does not hold
//! is a result, not a failure.

use super::failure::{CommandFailure, write_json, write_line};
use clap::{Args, Subcommand};
use headwater_lab::RunOptions;
use std::path::{Path, PathBuf};

/// Arguments of `headwater lab`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  headwater lab list
  headwater lab run NAME --quick        at most 20 seconds (io: a minute)
  headwater lab run NAME --json > docs/figures/NAME.json
  headwater lab figures --plots docs/figures docs/figures/*.json > docs/figures.md")]
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
}

/// Runs `headwater lab`.
///
/// # Errors
/// When there is no such experiment, or the measurement failed.
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
    }
}

/// Returns the files with their text, in their order.
fn read_runs(files: &[PathBuf]) -> Result<Vec<(String, String)>, CommandFailure> {
    let mut runs = Vec::with_capacity(files.len());
    for file in files {
        let text = std::fs::read_to_string(file)
            .map_err(|error| CommandFailure::failed(format!("cannot read {}: {error}", file.display())))?;
        runs.push((file.display().to_string(), text));
    }
    Ok(runs)
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
