//! `headwater bench`: arguments, filling, the report.
//!
//! In: arguments. Out: a table or JSON on standard output; exit code 1 when anything was refused or wrong.

use super::failure::{Failure, answer_json, answer_line};
use super::progress::Progress;
use crate::bench::device::DevicePlan;
use crate::bench::workload::VERIFIABLE_BYTES;
use crate::bench::{Distribution, Pace, Plan, Until, Verify, Workload};
use crate::config::Bytes;
use crate::kv::resp_client::Endpoint;
use clap::{Args, ValueEnum};
use headwater_host::clock::Nanos;
use headwater_io::completion::{Aggregation, CompletionPolicy, Pace as Looks};
use headwater_io::scheduler::Scheduling;
use headwater_ssd::limits::VALUE_BYTES_MAX;
use std::time::Duration;

/// Bytes of a value, unless sizes are given.
const VALUE_BYTES_DEFAULT: usize = 100;
/// Share of reads on a node, unless it is given.
const READ_SHARE_DEFAULT: f64 = 0.9;

/// Arguments of `headwater bench`.
#[derive(Debug, Args)]
#[command(after_help = "\
Closed loop (default): each connection sends --depth commands and waits for their answers: what the node can do.
Open loop (--rate): commands are due at that rate whatever the node does, and latency counts from the moment a command
was due: what a user feels. A report whose `unsent` is not 0 asked for more than the node can do.

Examples:
  headwater bench                                    90 % reads, 100 B, depth 1
  headwater bench --depth 16 --read-share 0          pipelined writes
  headwater bench --sizes 100,4096 --dist zipf:0.9 --connections 64 --duration 30
  headwater bench --rate 20000 --verify --json       open loop, every value checked
  headwater bench --device null:1G --depth 32        what our own path costs
  headwater bench --device io-uring:/dev/nvme0n1 --sizes 64K --completion thread   reads; --read-share writes too")]
pub struct BenchArgs {
    /// A device by its URL, instead of a live node: blocks, read and written through a handle
    #[arg(long, value_name = "URL", conflicts_with_all = ["resp", "rate", "connections", "keys", "dist", "verify"])]
    device: Option<String>,
    /// With --device: how completions are found
    #[arg(long, value_name = "HOW", requires = "device", default_value = "poll")]
    completion: Finding,
    /// With --device: which request goes next
    #[arg(long, value_name = "HOW", requires = "device", default_value = "fifo")]
    scheduler: Order,
    /// Live node: HOST:PORT or unix:PATH
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7379", env = "HEADWATER_RESP")]
    resp: Endpoint,
    /// Namespace, 1 to 16
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    namespace: u8,
    /// Sizes of values, each as often as every other, 100 unless said; with --device the size of requests, 4096
    #[arg(long, value_name = "SIZE,..", value_delimiter = ',')]
    sizes: Vec<Bytes>,
    /// Share of reads, 0 to 1; 0.9 unless said, with --device 1, which changes nothing there
    #[arg(long, value_name = "SHARE")]
    read_share: Option<f64>,
    /// How keys are chosen: uniform, zipf or zipf:THETA
    #[arg(long, value_name = "DIST", default_value = "uniform")]
    dist: Distribution,
    /// How many keys
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000_000))]
    keys: u64,
    /// Commands on the way on each connection
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    depth: u32,
    /// Threads of this program
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    threads: u32,
    /// Connections, over all threads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// Seconds to run
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, conflicts_with = "requests")]
    duration: f64,
    /// Commands to run, instead of a time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// Open loop: commands due a second, over all threads
    #[arg(long, value_name = "N")]
    rate: Option<f64>,
    /// Compare every value that is read, byte for byte
    #[arg(long)]
    verify: bool,
    /// Do not store every key first
    #[arg(long)]
    no_fill: bool,
    /// Seed of every choice
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Longest wait for one answer, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// How completions of a device are found.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Finding {
    /// By looking again and again
    Poll,
    /// By a thread whose period follows size and latency
    Thread,
    /// Asleep for a part of what is expected, then looking
    Hybrid,
    /// Asleep until the device says so
    Interrupt,
}

/// Which request of a device goes next.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Order {
    /// The one that came first
    Fifo,
    /// The one whose deadline, 1 ms after it came, is first
    Deadline,
    /// By weight of classes, of which there is one here
    Share,
    /// By urgency of classes, of which there is one here
    Priority,
}

fn device_plan(args: &BenchArgs, url: &str) -> Result<DevicePlan, Failure> {
    let bytes = match args.sizes.as_slice() {
        [] => 4_096,
        [size] => {
            usize::try_from(size.0).map_err(|error| Failure::usage(format!("--sizes {size}: {error}")))?
        }
        _ => return Err(Failure::usage("--sizes: one size of requests with --device")),
    };
    let pace = Looks::Adaptive;
    Ok(DevicePlan {
        url: url.to_owned(),
        bytes,
        read_share: share_of(args.read_share.unwrap_or(1.0))?,
        depth: args.depth,
        threads: args.threads,
        until: until(args)?,
        completion: match args.completion {
            Finding::Poll => CompletionPolicy::Inline,
            Finding::Thread => CompletionPolicy::Thread(pace, Aggregation::NONE),
            Finding::Hybrid => CompletionPolicy::Paced(pace),
            Finding::Interrupt => CompletionPolicy::Interrupt(Aggregation::NONE),
        },
        scheduling: match args.scheduler {
            Order::Fifo => Scheduling::Fifo,
            Order::Deadline => Scheduling::deadline(Nanos::from_millis(1)),
            Order::Share => Scheduling::share(&[1]),
            Order::Priority => Scheduling::Priority { overtakes_max: 16 },
        },
        seed: args.seed,
    })
}

fn run_on_device(args: &BenchArgs, url: &str) -> Result<(), Failure> {
    let report = crate::bench::device::run(&device_plan(args, url)?)?;
    if args.json {
        answer_json(&report)?;
    } else {
        answer_line(&report.to_string())?;
    }
    match report.failed {
        0 => Ok(()),
        failed => Err(Failure::failed(format!("{failed} requests failed"))),
    }
}

fn share_of(share: f64) -> Result<f64, Failure> {
    if (0.0..=1.0).contains(&share) {
        return Ok(share);
    }
    Err(Failure::usage(format!("--read-share {share}: give a share between 0 and 1")))
}

fn until(args: &BenchArgs) -> Result<Until, Failure> {
    Ok(match args.requests {
        Some(count) => Until::Commands(count),
        None => Until::Elapsed(seconds(args.duration)?),
    })
}

/// Runs `headwater bench`.
///
/// # Errors
/// When the node cannot be reached, refuses commands, or gives wrong values.
pub fn run(args: &BenchArgs) -> Result<(), Failure> {
    if let Some(url) = &args.device {
        return run_on_device(args, url);
    }
    let plan = plan(args)?;
    if !args.no_fill && plan.workload.read_share > 0.0 {
        let mut progress = Progress::start("filling");
        progress.total(Some(plan.workload.keys));
        let filled = crate::bench::fill(&plan, &mut |done| progress.set(done, 0))?;
        if let Some(refusal) = filled.refusal {
            return Err(Failure::failed(format!("the node refused to store the keys: {refusal}")));
        }
    }
    let mut progress = Progress::start("running");
    progress.total(args.requests);
    let report = crate::bench::run(&plan, &mut |done| progress.set(done, 0))?;
    drop(progress);
    if args.json {
        answer_json(&report)?;
    } else {
        answer_line(&report.to_string())?;
    }
    if report.refused > 0 || report.wrong > 0 {
        return Err(Failure::failed(format!(
            "{} commands refused, {} values wrong",
            report.refused, report.wrong
        )));
    }
    Ok(())
}

fn plan(args: &BenchArgs) -> Result<Plan, Failure> {
    let mut sizes = Vec::with_capacity(args.sizes.len());
    for size in &args.sizes {
        match usize::try_from(size.0) {
            Ok(bytes) if bytes <= VALUE_BYTES_MAX => sizes.push(bytes),
            _ => {
                return Err(Failure::usage(format!(
                    "--sizes {size}: a value has at most {} MiB",
                    VALUE_BYTES_MAX >> 20
                )));
            }
        }
    }
    if sizes.is_empty() {
        sizes.push(VALUE_BYTES_DEFAULT);
    }
    let read_share = share_of(args.read_share.unwrap_or(READ_SHARE_DEFAULT))?;
    if args.verify && sizes.iter().any(|&size| size < VERIFIABLE_BYTES) {
        return Err(Failure::usage(format!(
            "--verify: values below {VERIFIABLE_BYTES} bytes cannot be told apart"
        )));
    }
    if args.connections < args.threads {
        return Err(Failure::usage(format!(
            "--connections {} is less than --threads {}: each thread needs one",
            args.connections, args.threads
        )));
    }
    let until = until(args)?;
    let pace = match args.rate {
        None => Pace::Closed,
        Some(rate) if rate.is_finite() && rate >= 1.0 => Pace::Open(rate),
        Some(rate) => {
            return Err(Failure::usage(format!("--rate {rate}: give at least 1 command a second")));
        }
    };
    let count = |number: u32| usize::try_from(number).unwrap_or(1);
    Ok(Plan {
        endpoint: args.resp.clone(),
        namespace: args.namespace,
        workload: Workload { keys: args.keys, distribution: args.dist, sizes, read_share, seed: args.seed },
        depth: count(args.depth),
        threads: count(args.threads),
        connections: count(args.connections),
        pace,
        until,
        verify: if args.verify { Verify::Yes } else { Verify::No },
        limit: Duration::from_secs(args.timeout),
    })
}

fn seconds(duration: f64) -> Result<Nanos, Failure> {
    match Duration::try_from_secs_f64(duration) {
        Ok(span) if !span.is_zero() && span.as_secs() <= 86_400 => {
            Ok(Nanos(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
        }
        _ => Err(Failure::usage(format!("--duration {duration}: give seconds, above 0 and at most 86400"))),
    }
}
