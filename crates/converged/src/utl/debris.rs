//! Debris: what recovery found on the medium that must be gone before the device serves.
//!
//! In: blocks with damage or with records of torn batches, as recovery met them. Out: which block the collector takes
//! next, and what it must do with records that are special there. Invariant: while any of it is left, no page says that
//! the sequences of discarded records are durable.

use crate::command::Sequence;
use crate::media::geometry::BlockId;
use crate::record::RecordAddress;
use std::collections::BTreeSet;

/// What recovery leaves to the collector.
#[derive(Debug, Default)]
pub(crate) struct Debris {
    /// Blocks to collect before anything else.
    pub(crate) blocks: BTreeSet<BlockId>,
    /// Sequences of records that recovery did not accept.
    pub(crate) discarded: BTreeSet<Sequence>,
    /// Sequences of batches that are whole, which no page says yet: each of their records must stay until one does.
    pub(crate) believed: BTreeSet<Sequence>,
    /// Blocks that hold a live record which has rotted: they stay, so that the damage shows.
    pub(crate) rotten: BTreeSet<BlockId>,
    /// Records that no page of the block leads to, and the block that must not be erased before they were moved.
    pub(crate) rescue: BTreeSet<(BlockId, RecordAddress)>,
}

impl Debris {
    /// A record of the block that a walk through its pages would miss.
    pub(super) fn hidden_in(&self, block: BlockId) -> Option<RecordAddress> {
        self.rescue
            .range((block, RecordAddress(0))..)
            .next()
            .filter(|(at, _)| *at == block)
            .map(|(_, at)| *at)
    }
}
