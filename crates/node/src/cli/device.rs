//! `headwater device`: the data directory of a stopped node, looked at.
//!
//! In: a directory. Out: a table or JSON; exit code 1 when something is wrong with it.

use super::failure::{Failure, answer_json, answer_line};
use super::progress::Progress;
use crate::config::{Config, Overrides};
use crate::data_dir::DataDir;
use clap::{Args, Subcommand};
use headwater_host::clock::Clock;
use std::path::PathBuf;

/// Arguments of `headwater device`.
#[derive(Debug, Args)]
pub struct DeviceArgs {
    #[command(subcommand)]
    op: DeviceOp,
}

#[derive(Debug, Subcommand)]
enum DeviceOp {
    /// Read every record, the index and the checkpoint
    #[command(after_help = "\
Nothing is changed: the flash is opened to be read. Every record that the index names is read, its checksum computed and
its key hashed; then the index is built again from the whole log and held against the one that the checkpoint gives. Keys
are named by their hashes and places. Exit code 1 when a record, the checkpoint or the index is not what it should be.

Example:
  headwater device check ./data")]
    Check {
        /// Data directory of a stopped node
        #[arg(value_name = "DIR", default_value = "data")]
        data: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// Runs `headwater device`.
///
/// # Errors
/// When the directory cannot be opened, or something is damaged.
pub fn run(args: DeviceArgs) -> Result<(), Failure> {
    let DeviceOp::Check { data, json } = args.op;
    let config = Config::assemble(None, Overrides { data: Some(data), ..Overrides::default() })?;
    let directory = DataDir::look(&config.data)?;
    let mut progress = Progress::start("opening");
    let report = crate::device_file::check_device(&directory, &config, Clock::start(), &mut |step| {
        progress.phase(step.stage);
        progress.total(Some(step.total));
        progress.set(step.done, 0);
    })
    .map_err(Failure::failed)?;
    drop(progress);
    if json {
        answer_json(&report)?;
    } else {
        answer_line(&report.to_string())?;
    }
    if report.is_whole { Ok(()) } else { Err(Failure::answered()) }
}
