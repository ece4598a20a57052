//! Counters of a DSA channel.

use super::settle::SettledRound;
use headwater_host::sync::Mutex;
use std::sync::{Arc, PoisonError};

/// The work of a DSA channel, from its start on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DsaCounters {
    /// Rounds that the device got: descriptors, batches, or some descriptors side by side.
    pub rounds: u64,
    /// Submissions that were repeated because the queue was full.
    pub full_retries: u64,
    /// Submissions that were given up.
    pub refused: u64,
    /// Pieces that ended with a page fault.
    pub page_faults: u64,
    /// Bytes behind page faults that the CPU did.
    pub finished_bytes: u64,
    /// Pieces that ended with another error, and the CPU did.
    pub repeated: u64,
    /// Pieces of a round that got no record while later ones did, and the CPU did.
    pub no_record: u64,
    /// Pieces that the device cannot reach, or that are too short for it, and the CPU did.
    pub unreachable: u64,
    /// Pieces of operations that the device does not know or its work queue does not permit, and the CPU did.
    pub not_permitted: u64,
    /// Jobs that were abandoned, and the mover did.
    pub abandoned: u64,
    /// Drains that looked for lost operations.
    pub drains: u64,
    /// Stops of a device that did not answer; at most one.
    pub stops: u64,
}

impl DsaCounters {
    pub(super) fn add(&mut self, settled: &SettledRound) {
        self.page_faults += settled.page_faults;
        self.finished_bytes += settled.finished_bytes;
        self.repeated += settled.repeated;
        self.no_record += settled.no_record;
    }
}

/// A reader of the counters of a channel.
#[derive(Clone, Debug, Default)]
pub struct DsaCountersReader(Arc<Mutex<DsaCounters>>);

impl DsaCountersReader {
    /// Returns the counters.
    #[must_use]
    pub fn read(&self) -> DsaCounters {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut DsaCounters)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
