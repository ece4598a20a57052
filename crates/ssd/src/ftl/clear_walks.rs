//! The removal of cleared namespaces from the index, in parts, so that a clear of many keys keeps no core to itself.
//!
//! Input: namespaces that a clear emptied. Output: for each turn a part of the index without their entries. Invariant:
//! a namespace has no new entry while it is walked, because its commands wait, and its counts are those of the time after
//! the clear; what is left of it in the index is dead.
//!
//! ```text
//!  clear --> keys, segment by segment --> blocks --> expiries, if a record had one --> end
//! ```

use crate::command::NamespaceId;
use crate::index::KeyHash;
use crate::log::record::{RecordAddress, UNIT_BYTES};
use std::collections::VecDeque;

/// Entries removed in one turn after which the turn ends.
pub(super) const ENTRIES_PER_TURN: usize = 1_024;
/// Segments with entries that are walked in one turn.
pub(super) const SEGMENTS_PER_TURN: usize = 64;

/// The position of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WalkPosition {
    /// Keys, from this segment of the index on.
    Keys(usize),
    /// Blocks, from this position on.
    Blocks(KeyHash),
    /// Expiries, from this one on.
    Expiries((u64, KeyHash, RecordAddress)),
    /// Nothing is left.
    End,
}

/// The walk through the index for one cleared namespace.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClearWalk {
    pub(super) namespace: NamespaceId,
    pub(super) position: WalkPosition,
    /// True if a record with an expiry was removed.
    pub(super) has_expiries: bool,
}

/// The result of one turn of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClearStep {
    /// No namespace is walked.
    Idle,
    /// A part is done.
    Part,
    /// A namespace is empty: its commands may run.
    Ended,
}

/// The walks to do, the first one under way.
#[derive(Debug, Default)]
pub(super) struct ClearWalks {
    walks: VecDeque<ClearWalk>,
    /// Bytes of the dead records that blocks still count as live.
    dead_bytes: u64,
}

impl ClearWalks {
    /// Begins the walk for a namespace whose records took so many bytes.
    pub(super) fn begin(&mut self, namespace: NamespaceId, bytes: u64) {
        let position = WalkPosition::Keys(0);
        self.walks.push_back(ClearWalk { namespace, position, has_expiries: false });
        self.dead_bytes += bytes;
    }

    /// Returns true if no namespace is walked.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.walks.is_empty()
    }

    /// Returns true if what the index holds of a namespace is dead.
    #[inline]
    pub(super) fn is_clearing(&self, namespace: NamespaceId) -> bool {
        self.walks.iter().any(|walk| walk.namespace == namespace)
    }

    /// Returns the bytes of dead records that blocks still count as live.
    pub(super) fn dead_bytes(&self) -> u64 {
        self.dead_bytes
    }

    /// Notes a dead record whose entry is removed.
    pub(super) fn retire(&mut self, units: u32) {
        self.retire_bytes(u64::from(units) * UNIT_BYTES as u64);
    }

    /// Notes that blocks do not count so many bytes of dead records any more.
    pub(super) fn retire_bytes(&mut self, bytes: u64) {
        self.dead_bytes = self.dead_bytes.saturating_sub(bytes);
    }

    /// Returns the first walk.
    pub(super) fn first(&self) -> Option<ClearWalk> {
        self.walks.front().copied()
    }

    /// Sets the first walk to where it arrived.
    pub(super) fn set_first(&mut self, walk: ClearWalk) -> ClearStep {
        if walk.position != WalkPosition::End {
            self.walks[0] = walk;
            return ClearStep::Part;
        }
        self.walks.pop_front();
        if self.walks.is_empty() {
            self.dead_bytes = 0;
        }
        ClearStep::Ended
    }
}
