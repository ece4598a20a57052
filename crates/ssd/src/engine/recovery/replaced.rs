//! Decides whether a record of the log is newer than a record in front of it that cannot be read.
//!
//! Input: records of the log, and the highest sequence that the unreadable record can have. Output: whether one of its key
//! replaces it. Invariant: a copy of a tombstone replaces nothing that it may be older than. The collector copies a record
//! only while it is the newest of its key, but a tombstone also after its key was written again.

use super::replay::Line;
use crate::command::{NamespaceId, Sequence};
use crate::index::KeyHash;
use crate::log::record::FLAG_TOMBSTONE;
use std::collections::HashMap;

/// Returns true if a record of the log is newer than every record of its key in front of the log with a sequence of at
/// most `highest`, or a copy of the newest of them.
pub(super) fn replaces_unreadable(line: &Line, highest: Sequence) -> bool {
    proof_of(line) > highest
}

/// The keys of which the log has records.
#[derive(Debug, Default)]
pub(super) struct ReplacedKeys {
    /// The sequence that an unreadable record must stay below to be replaced.
    below: HashMap<(NamespaceId, KeyHash), Sequence>,
}

impl ReplacedKeys {
    /// Collects the keys of these records.
    pub(super) fn new(lines: &[Line]) -> Self {
        let mut below = HashMap::with_capacity(lines.len());
        for line in lines {
            let proof = below.entry((line.namespace, line.hash)).or_default();
            *proof = proof_of(line).max(*proof);
        }
        Self { below }
    }

    /// Returns true if a record of this key replaces one in front of the log with a sequence of at most `highest`.
    pub(super) fn replaces(&self, namespace: NamespaceId, hash: KeyHash, highest: Sequence) -> bool {
        let below = self.below.get(&(namespace, hash));
        below.is_some_and(|below| *below > highest)
    }

    /// Returns true if there is any record of this key.
    pub(super) fn has(&self, namespace: NamespaceId, hash: KeyHash) -> bool {
        self.below.contains_key(&(namespace, hash))
    }
}

/// Returns the sequence below which a record replaces all others of its key in front of the log.
fn proof_of(line: &Line) -> Sequence {
    if line.flags & FLAG_TOMBSTONE == 0 { Sequence(u64::MAX) } else { line.sequence }
}
