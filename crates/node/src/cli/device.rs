//! `headwater device`: the data directory of a stopped node, looked at.
//!
//! In: a directory. Out: a table or JSON; exit code 1 when a key's record is damaged.

use super::failure::{Failure, answer_json, answer_line};
use super::progress::Progress;
use crate::config::{Config, Overrides};
use crate::data_dir::{DataDir, IfMissing};
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
    /// Read every record and compare its checksum
    #[command(after_help = "\
The device is opened as a node would open it: unfinished batches of a crash are cleaned up. No record that counts is
changed. Exit code 1 when a key's record cannot be read back.

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
    let directory = DataDir::take(&config.data, IfMissing::Refuse)?;
    let clock = Clock::start();
    let mut progress = Progress::start("opening");
    let opened = crate::device_file::open_device(&directory, &config, clock, &mut |recovery| {
        progress.phase(recovery.stage);
        progress.total(Some(recovery.total));
        progress.set(recovery.done, 0);
    });
    let mut device = opened.map_err(Failure::failed)?;
    progress.phase("checking");
    progress.total(Some(device.stats().keys.iter().sum()));
    let report = crate::check::check(&mut device, &clock, &mut |keys, bytes| progress.set(keys, bytes))?;
    drop(progress);
    if json {
        answer_json(&report)?;
    } else {
        answer_line(&report.to_string())?;
    }
    if report.is_whole() { Ok(()) } else { Err(Failure::answered()) }
}
