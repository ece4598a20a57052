//! The command line: what a newcomer types first.
//!
//! In: arguments. Out: an exit code: 0 done, 1 failed, 2 asked for wrongly. Each command lives in a file of its own; this
//! one only tells them apart.

pub mod attach;
pub mod bench;
pub mod device;
pub mod doctor;
pub mod embedded;
pub mod failure;
pub mod kv;
pub mod kv_transfer;
pub mod lab;
pub mod namespace;
pub mod progress;
pub mod serve;
pub mod sim;

use clap::{CommandFactory as _, Parser, Subcommand};
use failure::Failure;
use std::process::ExitCode;

/// A key-value device on log-structured flash, served to Redis clients.
#[derive(Debug, Parser)]
#[command(
    name = "headwater",
    version,
    about,
    arg_required_else_help = true,
    after_help = "\
Start here:
  headwater serve                       start a node in ./data (Ctrl-C stops it)
  redis-cli -p 7379 set greeting hello  any Redis client works
  headwater kv get greeting             so does this one
  headwater doctor                      what this machine offers and what is used
Each command has its own --help with examples."
)]
pub struct Cli {
    /// What to do
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a node
    Serve(serve::ServeArgs),
    /// Read and write keys, load and dump folders
    Kv(kv::KvArgs),
    /// Say who may attach to a live node, and who does
    Attach(attach::AttachArgs),
    /// Make, change and remove namespaces
    Namespace(namespace::NamespaceArgs),
    /// List devices, ask one what it is, check the data directory of a stopped node
    Device(device::DeviceArgs),
    /// Say what this machine offers, what is used, why not, and what would change it
    Doctor(doctor::DoctorArgs),
    /// Put load on a live node and say how long the answers took
    Bench(bench::BenchArgs),
    /// Run the simulator
    Sim(sim::SimArgs),
    /// Run the experiments behind every figure
    Lab(lab::LabArgs),
    /// Print completions for a shell
    #[command(
        after_help = "Example:\n  headwater completions bash > ~/.local/share/bash-completion/completions/headwater"
    )]
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

/// Runs the command that the process was started with.
#[must_use]
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    start_log();
    match dispatch(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn dispatch(command: Command) -> Result<(), Failure> {
    match command {
        Command::Serve(args) => serve::run(args),
        Command::Kv(args) => kv::run(args),
        Command::Attach(args) => attach::run(args),
        Command::Namespace(args) => namespace::run(args),
        Command::Device(args) => device::run(args),
        Command::Sim(args) => sim::run(args),
        Command::Lab(args) => lab::run(args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "headwater", &mut script);
            failure::answer(&script)
        }
    }
}

fn start_log() {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_unset_or_bad| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_tree_is_consistent() {
        Cli::command().debug_assert();
    }
}
