//! `headwater serve`: arguments, and what a node says on standard output.
//!
//! In: arguments. Out: a few lines where the node listens and what to try, progress of a recovery that takes longer than a
//! second, and an exit code when it was asked to stop.

use super::failure::{Failure, answer_line};
use super::progress::Progress;
use crate::config::{AttachPlace, Bytes, Config, DurabilityMode, Overrides, OwnedDevice};
use crate::daemon::core_loop::Ended;
use crate::daemon::serve::{Console, Recovery, Serving, modes};
use crate::daemon::stop::Stop;
use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Arguments of `headwater serve`.
#[derive(Debug, Args)]
#[command(after_help = "\
Durability, when an acknowledged write is safe from a power cut:
  always       before it is acknowledged; nothing acknowledged is ever lost (default)
  interval=MS  at most so many milliseconds after it was acknowledged
  on-flush     after the next flush that a client asks for
A configuration file can set it for each namespace:
  version = 1
  [namespace.2]
  durability = \"interval=50\"

Ctrl-C or SIGTERM answers what is in flight, writes a checkpoint and ends; a second one ends at once.

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
    /// An NVMe controller bound to vfio-pci that the node shares, as vfio:0000:00:04.0, instead of flash of its own
    #[arg(long, value_name = "vfio:ADDR")]
    device: Option<OwnedDevice>,
    /// Address for Redis clients; port 0 picks one [default: 127.0.0.1:7379]
    #[arg(long, value_name = "ADDR")]
    resp: Option<SocketAddr>,
    /// Address for metrics and health; port 0 picks one [default: 127.0.0.1:7380]
    #[arg(long, value_name = "ADDR")]
    metrics: Option<SocketAddr>,
    /// Unix socket for Redis clients, beside the address
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,
    /// Socket where other processes attach by shared memory, or `off` [default: attach.sock in the data directory]
    #[arg(long, value_name = "PATH")]
    attach: Option<AttachPlace>,
    /// Unix socket for a hypervisor that speaks vfio-user: the device as a PCIe SSD of one guest
    #[arg(long, value_name = "PATH")]
    vfio_user: Option<PathBuf>,
    /// Address for NVMe/TCP hosts, of the loopback unless keys are given; port 0 picks one [default: none]
    #[arg(long, value_name = "ADDR")]
    nvme_tcp: Option<SocketAddr>,
    /// Keys of NVMe/TCP hosts, a line each: NQN and key; they then connect inside TLS 1.3, and no others
    #[arg(long, value_name = "FILE")]
    nvme_tcp_psk: Option<PathBuf>,
    /// When acknowledged writes are durable: always, interval=MS or on-flush [default: always]
    #[arg(long, value_name = "MODE")]
    durability: Option<DurabilityMode>,
    /// Bytes of flash [default: 8GiB, or half of the free space if that is less]
    #[arg(long, value_name = "SIZE")]
    capacity: Option<Bytes>,
    /// Bytes of device DRAM for pages: open blocks, reads on the way, cache; the largest value is 2/9 of it [default: 72MiB]
    #[arg(long, value_name = "SIZE")]
    memory: Option<Bytes>,
    /// Configuration file; flags win over it
    #[arg(long, value_name = "FILE.toml")]
    config: Option<PathBuf>,
    /// Write the addresses here, as JSON, once the node serves
    #[arg(long, value_name = "PATH")]
    ready_file: Option<PathBuf>,
}

/// Runs `headwater serve`.
///
/// # Errors
/// Says why the node did not start or did not end cleanly.
pub fn run(args: ServeArgs) -> Result<(), Failure> {
    let over = Overrides {
        data: args.data,
        device: args.device,
        resp: args.resp,
        metrics: args.metrics,
        unix: args.unix,
        attach: args.attach,
        vfio_user: args.vfio_user,
        nvme_tcp: args.nvme_tcp,
        nvme_tcp_psk: args.nvme_tcp_psk,
        capacity: args.capacity,
        memory: args.memory,
        durability: args.durability,
        ready_file: args.ready_file,
    };
    let config =
        Config::assemble(args.config.as_deref(), over).map_err(|error| Failure::usage(error.to_string()))?;
    let stop = Stop::on_signals()?;
    let mut console = Terminal { recovery: Some(Progress::start("recovering")) };
    match &config.device {
        Some(device) => crate::daemon::serve::serve(&config, &stop, &mut console, |directory, clock, _| {
            crate::daemon::shared_ssd::open_node(&config, device, directory, clock)
        })?,
        None => crate::daemon::serve::serve(&config, &stop, &mut console, |directory, clock, progress| {
            crate::daemon::device_file::open_node(&config, directory, clock, progress)
        })?,
    }
    Ok(())
}

struct Terminal {
    recovery: Option<Progress>,
}

impl Console for Terminal {
    fn recovering(&mut self, recovery: Recovery) {
        if let Some(progress) = &mut self.recovery {
            progress.phase(recovery.stage);
            progress.total(Some(recovery.total));
            progress.set(recovery.done, 0);
        }
    }

    fn serving(&mut self, node: &Serving<'_>) {
        self.recovery = None;
        let unix =
            node.ready.unix.as_ref().map(|path| format!(" and {}", path.display())).unwrap_or_default();
        let attach = node.ready.attach.as_ref();
        let attach = attach.map(|path| format!("  attach:        {}\n", path.display())).unwrap_or_default();
        let hosts = node.ready.nvme_tcp.as_ref();
        let hosts = hosts.map(|address| format!("  NVMe/TCP:      {address}\n")).unwrap_or_default();
        let metrics = &node.ready.metrics;
        let took = node.took.to_duration().as_secs_f64();
        if let Some(device) = &node.config.device {
            let _nobody_may_be_listening = answer_line(&format!(
                "headwater shares {device} ({} of blocks), ready in {took:.1} s\n{attach}\
                 \x20 metrics:       http://{metrics}/metrics  (/healthz)\n\
                 \x20 try:           headwater attach grant --uid 1001 --namespace 1 --blocks 0..1000000\n\
                 \x20 stop:          Ctrl-C",
                node.capacity,
            ));
            return;
        }
        let resp = node.ready.resp.as_deref().unwrap_or_default();
        let (host, port) = resp.rsplit_once(':').unwrap_or((resp, ""));
        let _nobody_may_be_listening = answer_line(&format!(
            "headwater serves {} keys from {} ({} of flash, durability {}), ready in {took:.1} s\n\
             \x20 Redis clients: {resp}{unix}\n{attach}{hosts}\
             \x20 metrics:       http://{metrics}/metrics  (/healthz, /trace)\n\
             \x20 try:           redis-cli -h {host} -p {port} set greeting hello\n\
             \x20                headwater kv --resp {resp} get greeting\n\
             \x20 stop:          Ctrl-C",
            node.keys,
            node.config.data.display(),
            node.capacity,
            modes(node.config),
        ));
    }

    fn stopped(&mut self, ended: Ended) {
        let text = match ended {
            Ended::Drained => "headwater stopped: every client has its answers, everything is durable",
            Ended::DrainLimit => {
                "headwater stopped: everything is durable; some clients did not take their answers"
            }
        };
        let _nobody_may_be_listening = answer_line(text);
    }
}
