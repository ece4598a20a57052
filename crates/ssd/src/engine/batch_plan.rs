//! The progress of a batch that is carried out in parts.
//!
//! Input: the record that each write of the batch replaces, as it is found. Output: the room that the batch takes, what must
//! be checked before its first record is appended, and the next write of each step. Invariant: sums and lists cover exactly
//! the writes that were planned. In a namespace that the batch clears a write replaces nothing: what was found there decides
//! its condition only.

use crate::command::{BatchWrite, NamespaceId, Sequence, WriteCondition};
use crate::engine::batch_namespaces::NamespaceSet;
use crate::ftl::FoundRecord;
use crate::index::KeyHash;
use crate::limits::NAMESPACES;
use crate::log::record::{HEADER_BYTES, UNIT_BYTES, record_units};

/// A write of a batch, with the record of its key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedWrite {
    pub(crate) hash: KeyHash,
    pub(crate) found: Option<FoundRecord>,
}

/// Bytes of the record of a clear.
const CLEAR_BYTES: usize = HEADER_BYTES.next_multiple_of(UNIT_BYTES);

/// A number of records and their bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RecordSum {
    pub(crate) records: usize,
    pub(crate) bytes: usize,
}

impl RecordSum {
    fn add(&mut self, bytes: usize) {
        self.records += 1;
        self.bytes += bytes;
    }
}

/// The growth of the records of a namespace, without tombstones.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NamespaceGrowth {
    /// Bytes of the records that stores write.
    pub(crate) more: usize,
    /// Bytes of the records that stores and removals replace.
    pub(crate) less: usize,
}

/// The batch while its records are appended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenBatch {
    /// Index of its last record.
    pub(crate) last: usize,
    /// True if the removal of an absent key has no record.
    pub(crate) is_absence_final: bool,
    /// The next write.
    pub(crate) next: usize,
    /// Records appended.
    pub(crate) appended: usize,
    /// The sequence of the last one.
    pub(crate) wrote: Sequence,
}

/// The progress of a batch.
#[derive(Debug, Default)]
pub(crate) struct BatchPlan {
    /// The writes that are planned, from the first one on.
    pub(crate) writes: Vec<PlannedWrite>,
    /// The namespaces that the batch clears.
    pub(crate) clears: NamespaceSet,
    /// The sequence of the last clear of a namespace of the batch when the plan began: what it found before a later one is
    /// gone.
    pub(crate) cleared: Sequence,
    /// The bytes that collection had moved when every planned record was known to lie where the plan says.
    pub(crate) moved_bytes: u64,
    /// Indices of the writes with a condition.
    pub(crate) conditional: Vec<usize>,
    /// Indices of the stores of long values.
    pub(crate) long: Vec<usize>,
    /// True if a record that is replaced cannot be read.
    pub(crate) has_unreadable: bool,
    /// The highest sequence of a record that was found.
    pub(crate) seen: Sequence,
    /// The sequence that must be durable before the batch may depend on what it found.
    pub(crate) basis: Sequence,
    /// Bytes of the values.
    pub(crate) value_bytes: u64,
    /// Bytes of the longest record.
    pub(crate) largest: usize,
    pub(crate) stores: RecordSum,
    /// Removals of records that were found.
    pub(crate) removals: RecordSum,
    /// Removals of absent keys.
    pub(crate) absent_removals: RecordSum,
    /// The records that stores and removals replace.
    pub(crate) replaced: RecordSum,
    /// The growth of each namespace, by its index.
    pub(crate) growth: [NamespaceGrowth; NAMESPACES],
    /// Planned writes whose record was found again since the log is reserved.
    pub(crate) renewed: usize,
    /// The batch while its records are appended.
    pub(crate) open: Option<OpenBatch>,
}

impl BatchPlan {
    /// Adds the next write. `is_long` says that its record is built in parts.
    pub(crate) fn push(
        &mut self,
        (namespace, write): (NamespaceId, &BatchWrite),
        planned: PlannedWrite,
        is_long: bool,
    ) {
        let (index, found) = (self.writes.len(), planned.found);
        let (condition, bytes) = (write.condition(), record_bytes_of(write));
        if condition != WriteCondition::Always {
            self.conditional.push(index);
        }
        if is_long {
            self.long.push(index);
        }
        let is_cleared = self.clears.contains(namespace);
        self.has_unreadable |= found.is_some_and(|found| found.header.is_none());
        self.value_bytes += write.value_bytes();
        match (write, found) {
            (BatchWrite::Store { .. }, _) => {
                self.stores.add(bytes);
                self.growth[namespace.index()].more += bytes;
            }
            // The clear removes it.
            (BatchWrite::Delete { .. }, _) if is_cleared => {}
            (BatchWrite::Delete { .. }, Some(_)) => self.removals.add(bytes),
            (BatchWrite::Delete { .. }, None) => self.absent_removals.add(bytes),
            (BatchWrite::Check { .. }, _) => {}
        }
        if write.is_write() {
            self.largest = self.largest.max(bytes);
            if let Some(found) = found.filter(|_| !is_cleared) {
                let replaced = found.entry.units as usize * UNIT_BYTES;
                self.replaced.add(replaced);
                self.growth[namespace.index()].less += replaced;
            }
        }
        self.writes.push(planned);
    }

    /// Returns the records that the batch appends, those of its clears among them.
    pub(crate) fn appended(&self, is_absence_final: bool) -> RecordSum {
        let absent = if is_absence_final { RecordSum::default() } else { self.absent_removals };
        let clears = self.clears.len();
        RecordSum {
            records: self.stores.records + self.removals.records + absent.records + clears,
            bytes: self.stores.bytes + self.removals.bytes + absent.bytes + clears * CLEAR_BYTES,
        }
    }
}

impl BatchWrite {
    /// Returns true unless it is a check.
    pub(crate) fn is_write(&self) -> bool {
        !matches!(self, Self::Check { .. })
    }

    /// Returns its condition.
    pub(crate) fn condition(&self) -> WriteCondition {
        match self {
            Self::Store { condition, .. }
            | Self::Delete { condition, .. }
            | Self::Check { condition, .. } => *condition,
        }
    }

    /// Returns the bytes of its value.
    pub(crate) fn value_bytes(&self) -> u64 {
        match self {
            Self::Store { value, .. } => value.len() as u64,
            Self::Delete { .. } | Self::Check { .. } => 0,
        }
    }

    /// Returns the key written or checked.
    #[must_use]
    pub fn key(&self) -> &bytes::Bytes {
        match self {
            Self::Store { key, .. } | Self::Delete { key, .. } | Self::Check { key, .. } => key,
        }
    }
}

/// Returns the bytes of the record of a write, padding included.
pub(crate) fn record_bytes_of(write: &BatchWrite) -> usize {
    let value_bytes = if let BatchWrite::Store { value, .. } = write { value.len() } else { 0 };
    record_units(write.key().len(), value_bytes) as usize * UNIT_BYTES
}
