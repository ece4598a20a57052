//! `headwater device`: devices looked at: which there are, what one says of itself, and the data directory of a stopped node.
//!
//! In: a URL, a directory, or nothing. Out: a table or JSON; exit code 1 when something is wrong with it.

use super::failure::{Failure, answer_json, answer_line};
use super::progress::Progress;
use crate::config::{Bytes, Config, Overrides};
use crate::daemon::data_dir::DataDir;
use crate::doctor::device_scan;
use clap::{Args, Subcommand};
use headwater::Device;
use headwater_host::clock::Clock;
use headwater_io::{NamespaceFacts, NvmeTcp};
use serde::Serialize;
use std::net::ToSocketAddrs as _;
use std::path::PathBuf;

/// Arguments of `headwater device`.
#[derive(Debug, Args)]
pub struct DeviceArgs {
    #[command(subcommand)]
    op: DeviceOp,
}

#[derive(Debug, Subcommand)]
enum DeviceOp {
    /// List the devices of this machine with their URLs
    #[command(after_help = "\
NVMe controllers for our own driver (vfio:), namespaces under the kernel's driver (nvme-ng:), block devices and partitions
(io-uring:). Nothing is opened; what keeps you from opening one is said, with the command that would change it.

Example:
  headwater device list")]
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Ask an NVMe/TCP address which devices it serves; prints their URLs
    #[command(after_help = "Example:\n  headwater device discover 127.0.0.1:4420")]
    Discover {
        /// HOST:PORT
        #[arg(value_name = "ADDR")]
        address: String,
    },
    /// Open a device and say what it is
    #[command(after_help = "\
Examples:
  headwater device identify null:1G
  headwater device identify io-uring:/dev/nvme0n1p2
  headwater device identify nvme-tcp://127.0.0.1:4420/NQN     device discover 127.0.0.1:4420 says which")]
    Identify {
        /// The device
        #[arg(value_name = "URL")]
        url: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
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
    match args.op {
        DeviceOp::List { json } => list(json),
        DeviceOp::Discover { address } => discover(&address),
        DeviceOp::Identify { url, json } => identify(&url, json),
        DeviceOp::Check { data, json } => check(data, json),
    }
}

fn list(json: bool) -> Result<(), Failure> {
    let found = device_scan::scan(&device_scan::Roots::default());
    if json {
        return answer_json(&found);
    }
    if found.is_empty() {
        return answer_line(
            "no NVMe controller, namespace or block device is here; null:1G and mem:1G always are",
        );
    }
    found.iter().try_for_each(|device| answer_line(&device.to_string()))
}

fn discover(address: &str) -> Result<(), Failure> {
    let found = address.to_socket_addrs().ok().and_then(|mut found| found.next());
    let found = found
        .ok_or_else(|| Failure::usage(format!("{address}: no such host, or no port; write HOST:PORT")))?;
    let names = NvmeTcp::discover(found)?;
    names.iter().try_for_each(|name| answer_line(&format!("nvme-tcp://{address}/{name}")))
}

/// What a device says of itself.
#[derive(Debug, Serialize)]
struct Identity {
    url: String,
    namespaces: Vec<NamespaceFacts>,
    transfer_bytes_max: usize,
    segments_max: usize,
    memory_align: usize,
    wakes: bool,
}

fn identify(url: &str, json: bool) -> Result<(), Failure> {
    let mut device = Device::open(url)?;
    let namespaces = device.namespaces()?;
    let queue = device.queue(1)?;
    let limits = queue.limits();
    let identity = Identity {
        url: url.to_owned(),
        namespaces,
        transfer_bytes_max: limits.transfer_bytes_max,
        segments_max: limits.segments_max,
        memory_align: limits.memory_align,
        wakes: queue.descriptor().is_some(),
    };
    if json {
        return answer_json(&identity);
    }
    for facts in &identity.namespaces {
        let size = Bytes(facts.size.saturating_mul(u64::from(facts.block_bytes)));
        let kind = match (facts.is_key_space(), facts.size) {
            (true, 0) => "keys".to_owned(),
            (true, quota) => format!("keys, at most {}", Bytes(quota)),
            (false, blocks) => format!("{blocks} blocks of {} bytes, {size}", facts.block_bytes),
        };
        let access = if facts.writable { "" } else { ", read only" };
        let window =
            facts.blocks.map_or(String::new(), |(first, end)| format!(", blocks {first} to {end} for us"));
        answer_line(&format!("namespace {}: {kind}{window}{access}", facts.id))?;
    }
    let Identity { transfer_bytes_max, segments_max, memory_align, wakes, .. } = identity;
    let most = Bytes(transfer_bytes_max as u64);
    let waiting = if wakes { "sleeping or polling" } else { "polling" };
    answer_line(&format!(
        "a command moves at most {most} in {segments_max} pieces at multiples of {memory_align} bytes; completions are waited for by {waiting}"
    ))
}

fn check(data: PathBuf, json: bool) -> Result<(), Failure> {
    let config = Config::assemble(None, Overrides { data: Some(data), ..Overrides::default() })?;
    let directory = DataDir::look(&config.data)?;
    let mut progress = Progress::start("opening");
    let report = crate::daemon::device_file::check_device(&directory, &config, Clock::start(), &mut |step| {
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
