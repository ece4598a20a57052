//! Decides whether a record of the log is newer than a record in front of it that cannot be read.
//!
//! Input: records of the log, and the highest sequence that the unreadable record can have. Output: whether one of its key
//! replaces it. Invariant: a copy of a tombstone replaces nothing that it may be older than. The collector copies a record
//! only while it is the newest of its key, but a tombstone also after its key was written again.

use super::replay::Line;
use crate::command::{NamespaceId, Sequence};
use crate::index::KeyHash;
use crate::log::record::FLAG_TOMBSTONE;

/// Returns true if a record of the log is newer than every record of its key in front of the log with a sequence of at
/// most `highest`, or a copy of the newest of them.
pub(super) fn replaces_unreadable(line: &Line, highest: Sequence) -> bool {
    proof_of(line) > highest
}

/// The keys of which the log has records.
#[derive(Debug, Default)]
pub(super) struct ReplacedKeys {
    /// Each record of the log, in this order: the last one of a key replaces the most.
    records: Vec<(NamespaceId, KeyHash, Sequence)>,
}

impl ReplacedKeys {
    /// Collects the keys of these records.
    pub(super) fn new(lines: &[Line]) -> Self {
        let mut records: Vec<_> =
            lines.iter().map(|line| (line.namespace, line.hash, proof_of(line))).collect();
        records.sort_unstable();
        Self { records }
    }

    /// Returns true if a record of this key replaces one in front of the log with a sequence of at most `highest`.
    pub(super) fn replaces(&self, namespace: NamespaceId, hash: KeyHash, highest: Sequence) -> bool {
        self.proof(namespace, hash).is_some_and(|proof| proof > highest)
    }

    /// Returns true if there is any record of this key.
    pub(super) fn has(&self, namespace: NamespaceId, hash: KeyHash) -> bool {
        self.proof(namespace, hash).is_some()
    }

    fn proof(&self, namespace: NamespaceId, hash: KeyHash) -> Option<Sequence> {
        let last = (namespace, hash, Sequence(u64::MAX));
        let behind = self.records.partition_point(|record| *record <= last);
        let (found_namespace, found_hash, proof) = *self.records.get(behind.checked_sub(1)?)?;
        (found_namespace == namespace && found_hash == hash).then_some(proof)
    }
}

/// Returns the sequence below which a record replaces every other one of its key in front of the log.
fn proof_of(line: &Line) -> Sequence {
    if line.flags & FLAG_TOMBSTONE == 0 { Sequence(u64::MAX) } else { line.sequence }
}
