//! The numbers of a node, between the core that counts and the thread that tells.
//!
//! In: [`Board::publish`] from the core's loop, which never waits. Out: [`Board::snapshot`] for the metrics thread, and
//! through it `/metrics`, `/healthz` and `/trace`. Invariant: the core never blocks on a reader.

pub mod server;
pub mod text;

use headwater_dma::pool::{Pool, Statistics};
use headwater_frontend::numbers::FaceNumbers;
use headwater_ssd::engine::DeviceStats;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, TryLockError};

/// Whether a node serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Health {
    /// The index is being rebuilt.
    Recovering = 0,
    /// It serves.
    Serving = 1,
    /// It was asked to stop and answers what is in flight.
    Draining = 2,
}

impl Health {
    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Recovering => "recovering",
            Self::Serving => "ok",
            Self::Draining => "draining",
        }
    }
}

/// Nanoseconds of the stages of sampled requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageTime {
    /// Requests sampled.
    pub samples: u64,
    /// Their nanoseconds in this stage, together.
    pub nanos: u64,
}

/// Every number at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The device's.
    pub device: DeviceStats,
    /// The faces'.
    pub faces: FaceNumbers,
    /// Time of sampled requests by stage: one request a publication at most.
    pub stages: BTreeMap<&'static str, StageTime>,
    /// The buffer pool's, if there is one.
    pub pool: Option<Statistics>,
}

/// Where the core leaves its numbers.
#[derive(Debug)]
pub struct Board {
    health: AtomicU8,
    snapshot: Mutex<Snapshot>,
    pool: OnceLock<Pool>,
}

impl Default for Board {
    fn default() -> Self {
        Self {
            health: AtomicU8::new(Health::Recovering as u8),
            snapshot: Mutex::default(),
            pool: OnceLock::new(),
        }
    }
}

impl Board {
    /// Leaves the numbers, unless somebody is reading just now; returns whether they were left.
    pub fn publish(&self, device: &DeviceStats, faces: FaceNumbers) -> bool {
        let mut snapshot = match self.snapshot.try_lock() {
            Ok(snapshot) => snapshot,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let fresh = faces.trace.clone().filter(|trace| snapshot.faces.trace.as_ref() != Some(trace));
        for stage in fresh.into_iter().flat_map(|trace| trace.stages) {
            let time = snapshot.stages.entry(stage.stage).or_default();
            time.samples += 1;
            time.nanos += stage.ns;
        }
        snapshot.device = *device;
        snapshot.faces = faces;
        true
    }

    /// Says of which pool to tell the numbers. They are read when somebody asks, as that stops nobody; the first pool
    /// stays.
    pub fn watch_pool(&self, pool: Pool) {
        let _first = self.pool.set(pool);
    }

    /// The numbers as last left, and the pool's as they are.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        // A snapshot is replaced whole, so a reader that panicked left it whole.
        let left = self.snapshot.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Snapshot { pool: self.pool.get().map(Pool::statistics), ..left }
    }

    /// Says how the node is.
    pub fn set_health(&self, health: Health) {
        self.health.store(health as u8, Ordering::Relaxed);
    }

    /// How the node is.
    #[must_use]
    pub fn health(&self) -> Health {
        match self.health.load(Ordering::Relaxed) {
            1 => Health::Serving,
            2 => Health::Draining,
            _ => Health::Recovering,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headwater_frontend::numbers::{Trace, TraceStage};

    #[test]
    fn a_sampled_request_is_counted_once_however_often_it_is_published() {
        let board = Board::default();
        let sampled = |ns| FaceNumbers {
            trace: Some(Trace {
                command: "get",
                stages: vec![TraceStage { stage: "queued", ns }],
                total_ns: ns,
            }),
            ..FaceNumbers::default()
        };
        for ns in [7, 7, 5] {
            assert!(board.publish(&DeviceStats::default(), sampled(ns)));
        }
        assert_eq!(board.snapshot().stages["queued"], StageTime { samples: 2, nanos: 12 });
    }

    #[test]
    fn the_core_never_waits_for_a_reader() {
        let board = Board::default();
        let _reader = board.snapshot.lock().unwrap();
        assert!(!board.publish(&DeviceStats::default(), FaceNumbers::default()));
    }
}
