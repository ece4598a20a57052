//! The records of batches that a power cut left incomplete.
//!
//! Input: blocks with records of torn batches. Output: the same. Invariant: none.

use crate::command::Sequence;
use crate::media::geometry::BlockId;
use std::collections::BTreeSet;

/// Records that recovery does not index.
#[derive(Debug, Default)]
pub(super) struct IncompleteBatches {
    /// Blocks with such records.
    pub(super) blocks: BTreeSet<BlockId>,
    /// Sequences of records that recovery did not accept.
    pub(super) discarded: BTreeSet<Sequence>,
}
