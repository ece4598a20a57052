//! The command line: parses the arguments and runs the command.
//!
//! Input: arguments. Output: an exit code: 0 success, 1 failure, 2 usage error. Each command has its own file.

pub mod attach;
pub mod backup;
pub mod bench;
pub mod device;
pub mod doctor;
pub mod embedded;
pub mod failure;
pub mod kv;
pub mod kv_transfer;
pub mod lab;
pub mod namespace;
pub mod password_hash;
pub mod progress;
pub mod run;
pub mod serve;
pub mod sim;

use clap::{CommandFactory as _, Parser, Subcommand};
use failure::CommandFailure;
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
  redis-cli -p 7379 set greeting hello  use any Redis client
  headwater kv get greeting             or the one built in
  headwater doctor                      show the features of this machine and which of them are used
Each command has its own --help with examples."
)]
pub struct Cli {
    /// Command to run
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Start a node
    Serve(serve::ServeArgs),
    /// Read and write keys, load and dump folders
    Kv(kv::KvArgs),
    /// Manage the rights of processes that attach to a live node, and list its clients
    Attach(attach::AttachArgs),
    /// Create, change and delete namespaces
    Namespace(namespace::NamespaceArgs),
    /// List devices, describe one, check or upgrade the data directory of a stopped node
    Device(device::DeviceArgs),
    /// Copy the data of a live node, at one moment, into a folder of backups
    Backup(backup::BackupArgs),
    /// Make a data directory from a backup
    Restore(backup::RestoreArgs),
    /// Read a password and print its salted hash, for --resp-password and CONFIG SET requirepass
    #[command(
        after_help = "Example:\n  (umask 077; headwater password-hash > password.hash)   type the password and Enter\n  \
                           headwater serve --resp-password password.hash"
    )]
    PasswordHash,
    /// Show which features of this machine are used, which are not and why, and how to enable them
    Doctor(doctor::DoctorArgs),
    /// Start a program whose copies, and whose reads and writes of persistent memory, the mover does
    Run(run::RunArgs),
    /// Put load on a live node or a device and measure latencies
    Bench(bench::BenchArgs),
    /// Run the simulator
    Sim(sim::SimArgs),
    /// Run the experiments behind the published figures
    Lab(lab::LabArgs),
    /// Print completions for a shell
    #[command(
        after_help = "Example:\n  headwater completions bash > ~/.local/share/bash-completion/completions/headwater"
    )]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// Runs the command named by the process's arguments.
#[must_use]
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    start_log();
    match dispatch(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

fn dispatch(command: CliCommand) -> Result<(), CommandFailure> {
    match command {
        CliCommand::Serve(args) => serve::run(args),
        CliCommand::Kv(args) => kv::run(args),
        CliCommand::Attach(args) => attach::run(args),
        CliCommand::Namespace(args) => namespace::run(args),
        CliCommand::Device(args) => device::run(args),
        CliCommand::Backup(args) => backup::run(&args),
        CliCommand::Restore(args) => backup::run_restore(&args),
        CliCommand::Sim(args) => sim::run(args),
        CliCommand::Lab(args) => lab::run(args),
        CliCommand::PasswordHash => password_hash::run(),
        CliCommand::Doctor(args) => doctor::run(&args),
        CliCommand::Run(args) => run::run(args),
        CliCommand::Bench(args) => bench::run(&args),
        CliCommand::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "headwater", &mut script);
            failure::write_output(&script)
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
    fn command_tree_is_consistent() {
        Cli::command().debug_assert();
    }
}
