//! `headwater run --mover -- PROGRAM`: starts a program with the preload library of the mover.
//!
//! Input: a program and its arguments. Output: this process becomes the program; its exit code is the program's. A program that
//! would not load the library is refused, with the reason.

use super::failure::CommandFailure;
use crate::preload::{find_library, find_program, preload_value, validate_program};
use clap::Args;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

/// Arguments of `headwater run`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  headwater run --mover -- cp big copy
  HEADWATER_PRELOAD_REPORT=report.txt headwater run --mover -- ./database --data /mnt/pmem
The page docs/operating/preload.md lists the functions and the settings.")]
pub struct RunArgs {
    /// Put the kernels of the mover between the program and the C library's memory functions, and pread and pwrite of files on
    /// persistent memory (DAX)
    #[arg(long, required = true)]
    mover: bool,

    /// The library; beside this program without it
    #[arg(long, value_name = "FILE", env = "HEADWATER_PRELOAD_LIBRARY")]
    library: Option<PathBuf>,

    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Runs `headwater run`. Returns only if the program does not start.
///
/// # Errors
/// The library or the program is missing, the program would not load the library, or the kernel refuses to start it.
pub fn run(args: RunArgs) -> Result<(), CommandFailure> {
    let RunArgs { mover: _, library, command } = args;
    let (name, arguments) = command.split_first().ok_or_else(|| CommandFailure::usage("name a program"))?;
    let library = find_library(library)?;
    let program = find_program(name)?;
    for symbol in validate_program(&program)? {
        tracing::warn!(
            "{} has a function `{symbol}` of its own, which the library does not reach",
            program.display()
        );
    }
    let error = Command::new(&program)
        .arg0(name)
        .args(arguments)
        .env("LD_PRELOAD", preload_value(&library, std::env::var_os("LD_PRELOAD")))
        .exec();
    Err(CommandFailure::failed(format!("{} cannot be started: {error}", program.display())))
}
