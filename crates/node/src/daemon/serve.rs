//! `headwater serve`: runs a node from its configuration to its last completion.
//!
//! Input: a [`NodeConfig`], a function that opens a device and its front ends. Output: a node that serves until a stop is
//! requested. Invariant: after a clean end every accepted command was answered, everything is durable, and a checkpoint
//! was written.
//!
//! ```text
//!   lock the directory -> metrics (recovering) -> recover -> ready file -> serve -> drain -> checkpoint -> unlock
//! ```

use crate::config::{ByteSize, DurabilityMode, NodeConfig};
use crate::daemon::core_loop::{CoreLoop, DrainResult, PollSchedule};
use crate::daemon::data_dir::{DataDir, DataDirError, MissingDirectory};
use crate::daemon::metrics::server::{MetricsError, MetricsServer};
use crate::daemon::metrics::{MetricsBoard, NodeHealth};
use crate::daemon::ready_file::{ReadyFile, ReadyFileError};
use crate::daemon::stop::StopSignal;
use headwater_dma::pool::{Pool, PoolTicker};
use headwater_frontend::core_device::CoreWork;
use headwater_frontend::counters::FrontEndCounters;
use headwater_frontend::front_end::FrontEnd;
use headwater_host::calibration::{Calibration, SPIN_VARIABLE, SpinOverride};
use headwater_host::clock::{Clock, Nanos};
use headwater_host::fault_guard::FaultGuard;
use std::net::SocketAddr;
use std::sync::Arc;

/// The progress of a recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryProgress {
    /// The current stage.
    pub stage: &'static str,
    /// Steps done: pages or blocks read.
    pub done: u64,
    /// Total number of steps.
    pub total: u64,
}

/// A node's device with its front ends, opened.
pub struct OpenedNode<D> {
    /// The device, recovered.
    pub device: D,
    /// Its front ends, listening.
    pub front_ends: Vec<Box<dyn FrontEnd<D>>>,
    /// Address of the RESP front end, if there is one.
    pub resp: Option<SocketAddr>,
    /// Address of the NVMe/TCP front end, if there is one.
    pub nvme_tcp: Option<SocketAddr>,
    /// Bytes of flash.
    pub capacity: ByteSize,
    /// Time to poll without progress before sleeping.
    pub spin: Nanos,
    /// The pool of the node's payload memory.
    pub pool: Pool,
    /// The thread that drives the pool's timers while the node serves.
    pub ticker: PoolTicker,
}

impl<D> std::fmt::Debug for OpenedNode<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenedNode")
            .field("resp", &self.resp)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

/// A receiver of a node's status messages.
pub trait NodeConsole {
    /// Reports the progress of the recovery.
    fn recovering(&mut self, recovery: RecoveryProgress);
    /// Reports that the node serves.
    fn serving(&mut self, node: &ServingNode<'_>);
    /// Reports that the node has stopped.
    fn stopped(&mut self, ended: DrainResult);
}

/// The description of a node that serves.
#[derive(Debug)]
pub struct ServingNode<'a> {
    /// Its configuration.
    pub config: &'a NodeConfig,
    /// Its addresses.
    pub ready: &'a ReadyFile,
    /// Bytes of flash.
    pub capacity: ByteSize,
    /// Number of keys, over all namespaces.
    pub keys: u64,
    /// Time from the start until the node serves.
    pub took: Nanos,
}

/// The error of a node that did not start or did not end cleanly.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The data directory failed.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// The metrics server failed.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// The ready file failed.
    #[error(transparent)]
    ReadyFile(#[from] ReadyFileError),
    /// The device or a front end could not be opened.
    #[error("{0}")]
    Open(String),
    /// The system refused a descriptor that the core loop sleeps on.
    #[error(
        "the node stopped, its core loop failed: {0}; everything acknowledged is safe, start the node again"
    )]
    System(#[from] std::io::Error),
    /// The last flush or checkpoint failed.
    #[error(
        "the node stopped without its last checkpoint: {0}; the next start recovers by reading the whole log"
    )]
    Shutdown(String),
    /// The core loop failed, and then the last flush or checkpoint.
    #[error(
        "the node stopped, its core loop failed: {system}; then its last checkpoint failed too: {shutdown}; \
         the next start recovers by reading the whole log"
    )]
    SystemAndShutdown {
        /// The error of the core loop.
        system: std::io::Error,
        /// The error of the last flush or checkpoint.
        shutdown: String,
    },
}

/// Runs a node until a stop is requested.
///
/// # Errors
/// [`ServeError`] when it cannot start or cannot end cleanly.
pub fn serve<D, O>(
    config: &NodeConfig,
    stop: &StopSignal,
    console: &mut dyn NodeConsole,
    open: O,
) -> Result<(), ServeError>
where
    D: CoreWork,
    O: FnOnce(&DataDir, Clock, &mut dyn FnMut(RecoveryProgress)) -> Result<OpenedNode<D>, String>,
{
    let clock = Clock::start();
    // Clients may share memory that they can shrink, which must not end the node.
    FaultGuard::install().map_err(|error| ServeError::Open(format!("SIGBUS cannot be handled: {error}")))?;
    let directory = DataDir::lock_exclusive(&config.data, MissingDirectory::Create)?;
    if let Some(path) = &config.ready_file {
        // The file of an earlier, killed node must not show this node as ready.
        let _absent_is_fine = std::fs::remove_file(path);
    }
    let board = Arc::new(MetricsBoard::default());
    let metrics = MetricsServer::start(config.metrics, config.metrics_token.as_deref(), Arc::clone(&board))?;
    let opened =
        open(&directory, clock, &mut |recovery| console.recovering(recovery)).map_err(ServeError::Open)?;
    let OpenedNode { mut device, front_ends, resp, nvme_tcp, capacity, spin, pool, ticker: _ticker } = opened;
    board.set_pool(pool);
    let ready = ReadyFile {
        resp: resp.map(|address| address.to_string()),
        metrics: metrics.address().to_string(),
        unix: config.unix.clone(),
        attach: config.attach.clone(),
        vfio_user: config.vfio_user.clone(),
        nvme_tcp: nvme_tcp.map(|address| address.to_string()),
        pid: std::process::id(),
    };
    // A reader of the ready file may ask for the counters of the opening before the core loop's first turn.
    board.publish(&device.stats(), FrontEndCounters::default());
    board.set_health(NodeHealth::Serving);
    if let Some(path) = &config.ready_file {
        ready.write(path)?;
    }
    console.serving(&ServingNode {
        config,
        ready: &ready,
        capacity,
        keys: device.stats().keys.iter().sum(),
        took: clock.now(),
    });
    tracing::info!(resp = ?ready.resp, metrics = %ready.metrics, durability = %durability_text(config), "serving");
    let attention = PollSchedule::default();
    let mut core =
        CoreLoop { device: &mut device, front_ends, clock, spin, board: &board, schedule: attention };
    let ran = core.run(stop);
    // The front ends outlive the shutdown of the device: it may still move data of clients that did not receive their
    // replies.
    let CoreLoop { front_ends, .. } = core;
    if let Some(path) = &config.ready_file {
        let _absent_is_fine = std::fs::remove_file(path);
    }
    // Also when the loop failed: data in memory is made durable before the failure is reported.
    let shut_down = device.shutdown(&clock);
    drop(front_ends);
    console.stopped(end_of_service(ran, shut_down)?);
    drop(directory);
    Ok(())
}

/// Returns how a node ended, from the results of its core loop and of its device's shutdown.
///
/// # Errors
/// Each failure of the two.
fn end_of_service(
    ran: std::io::Result<DrainResult>,
    shut_down: Result<(), String>,
) -> Result<DrainResult, ServeError> {
    match (ran, shut_down) {
        (Ok(ended), Ok(())) => Ok(ended),
        (Ok(_), Err(shutdown)) => Err(ServeError::Shutdown(shutdown)),
        (Err(system), Ok(())) => Err(ServeError::System(system)),
        (Err(system), Err(shutdown)) => Err(ServeError::SystemAndShutdown { system, shutdown }),
    }
}

/// Returns the thresholds of this machine. The time that the core polls without progress before it sleeps may be from
/// `HEADWATER_SPIN_US`.
#[must_use]
pub fn calibrate(clock: Clock) -> Calibration {
    let calibration = Calibration::load_or_measure(&clock);
    if let SpinOverride::Ignored(text) = &calibration.spin_override {
        tracing::warn!(value = %text, "{SPIN_VARIABLE} is not a whole number of microseconds and is ignored");
    }
    tracing::info!(
        spin_ns = calibration.spin_before_sleep.0,
        streaming_copy_from_bytes = calibration.streaming_copy_from_bytes,
        "calibrated"
    );
    calibration
}

/// Returns the durability of the first namespace, and of every other one that differs from it.
#[must_use]
pub fn durability_text(config: &NodeConfig) -> String {
    let mut text = String::new();
    let first = config.durability.first().copied().map(DurabilityMode);
    if let Some(first) = first {
        text = first.to_string();
    }
    for (number, mode) in (1u32..).zip(config.durability.map(DurabilityMode)) {
        if Some(mode) != first {
            text.push_str(&format!(", namespace {number} {mode}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigOverrides;
    use headwater_dma::pool::PoolConfig;
    use headwater_host::clock::UnixMillis;
    use headwater_ssd::engine::DeviceStats;
    use std::fs::File;
    use std::os::fd::{AsFd as _, BorrowedFd};

    /// A device whose descriptor the core loop cannot sleep on, and that cannot shut down.
    struct FailingDevice(File);

    impl CoreWork for FailingDevice {
        fn poll(&mut self, _: Nanos, _: UnixMillis) -> bool {
            false
        }
        fn wake_descriptor(&self) -> Option<BorrowedFd<'_>> {
            Some(self.0.as_fd())
        }
        fn stats(&self) -> DeviceStats {
            DeviceStats::default()
        }
        fn shutdown(&mut self, _: &Clock) -> Result<(), String> {
            Err("the disk is full".to_owned())
        }
    }

    struct SilentConsole;

    impl NodeConsole for SilentConsole {
        fn recovering(&mut self, _: RecoveryProgress) {}
        fn serving(&mut self, _: &ServingNode<'_>) {}
        fn stopped(&mut self, ended: DrainResult) {
            panic!("the node ended cleanly: {ended:?}");
        }
    }

    /// Checks for a former defect: the error of the shutdown was lost: only that of the core loop was returned, which
    /// says that all data is safe.
    #[test]
    fn both_errors_are_returned_when_loop_and_shutdown_fail() {
        let folder = tempfile::tempdir().unwrap();
        let mut config = NodeConfig::assemble(None, ConfigOverrides::default()).unwrap();
        config.data = folder.path().join("data");
        config.metrics.set_port(0);
        let (stop, _handle) = StopSignal::manual().unwrap();
        let open = |_: &DataDir, _: Clock, _: &mut dyn FnMut(RecoveryProgress)| {
            let pool = Pool::open(PoolConfig::default()).unwrap();
            Ok(OpenedNode {
                // A regular file: epoll refuses it.
                device: FailingDevice(tempfile::tempfile().unwrap()),
                front_ends: Vec::new(),
                resp: None,
                nvme_tcp: None,
                capacity: ByteSize(1 << 30),
                spin: Nanos::ZERO,
                ticker: pool.ticker().unwrap(),
                pool,
            })
        };
        let error = serve(&config, &stop, &mut SilentConsole, open).unwrap_err();
        let ServeError::SystemAndShutdown { system, shutdown } = &error else { panic!("{error}") };
        assert_eq!(
            (system.kind(), &shutdown[..]),
            (std::io::ErrorKind::PermissionDenied, "the disk is full")
        );
        assert!(error.to_string().contains("the disk is full"), "{error}");
    }

    #[test]
    fn modes_name_only_namespaces_that_differ() {
        let mut config = NodeConfig::assemble(None, ConfigOverrides::default()).unwrap();
        assert_eq!(durability_text(&config), "always");
        config.durability[3] = headwater_ssd::engine::Durability::OnFlush;
        assert_eq!(durability_text(&config), "always, namespace 4 on-flush");
    }
}
