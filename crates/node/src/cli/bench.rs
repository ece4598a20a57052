//! `headwater bench`: arguments, the filling of the keys, and the report.
//!
//! Input: arguments. Output: a table or JSON on standard output; exit code 1 when a command was refused or a value
//! wrong.

use super::failure::{CommandFailure, write_json, write_line};
use super::progress::ProgressDisplay;
use crate::bench::device::DevicePlan;
use crate::bench::workload::VERIFIABLE_BYTES;
use crate::bench::{BenchPlan, BenchWorkload, KeyDistribution, LoadPacing, RunEnd, VerifyMode};
use crate::config::{ByteSize, read_client_password};
use crate::kv::resp_client::NodeEndpoint;
use clap::{Args, ValueEnum};
use headwater_host::clock::Nanos;
use headwater_host::width::narrow;
use headwater_io::completion::{CompletionAggregation, CompletionPolicy, PollPace};
use headwater_io::scheduler::SchedulingPolicy;
use headwater_ssd::limits::VALUE_BYTES_MAX;
use std::path::PathBuf;
use std::time::Duration;

/// Default bytes of a value.
const VALUE_BYTES_DEFAULT: usize = 100;
/// Default share of reads on a node.
const READ_SHARE_DEFAULT: f64 = 0.9;

/// Arguments of `headwater bench`.
#[derive(Debug, Args)]
#[command(after_help = "\
Closed loop (default): each connection sends --depth commands and waits for their replies. This measures the maximum
rate of the node. Open loop (--rate): commands are due at a fixed rate, and latency counts from the time a command was
due. This measures what a user sees. If `unsent` is not 0, the rate was more than the node can serve.

Examples:
  headwater bench                                    90 % reads, 100 B, depth 1
  headwater bench --depth 16 --read-share 0          pipelined writes
  headwater bench --sizes 100,4096 --dist zipf:0.9 --connections 64 --duration 30
  headwater bench --rate 20000 --verify --json       open loop, every value checked
  headwater bench --device null:1G --depth 32        cost of Headwater's own I/O path
  headwater bench --device io-uring:/dev/nvme0n1 --sizes 64K --completion thread   reads only without --read-share")]
pub struct BenchArgs {
    /// URL of a block device to use instead of a live node, through a handle
    #[arg(long, value_name = "URL", conflicts_with_all = ["resp", "rate", "connections", "keys", "dist", "verify"])]
    device: Option<String>,
    /// With --device: how to wait for completions
    #[arg(long, value_name = "HOW", requires = "device", default_value = "poll")]
    completion: CompletionMode,
    /// With --device: order in which requests are sent to the device
    #[arg(long, value_name = "HOW", requires = "device", default_value = "fifo")]
    scheduler: SchedulerKind,
    /// Live node: HOST:PORT or unix:PATH
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7379", env = "HEADWATER_RESP")]
    resp: NodeEndpoint,
    /// File whose first line is the password of the live node
    #[arg(long, value_name = "FILE", env = "HEADWATER_RESP_PASSWORD", conflicts_with = "device")]
    resp_password: Option<PathBuf>,
    /// Namespace, 1 to 16
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    namespace: u8,
    /// Sizes of values, all equally frequent [default: 100]; with --device the size of a request [default: 4096]
    #[arg(long, value_name = "SIZE,..", value_delimiter = ',')]
    sizes: Vec<ByteSize>,
    /// Share of reads, 0 to 1 [default: 0.9; with --device 1, so that nothing is written]
    #[arg(long, value_name = "SHARE")]
    read_share: Option<f64>,
    /// Distribution of keys: uniform, zipf or zipf:THETA
    #[arg(long, value_name = "DIST", default_value = "uniform")]
    dist: KeyDistribution,
    /// Number of keys
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000_000))]
    keys: u64,
    /// Commands in flight on each connection
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    depth: u32,
    /// Threads of the benchmark
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    threads: u32,
    /// Connections of all threads together
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// Seconds to run
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, conflicts_with = "requests")]
    duration: f64,
    /// Number of commands to run, instead of a duration
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// Open loop: commands due a second, of all threads together
    #[arg(long, value_name = "N")]
    rate: Option<f64>,
    /// Compare every value that is read, byte for byte
    #[arg(long)]
    verify: bool,
    /// Do not store every key first
    #[arg(long)]
    no_fill: bool,
    /// Seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Maximum wait for one reply, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// The method of waiting for completions of a device.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum CompletionMode {
    /// Poll continuously
    Poll,
    /// Poll on a thread whose period follows size and latency
    Thread,
    /// Sleep for a part of the expected latency, then poll
    Hybrid,
    /// Sleep until the device signals a completion
    Interrupt,
}

/// The order in which requests are sent to a device.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum SchedulerKind {
    /// In order of arrival
    Fifo,
    /// By deadline, which is 1 ms after arrival
    Deadline,
    /// By weight of classes; the benchmark uses one class
    Share,
    /// By priority of classes; the benchmark uses one class
    Priority,
}

fn device_plan(args: &BenchArgs, url: &str) -> Result<DevicePlan, CommandFailure> {
    let bytes = match args.sizes.as_slice() {
        [] => 4_096,
        [size] => usize::try_from(size.0)
            .map_err(|error| CommandFailure::usage(format!("--sizes {size}: {error}")))?,
        _ => return Err(CommandFailure::usage("--sizes: with --device give only one size")),
    };
    let pace = PollPace::Adaptive;
    Ok(DevicePlan {
        url: url.to_owned(),
        bytes,
        read_share: checked_share(args.read_share.unwrap_or(1.0))?,
        depth: args.depth,
        threads: args.threads,
        until: until(args)?,
        completion: match args.completion {
            CompletionMode::Poll => CompletionPolicy::Inline,
            CompletionMode::Thread => CompletionPolicy::Thread(pace, CompletionAggregation::NONE),
            CompletionMode::Hybrid => CompletionPolicy::Paced(pace),
            CompletionMode::Interrupt => CompletionPolicy::Interrupt(CompletionAggregation::NONE),
        },
        scheduling: match args.scheduler {
            SchedulerKind::Fifo => SchedulingPolicy::Fifo,
            SchedulerKind::Deadline => SchedulingPolicy::deadline(Nanos::from_millis(1)),
            SchedulerKind::Share => SchedulingPolicy::share(&[1]),
            SchedulerKind::Priority => SchedulingPolicy::Priority { overtakes_max: 16 },
        },
        seed: args.seed,
    })
}

fn run_on_device(args: &BenchArgs, url: &str) -> Result<(), CommandFailure> {
    let report = crate::bench::device::run(&device_plan(args, url)?)?;
    if args.json {
        write_json(&report)?;
    } else {
        write_line(&report.to_string())?;
    }
    match report.failed {
        0 => Ok(()),
        failed => Err(CommandFailure::failed(format!("{failed} requests failed"))),
    }
}

fn checked_share(share: f64) -> Result<f64, CommandFailure> {
    if (0.0..=1.0).contains(&share) {
        return Ok(share);
    }
    Err(CommandFailure::usage(format!("--read-share {share}: give a share between 0 and 1")))
}

fn until(args: &BenchArgs) -> Result<RunEnd, CommandFailure> {
    Ok(match args.requests {
        Some(count) => RunEnd::Commands(count),
        None => RunEnd::Elapsed(seconds(args.duration)?),
    })
}

/// Runs `headwater bench`.
///
/// # Errors
/// When the node or device cannot be reached, refuses commands, or returns wrong values.
pub fn run(args: &BenchArgs) -> Result<(), CommandFailure> {
    if let Some(url) = &args.device {
        return run_on_device(args, url);
    }
    let plan = plan(args)?;
    if !args.no_fill && plan.workload.read_share > 0.0 {
        let mut progress = ProgressDisplay::start("filling");
        progress.total(Some(plan.workload.keys));
        let filled = crate::bench::fill(&plan, &mut |done| progress.set(done, 0))?;
        if let Some(refusal) = filled.refusal {
            return Err(CommandFailure::failed(format!("the node refused to store the keys: {refusal}")));
        }
    }
    let mut progress = ProgressDisplay::start("running");
    progress.total(args.requests);
    let report = crate::bench::run(&plan, &mut |done| progress.set(done, 0))?;
    drop(progress);
    if args.json {
        write_json(&report)?;
    } else {
        write_line(&report.to_string())?;
    }
    if report.refused > 0 || report.wrong > 0 {
        return Err(CommandFailure::failed(format!(
            "{} commands refused, {} values wrong",
            report.refused, report.wrong
        )));
    }
    Ok(())
}

fn plan(args: &BenchArgs) -> Result<BenchPlan, CommandFailure> {
    let mut sizes = Vec::with_capacity(args.sizes.len());
    for size in &args.sizes {
        match usize::try_from(size.0) {
            Ok(bytes) if bytes <= VALUE_BYTES_MAX => sizes.push(bytes),
            _ => {
                return Err(CommandFailure::usage(format!(
                    "--sizes {size}: a value has at most {} MiB",
                    VALUE_BYTES_MAX >> 20
                )));
            }
        }
    }
    if sizes.is_empty() {
        sizes.push(VALUE_BYTES_DEFAULT);
    }
    let read_share = checked_share(args.read_share.unwrap_or(READ_SHARE_DEFAULT))?;
    if args.verify && sizes.iter().any(|&size| size < VERIFIABLE_BYTES) {
        return Err(CommandFailure::usage(format!(
            "--verify: values below {VERIFIABLE_BYTES} bytes cannot be verified; give larger --sizes"
        )));
    }
    if args.connections < args.threads {
        return Err(CommandFailure::usage(format!(
            "--connections {} is less than --threads {}: each thread needs a connection",
            args.connections, args.threads
        )));
    }
    let until = until(args)?;
    let pace = match args.rate {
        None => LoadPacing::Closed,
        Some(rate) if rate.is_finite() && rate >= 1.0 => LoadPacing::Open(rate),
        Some(rate) => {
            return Err(CommandFailure::usage(format!("--rate {rate}: give at least 1 command a second")));
        }
    };
    let count = |number: u32| number as usize;
    let password = args.resp_password.as_deref().map(read_client_password).transpose();
    Ok(BenchPlan {
        endpoint: args.resp.clone(),
        password: password.map_err(CommandFailure::failed)?,
        namespace: args.namespace,
        workload: BenchWorkload {
            keys: args.keys,
            distribution: args.dist,
            sizes,
            read_share,
            seed: args.seed,
        },
        depth: count(args.depth),
        threads: count(args.threads),
        connections: count(args.connections),
        pace,
        until,
        verify: if args.verify { VerifyMode::Yes } else { VerifyMode::No },
        limit: Duration::from_secs(args.timeout),
    })
}

fn seconds(duration: f64) -> Result<Nanos, CommandFailure> {
    match Duration::try_from_secs_f64(duration) {
        Ok(span) if !span.is_zero() && span.as_secs() <= 86_400 => Ok(Nanos(narrow(span.as_nanos()))),
        _ => Err(CommandFailure::usage(format!(
            "--duration {duration}: give seconds, above 0 and at most 86400"
        ))),
    }
}
