//! The counters of a node, shared by the core loop that publishes them and the metrics thread that serves them.
//!
//! Input: [`MetricsBoard::publish`] from the core loop. Output: [`MetricsBoard::snapshot`] for the metrics thread, which serves it at
//! `/metrics`, `/healthz` and `/trace`. Invariant: the core loop never blocks on a reader.

pub mod access;
mod bounded_listener;
pub mod server;
pub mod text;

use headwater_dma::pool::{Pool, PoolStatistics};
use headwater_frontend::counters::FrontEndCounters;
use headwater_ssd::engine::DeviceStats;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, TryLockError};

/// The state of a node, as `/healthz` reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum NodeHealth {
    /// The index is being rebuilt.
    Recovering = 0,
    /// The node serves.
    Serving = 1,
    /// A stop was requested; commands in flight are answered.
    Draining = 2,
}

impl NodeHealth {
    /// Returns the word that `/healthz` prints.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Recovering => "recovering",
            Self::Serving => "ok",
            Self::Draining => "draining",
        }
    }
}

/// The time that sampled requests spent in one stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTime {
    /// Requests sampled.
    pub samples: u64,
    /// Sum of their nanoseconds in this stage.
    pub nanos: u64,
}

/// All counters at one moment.
#[derive(Clone, Debug, Default)]
pub struct MetricsSnapshot {
    /// Counters of the device.
    pub device: DeviceStats,
    /// Counters of the front ends.
    pub front_ends: FrontEndCounters,
    /// Time of sampled requests by stage; each publication adds at most one request.
    pub stages: BTreeMap<&'static str, StageTime>,
    /// Counters of the buffer pool, if there is one.
    pub pool: Option<PoolStatistics>,
}

/// The counters and the health that the core loop publishes.
#[derive(Debug)]
pub struct MetricsBoard {
    health: AtomicU8,
    snapshot: Mutex<MetricsSnapshot>,
    pool: OnceLock<Pool>,
}

impl Default for MetricsBoard {
    fn default() -> Self {
        Self {
            health: AtomicU8::new(NodeHealth::Recovering as u8),
            snapshot: Mutex::default(),
            pool: OnceLock::new(),
        }
    }
}

impl MetricsBoard {
    /// Replaces the counters, unless a reader holds them. Returns whether they were replaced.
    pub fn publish(&self, device: &DeviceStats, front_ends: FrontEndCounters) -> bool {
        let mut snapshot = match self.snapshot.try_lock() {
            Ok(snapshot) => snapshot,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let fresh =
            front_ends.trace.clone().filter(|trace| snapshot.front_ends.trace.as_ref() != Some(trace));
        for stage in fresh.into_iter().flat_map(|trace| trace.stages) {
            let time = snapshot.stages.entry(stage.stage).or_default();
            time.samples += 1;
            time.nanos += stage.ns;
        }
        snapshot.device = *device;
        snapshot.front_ends = front_ends;
        true
    }

    /// Sets the pool whose counters a snapshot includes. They are read for each snapshot, because that blocks no
    /// thread. Only the first call has an effect.
    pub fn set_pool(&self, pool: Pool) {
        let _first = self.pool.set(pool);
    }

    /// Returns the counters last published, with the current counters of the pool.
    #[must_use]
    pub fn snapshot(&self) -> MetricsSnapshot {
        // A reader only clones the snapshot, so a reader that panicked left it intact.
        let published = self.snapshot.lock().unwrap_or_else(PoisonError::into_inner).clone();
        MetricsSnapshot { pool: self.pool.get().map(Pool::statistics), ..published }
    }

    /// Sets the state of the node.
    pub fn set_health(&self, health: NodeHealth) {
        self.health.store(health as u8, Ordering::Relaxed);
    }

    /// Returns the state of the node.
    #[must_use]
    pub fn health(&self) -> NodeHealth {
        match self.health.load(Ordering::Relaxed) {
            1 => NodeHealth::Serving,
            2 => NodeHealth::Draining,
            _ => NodeHealth::Recovering,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_frontend::counters::{RequestTrace, TraceStage};

    #[test]
    fn sampled_request_published_twice_is_counted_once() {
        let board = MetricsBoard::default();
        let sampled = |ns| FrontEndCounters {
            trace: Some(RequestTrace {
                command: "get",
                stages: vec![TraceStage { stage: "queued", ns }],
                total_ns: ns,
            }),
            ..FrontEndCounters::default()
        };
        for ns in [7, 7, 5] {
            assert!(board.publish(&DeviceStats::default(), sampled(ns)));
        }
        assert_eq!(board.snapshot().stages["queued"], StageTime { samples: 2, nanos: 12 });
    }

    #[test]
    fn publish_never_waits_for_a_reader() {
        let board = MetricsBoard::default();
        let _reader = board.snapshot.lock().unwrap();
        assert!(!board.publish(&DeviceStats::default(), FrontEndCounters::default()));
    }
}
