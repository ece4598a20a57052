//! Counters of a GPU channel.

use headwater_host::gpu::CudaFailure;
use headwater_host::sync::Mutex;
use std::sync::{Arc, PoisonError};

/// The work of a GPU channel, from its start on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuCounters {
    /// Rounds that the engine got.
    pub rounds: u64,
    /// Bytes of these rounds.
    pub bytes: u64,
    /// Submissions that the engine refused.
    pub refused: u64,
    /// Jobs that were not offered to the channel, because memory of them is not registered.
    pub unregistered_jobs: u64,
    /// Pieces that a GPU cannot reach or do, and the CPU did.
    pub cpu_pieces: u64,
    /// Bytes of these pieces.
    pub cpu_bytes: u64,
    /// Jobs that were abandoned, and the mover did.
    pub abandoned: u64,
    /// Stops of an engine with transfers that did not end in time; at most one.
    pub overdue: u64,
    /// The call of the driver that failed, behind which the engine stopped.
    pub failure: Option<String>,
}

/// A reader of the counters of a channel.
#[derive(Clone, Debug, Default)]
pub struct GpuCountersReader(Arc<Mutex<GpuCounters>>);

impl GpuCountersReader {
    /// Returns the counters.
    #[must_use]
    pub fn read(&self) -> GpuCounters {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut GpuCounters)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn note_failure(&self, failure: &CudaFailure) {
        self.update(|counters| {
            if counters.failure.is_none() {
                counters.failure = Some(failure.to_string());
            }
        });
    }
}
