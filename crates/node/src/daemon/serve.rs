//! `headwater serve`: a node from its configuration to its last completion.
//!
//! In: a [`Config`], something that opens a device and its faces. Out: a node that served until it was asked to stop.
//! Invariant: a clean end means that every accepted command was answered, everything is durable, and a checkpoint stands.
//!
//! ```text
//!   lock the directory -> metrics (recovering) -> recover -> ready file -> serve -> drain -> checkpoint -> unlock
//! ```

use crate::config::{Bytes, Config, DurabilityMode};
use crate::daemon::core_loop::{Attention, CoreLoop, Ended};
use crate::daemon::data_dir::{DataDir, DataDirError, IfMissing};
use crate::daemon::metrics::server::{MetricsError, MetricsServer};
use crate::daemon::metrics::{Board, Health};
use crate::daemon::ready_file::{Ready, ReadyFileError};
use crate::daemon::stop::Stop;
use headwater_dma::pool::{Pool, Ticker};
use headwater_frontend::core_device::CoreWork;
use headwater_frontend::front_end::Face;
use headwater_host::calibration::{Calibration, SPIN_VARIABLE, SpinOverride};
use headwater_host::clock::{Clock, Nanos};
use std::net::SocketAddr;
use std::sync::Arc;

/// How far a recovery has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// What is being done.
    pub stage: &'static str,
    /// Steps done: pages or blocks looked at.
    pub done: u64,
    /// Steps in all.
    pub total: u64,
}

/// What opening a node's device brings.
pub struct Opened<D> {
    /// The device, recovered.
    pub device: D,
    /// Its faces, listening.
    pub faces: Vec<Box<dyn Face<D>>>,
    /// Where the RESP face listens, if there is one.
    pub resp: Option<SocketAddr>,
    /// Where the NVMe/TCP face listens, if there is one.
    pub nvme_tcp: Option<SocketAddr>,
    /// Bytes of flash.
    pub capacity: Bytes,
    /// How long to poll in vain before sleeping.
    pub spin: Nanos,
    /// Where everything of the node that carries payload comes from.
    pub pool: Pool,
    /// The pool's clock, as long as the node serves.
    pub ticker: Ticker,
}

impl<D> std::fmt::Debug for Opened<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opened")
            .field("resp", &self.resp)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

/// What a node tells whoever started it.
pub trait Console {
    /// Recovery goes on.
    fn recovering(&mut self, recovery: Recovery);
    /// It serves.
    fn serving(&mut self, node: &Serving<'_>);
    /// It was asked to stop and answers what is in flight.
    fn stopped(&mut self, ended: Ended);
}

/// What there is to say about a node that serves.
#[derive(Debug)]
pub struct Serving<'a> {
    /// Its configuration.
    pub config: &'a Config,
    /// Its addresses.
    pub ready: &'a Ready,
    /// Bytes of flash.
    pub capacity: Bytes,
    /// Keys found.
    pub keys: u64,
    /// From the start to now.
    pub took: Nanos,
}

/// Why a node did not serve, or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The data directory.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// Metrics.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// The ready file.
    #[error(transparent)]
    ReadyFile(#[from] ReadyFileError),
    /// The device or a face could not be opened.
    #[error("{0}")]
    Open(String),
    /// The system refused what the core's loop sleeps on.
    #[error("the node cannot go on: {0}; everything acknowledged is safe, start it again")]
    System(#[from] std::io::Error),
    /// The last flush or checkpoint failed.
    #[error(
        "the node stopped without its last checkpoint: {0}; the next start recovers by reading the whole log"
    )]
    Shutdown(String),
}

/// Runs a node until it is asked to stop.
///
/// # Errors
/// [`ServeError`] when it cannot start or cannot end cleanly.
pub fn serve<D, O>(config: &Config, stop: &Stop, console: &mut dyn Console, open: O) -> Result<(), ServeError>
where
    D: CoreWork,
    O: FnOnce(&DataDir, Clock, &mut dyn FnMut(Recovery)) -> Result<Opened<D>, String>,
{
    let clock = Clock::start();
    let directory = DataDir::take(&config.data, IfMissing::Create)?;
    if let Some(path) = &config.ready_file {
        // A file that an earlier node left behind when it was killed must not speak for this one.
        let _absent_is_fine = std::fs::remove_file(path);
    }
    let board = Arc::new(Board::default());
    let metrics = MetricsServer::start(config.metrics, Arc::clone(&board))?;
    let opened =
        open(&directory, clock, &mut |recovery| console.recovering(recovery)).map_err(ServeError::Open)?;
    let Opened { mut device, faces, resp, nvme_tcp, capacity, spin, pool, ticker: _ticker } = opened;
    board.watch_pool(pool);
    let ready = Ready {
        resp: resp.map(|address| address.to_string()),
        metrics: metrics.address().to_string(),
        unix: config.unix.clone(),
        attach: config.attach.clone(),
        vfio_user: config.vfio_user.clone(),
        nvme_tcp: nvme_tcp.map(|address| address.to_string()),
        pid: std::process::id(),
    };
    board.set_health(Health::Serving);
    if let Some(path) = &config.ready_file {
        ready.write(path)?;
    }
    console.serving(&Serving {
        config,
        ready: &ready,
        capacity,
        keys: device.stats().keys.iter().sum(),
        took: clock.now(),
    });
    tracing::info!(resp = ?ready.resp, metrics = %ready.metrics, durability = %modes(config), "serving");
    let attention = Attention::default();
    let mut core = CoreLoop { device: &mut device, faces, clock, spin, board: &board, attention };
    let ran = core.run(stop);
    // They outlive the device's last work: it may still move the data of clients who did not take their answers.
    let CoreLoop { faces, .. } = core;
    if let Some(path) = &config.ready_file {
        let _absent_is_fine = std::fs::remove_file(path);
    }
    // Also when the loop failed: what is in memory is made durable before the failure is told.
    let shut = device.shutdown(&clock).map_err(ServeError::Shutdown);
    drop(faces);
    let ended = ran?;
    shut?;
    console.stopped(ended);
    drop(directory);
    Ok(())
}

/// How long the core polls in vain before it sleeps: as calibrated on this machine, or as `HEADWATER_SPIN_US` says.
#[must_use]
pub fn calibrated_spin(clock: Clock) -> Nanos {
    let calibration = Calibration::load_or_measure(&clock);
    if let SpinOverride::Ignored(text) = &calibration.spin_override {
        tracing::warn!(value = %text, "{SPIN_VARIABLE} is no whole number of microseconds and is ignored");
    }
    tracing::info!(spin_ns = calibration.spin_before_sleep.0, "calibrated");
    calibration.spin_before_sleep
}

/// The durability of the namespaces, in as few words as it takes.
#[must_use]
pub fn modes(config: &Config) -> String {
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
    use crate::config::Overrides;

    #[test]
    fn modes_name_only_what_differs() {
        let mut config = Config::assemble(None, Overrides::default()).unwrap();
        assert_eq!(modes(&config), "always");
        config.durability[3] = headwater_ssd::engine::Durability::OnFlush;
        assert_eq!(modes(&config), "always, namespace 4 on-flush");
    }
}
