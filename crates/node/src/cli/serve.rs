//! `headwater serve`: the arguments, and the output of a node.
//!
//! Input: arguments. Output: the addresses of the node and commands to try on standard output, progress of a recovery
//! that takes longer than a second, and an exit code.

use super::failure::{CommandFailure, write_line};
use super::progress::ProgressDisplay;
use crate::config::{
    AttachLocation, ByteSize, ConfigOverrides, DurabilityMode, NodeConfig, OwnedDevice, RespLocation,
};
use crate::daemon::core_loop::DrainResult;
use crate::daemon::serve::{NodeConsole, RecoveryProgress, ServingNode, durability_text};
use crate::daemon::stop::StopSignal;
use clap::Args;
use headwater_ssd::engine::LossDigest;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Arguments of `headwater serve`.
#[derive(Debug, Args)]
#[command(after_help = "\
Durability modes: when a write is safe from a power cut.
  always       before it is acknowledged; no acknowledged write is ever lost (default)
  interval=MS  at most MS milliseconds after it was acknowledged
  on-flush     after the next flush that a client requests
A configuration file can set it for each namespace:
  version = 1
  [namespace.2]
  durability = \"interval=50\"

Ctrl-C or SIGTERM answers the commands in flight, writes a checkpoint and stops; a second one stops at once.

Examples:
  headwater serve
  headwater serve --data /srv/kv --capacity 64GiB --resp 127.0.0.1:6379
  headwater serve --nvme-tcp 127.0.0.1:4420
  headwater serve --device vfio:0000:00:04.0 --attach /run/headwater/ssd.sock
  headwater serve --resp 127.0.0.1:0 --metrics 127.0.0.1:0 --ready-file ready.json")]
pub struct ServeArgs {
    /// Data directory [default: ./data]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// NVMe controller bound to vfio-pci that the node shares, as vfio:0000:00:04.0, instead of a flash file
    #[arg(long, value_name = "vfio:ADDR")]
    device: Option<OwnedDevice>,
    /// Address for Redis clients, or `off`; port 0 picks one [default: 127.0.0.1:7379]
    #[arg(long, value_name = "ADDR")]
    resp: Option<RespLocation>,
    /// File whose first line is the password of Redis clients, or its hash (`headwater password-hash`); an address beyond
    /// loopback needs one
    #[arg(long, value_name = "FILE")]
    resp_password: Option<PathBuf>,
    /// Address for metrics and health, beyond loopback only with a token; port 0 picks one [default: 127.0.0.1:7380]
    #[arg(long, value_name = "ADDR")]
    metrics: Option<SocketAddr>,
    /// File whose first line is the token that clients of metrics and health send; an address beyond loopback needs one
    #[arg(long, value_name = "FILE")]
    metrics_token: Option<PathBuf>,
    /// Unix socket for Redis clients, in addition to the address
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,
    /// Socket where other processes attach by shared memory, or `off` [default: attach.sock in the data directory]
    #[arg(long, value_name = "PATH")]
    attach: Option<AttachLocation>,
    /// Unix socket for a hypervisor that uses vfio-user: one guest gets the device as a PCIe SSD
    #[arg(long, value_name = "PATH")]
    vfio_user: Option<PathBuf>,
    /// Address for NVMe/TCP hosts, a loopback address unless keys are given; port 0 picks one [default: none]
    #[arg(long, value_name = "ADDR")]
    nvme_tcp: Option<SocketAddr>,
    /// Keys of NVMe/TCP hosts, one line each: NQN and key; then only these hosts connect, over TLS 1.3
    #[arg(long, value_name = "FILE")]
    nvme_tcp_psk: Option<PathBuf>,
    /// Durability mode of writes: always, interval=MS or on-flush [default: always]
    #[arg(long, value_name = "MODE")]
    durability: Option<DurabilityMode>,
    /// Bytes of flash [default: 8GiB, or half of the free space if that is less]
    #[arg(long, value_name = "SIZE")]
    capacity: Option<ByteSize>,
    /// Bytes of device DRAM for pages: open blocks, reads in flight, cache; a value takes at most 2/9 of it [default:
    /// 72MiB]
    #[arg(long, value_name = "SIZE")]
    memory: Option<ByteSize>,
    /// Threads that move the bytes of large values beside the core, each on a core of its own: 0 to 16 [default: 0]
    #[arg(long, value_name = "N")]
    mover_threads: Option<u8>,
    /// Let the work queues of DSA devices move the bytes of large values beside the core; not yet run on silicon
    /// (`headwater doctor --mover` lists the queues)
    #[arg(long)]
    mover_dsa: bool,
    /// Let the copy engines of the first N GPUs move the bytes of large values beside the core, 0 to 16 [default: 0]; not yet run
    /// on a GPU (`headwater doctor --mover` lists them)
    #[arg(long, value_name = "N")]
    mover_gpu: Option<u8>,
    /// Configuration file; flags override it
    #[arg(long, value_name = "FILE.toml")]
    config: Option<PathBuf>,
    /// Write the addresses to this file, as JSON, when the node serves
    #[arg(long, value_name = "PATH")]
    ready_file: Option<PathBuf>,
    /// Give up the unreadable pages of the report with this digest, which a refused start and `headwater device check`
    /// print; any other loss is still refused
    #[arg(long, value_name = "DIGEST")]
    accept_loss: Option<LossDigest>,
}

/// Runs `headwater serve`.
///
/// # Errors
/// Says why the node did not start or did not end cleanly.
pub fn run(args: ServeArgs) -> Result<(), CommandFailure> {
    let over = ConfigOverrides {
        data: args.data,
        device: args.device,
        resp: args.resp,
        resp_password: args.resp_password,
        metrics: args.metrics,
        metrics_token: args.metrics_token,
        unix: args.unix,
        attach: args.attach,
        vfio_user: args.vfio_user,
        nvme_tcp: args.nvme_tcp,
        nvme_tcp_psk: args.nvme_tcp_psk,
        capacity: args.capacity,
        memory: args.memory,
        mover_threads: args.mover_threads,
        mover_dsa: args.mover_dsa.then_some(true),
        mover_gpu: args.mover_gpu,
        durability: args.durability,
        ready_file: args.ready_file,
        accept_loss: args.accept_loss,
    };
    let config = NodeConfig::assemble(args.config.as_deref(), over)
        .map_err(|error| CommandFailure::usage(error.to_string()))?;
    let stop = StopSignal::on_signals()?;
    let mut console = TerminalConsole { recovery: Some(ProgressDisplay::start("recovering")) };
    match &config.device {
        Some(device) => crate::daemon::serve::serve(&config, &stop, &mut console, |directory, clock, _| {
            crate::daemon::shared_ssd::open_node(&config, device, directory, clock)
        })?,
        None => crate::daemon::serve::serve(&config, &stop, &mut console, |directory, clock, progress| {
            crate::daemon::flash_device::open_node(&config, directory, clock, progress)
        })?,
    }
    Ok(())
}

struct TerminalConsole {
    recovery: Option<ProgressDisplay>,
}

impl NodeConsole for TerminalConsole {
    fn recovering(&mut self, recovery: RecoveryProgress) {
        if let Some(progress) = &mut self.recovery {
            progress.phase(recovery.stage);
            progress.total(Some(recovery.total));
            progress.set(recovery.done, 0);
        }
    }

    fn serving(&mut self, node: &ServingNode<'_>) {
        self.recovery = None;
        let attach = node.ready.attach.as_ref();
        let attach = attach.map(|path| format!("  attach:        {}\n", path.display())).unwrap_or_default();
        let hosts = node.ready.nvme_tcp.as_ref();
        let hosts = hosts.map(|address| format!("  NVMe/TCP:      {address}\n")).unwrap_or_default();
        let metrics = &node.ready.metrics;
        let took = node.took.to_duration().as_secs_f64();
        if let Some(device) = &node.config.device {
            let _output_may_be_closed = write_line(&format!(
                "headwater shares {device} ({} of blocks), ready in {took:.1} s\n{attach}\
                 \x20 metrics:       http://{metrics}/metrics  (/healthz)\n\
                 \x20 try:           headwater attach grant --uid 1001 --namespace 1 --blocks 0..1000000\n\
                 \x20 stop:          Ctrl-C",
                node.capacity,
            ));
            return;
        }
        let clients: Vec<String> = (node.ready.resp.iter().cloned())
            .chain(node.ready.unix.iter().map(|path| path.display().to_string()))
            .collect();
        let clients = if clients.is_empty() { "off".to_owned() } else { clients.join(" and ") };
        let try_it = match node.ready.resp.as_deref() {
            Some(resp) => {
                let (host, port) = resp.rsplit_once(':').unwrap_or((resp, ""));
                format!(
                    "  try:           redis-cli -h {host} -p {port} set greeting hello\n\
                     \x20                headwater kv --resp {resp} get greeting\n"
                )
            }
            None => String::new(),
        };
        let _output_may_be_closed = write_line(&format!(
            "headwater serves {} keys from {} ({} of flash, durability {}), ready in {took:.1} s\n\
             \x20 Redis clients: {clients}\n{attach}{hosts}\
             \x20 metrics:       http://{metrics}/metrics  (/healthz, /trace)\n{try_it}\
             \x20 stop:          Ctrl-C",
            node.keys,
            node.config.data.display(),
            node.capacity,
            durability_text(node.config),
        ));
    }

    fn stopped(&mut self, ended: DrainResult) {
        let text = match ended {
            DrainResult::Drained => "headwater stopped: every client has its replies, everything is durable",
            DrainResult::DrainLimit => {
                "headwater stopped: everything is durable; some clients did not read their replies"
            }
        };
        let _output_may_be_closed = write_line(text);
    }
}
