//! `headwater device`: lists devices, describes one, and checks or upgrades the data directory of a stopped node.
//!
//! Input: a URL, a directory, or nothing. Output: a table or JSON; exit code 1 when the check finds a fault.

use super::failure::{CommandFailure, write_json, write_line};
use super::progress::ProgressDisplay;
use crate::config::{ByteSize, ConfigOverrides, NodeConfig};
use crate::daemon::data_dir::{DataDir, MissingDirectory};
use crate::doctor::device_scan;
use clap::{Args, Subcommand};
use headwater::Device;
use headwater_host::clock::Clock;
use headwater_io::{ClientNamespace, NvmeTcp};
use headwater_ssd::engine::LossDigest;
use headwater_ssd::engine::upgrade::SwitchedFile;
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
NVMe controllers for Headwater's driver (vfio:), namespaces under the kernel's driver (nvme-ng:), block devices and
partitions (io-uring:). No device is opened. A device that you cannot open is shown with the reason and the remedy.

Example:
  headwater device list")]
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the URLs of the devices that an NVMe/TCP address serves
    #[command(after_help = "Example:\n  headwater device discover 127.0.0.1:4420")]
    Discover {
        /// HOST:PORT
        #[arg(value_name = "ADDR")]
        address: String,
    },
    /// Open a device and describe it
    #[command(after_help = "\
Examples:
  headwater device identify null:1G
  headwater device identify io-uring:/dev/nvme0n1p2
  headwater device identify nvme-tcp://127.0.0.1:4420/NQN     device discover 127.0.0.1:4420 prints the NQNs")]
    Identify {
        /// The device
        #[arg(value_name = "URL")]
        url: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Check every record, the index and the checkpoint
    #[command(after_help = "\
Nothing is changed: the flash file is opened read-only. Every record that the index names is read, its checksum verified
and its key hashed; then the index is rebuilt from the whole log and compared with the index of the checkpoint. Keys are
shown as hashes and locations. Pages of the log that are lost are named, with the namespaces that they put in doubt and
the keys that a node answers with errors for them. Exit code 1 on every damage, also of a copy of which another one is
intact: the report calls that harmless. If a start needs a page that cannot be read, or something is in doubt, the report
has the digest that `headwater serve --accept-loss` takes.

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
    /// Give a flash file of format version 1 version 2, in place
    #[command(after_help = "\
A file of version 1 can only be read. The upgrade reads every record, lengthens the file by 136 KiB, changes its version
with one write, and then moves every record into blocks of version 2. It can be interrupted at any moment: the file opens
with one of the two versions, and the same command goes on. From the change on older programs refuse the file; copy it
first if you may have to go back. A damaged file is refused, and nothing is changed, until you accept the loss that the
refusal names. Exit code 1 when the file is refused, has version 2 already, or blocks of version 1 are left.

Example:
  headwater device upgrade ./data")]
    Upgrade {
        /// Data directory of a stopped node
        #[arg(value_name = "DIR", default_value = "data")]
        data: PathBuf,
        /// Give up the damaged records of the refusal with this digest; any other damage is still refused
        #[arg(long, value_name = "DIGEST")]
        accept_loss: Option<LossDigest>,
    },
}

/// Runs `headwater device`.
///
/// # Errors
/// When the device or the directory cannot be opened, or the check finds a fault.
pub fn run(args: DeviceArgs) -> Result<(), CommandFailure> {
    match args.op {
        DeviceOp::List { json } => list(json),
        DeviceOp::Discover { address } => discover(&address),
        DeviceOp::Identify { url, json } => identify(&url, json),
        DeviceOp::Check { data, json } => check(data, json),
        DeviceOp::Upgrade { data, accept_loss } => upgrade(data, accept_loss),
    }
}

fn list(json: bool) -> Result<(), CommandFailure> {
    let found = device_scan::scan(&device_scan::ScanRoots::default());
    if json {
        return write_json(&found);
    }
    if found.is_empty() {
        return write_line(
            "no NVMe controller, namespace or block device found; null:1G and mem:1G are always available",
        );
    }
    found.iter().try_for_each(|device| write_line(&device.to_string()))
}

fn discover(address: &str) -> Result<(), CommandFailure> {
    let found = address.to_socket_addrs().ok().and_then(|mut found| found.next());
    let found = found.ok_or_else(|| {
        CommandFailure::usage(format!("{address}: no such host, or no port; write HOST:PORT"))
    })?;
    let names = NvmeTcp::discover(found)?;
    names.iter().try_for_each(|name| write_line(&format!("nvme-tcp://{address}/{name}")))
}

/// The description of a device.
#[derive(Debug, Serialize)]
struct DeviceIdentity {
    url: String,
    namespaces: Vec<ClientNamespace>,
    transfer_bytes_max: usize,
    segments_max: usize,
    memory_align: usize,
    wakes: bool,
}

fn identify(url: &str, json: bool) -> Result<(), CommandFailure> {
    let mut device = Device::open(url)?;
    let namespaces = device.namespaces()?;
    let queue = device.queue(1)?;
    let limits = queue.limits();
    let identity = DeviceIdentity {
        url: url.to_owned(),
        namespaces,
        transfer_bytes_max: limits.transfer_bytes_max,
        segments_max: limits.segments_max,
        memory_align: limits.memory_align,
        wakes: queue.descriptor().is_some(),
    };
    if json {
        return write_json(&identity);
    }
    for facts in &identity.namespaces {
        let size = ByteSize(facts.size.saturating_mul(u64::from(facts.block_bytes)));
        let kind = match (facts.is_key_space(), facts.size) {
            (true, 0) => "keys".to_owned(),
            (true, quota) => format!("keys, at most {}", ByteSize(quota)),
            (false, blocks) => format!("{blocks} blocks of {} bytes, {size}", facts.block_bytes),
        };
        let access = if facts.writable { "" } else { ", read only" };
        let window =
            facts.blocks.map_or(String::new(), |(first, end)| format!(", granted blocks {first}..{end}"));
        write_line(&format!("namespace {}: {kind}{window}{access}", facts.id))?;
    }
    let DeviceIdentity { transfer_bytes_max, segments_max, memory_align, wakes, .. } = identity;
    let bytes_max = ByteSize(transfer_bytes_max as u64);
    let waiting = if wakes { "sleeping or polling" } else { "polling" };
    write_line(&format!(
        "a command transfers at most {bytes_max} in {segments_max} segments aligned to {memory_align} bytes; \
         wait for completions by {waiting}"
    ))
}

fn check(data: PathBuf, json: bool) -> Result<(), CommandFailure> {
    let config =
        NodeConfig::assemble(None, ConfigOverrides { data: Some(data), ..ConfigOverrides::default() })?;
    let directory = DataDir::lock_shared(&config.data)?;
    let mut progress = ProgressDisplay::start("opening");
    let report =
        crate::daemon::flash_device::check_device(&directory, &config, Clock::start(), &mut |step| {
            progress.phase(step.stage);
            progress.total(Some(step.total));
            progress.set(step.done, 0);
        })
        .map_err(CommandFailure::failed)?;
    drop(progress);
    if json {
        write_json(&report)?;
    } else {
        write_line(&report.to_string())?;
    }
    if report.is_whole { Ok(()) } else { Err(CommandFailure::negative_result()) }
}

fn upgrade(data: PathBuf, accept_loss: Option<LossDigest>) -> Result<(), CommandFailure> {
    let over = ConfigOverrides { data: Some(data), accept_loss, ..ConfigOverrides::default() };
    let config = NodeConfig::assemble(None, over)?;
    let directory = DataDir::lock_exclusive(&config.data, MissingDirectory::Refuse)?;
    let mut progress = ProgressDisplay::start("opening");
    let upgraded =
        crate::daemon::device_upgrade::upgrade_device(&directory, &config, Clock::start(), &mut |step| {
            progress.phase(step.stage);
            progress.total(Some(step.total));
            progress.set(step.done, 0);
        })
        .map_err(CommandFailure::failed)?;
    drop(progress);
    let path = directory.path().display();
    if let Some(SwitchedFile { records, damage }) = upgraded.switched {
        write_line(&format!("{path}: format version 2, {records} keys and blocks kept"))?;
        if damage.has_loss() {
            write_line(&format!("the loss {} was accepted: {damage}", damage.digest))?;
        }
    } else {
        write_line(&format!("{path}: the upgrade that was interrupted went on"))?;
    }
    if upgraded.is_done {
        return write_line("every record lies in blocks of version 2");
    }
    write_line(&format!(
        "{} blocks of version 1 are left, because records in them are damaged or blocks are short; they are served as they \
         are. Write or delete the keys that `headwater device check` names, or make room, and upgrade again",
        upgraded.blocks_left
    ))?;
    Err(CommandFailure::negative_result())
}
