//! Incomplete batches: what recovery found on the medium that must be collected before the device serves commands.
//!
//! Input: blocks with damage or with records of torn batches, as recovery found them. Output: the blocks that the
//! collector takes first, and the records in them that it must treat specially. Invariant: while any such block is
//! left, no page says that the sequences of discarded records are durable.

use crate::command::Sequence;
use crate::log::record::RecordAddress;
use crate::media::geometry::{BlockId, PageAddress};
use std::collections::{BTreeMap, BTreeSet};

/// The blocks that recovery leaves to the collector.
#[derive(Debug, Default)]
pub(crate) struct IncompleteBatches {
    /// Blocks to collect before anything else.
    pub(crate) blocks: BTreeSet<BlockId>,
    /// Sequences of records that recovery did not accept.
    pub(crate) discarded: BTreeSet<Sequence>,
    /// The records by which recovery counts the complete batches that no durable stamp covers yet, each with the address
    /// of its youngest copy: a record with each of these sequences must stay until a stamp covers it.
    pub(crate) complete_batches: BTreeMap<Sequence, RecordAddress>,
    /// Blocks that hold a live record with corruption: they stay, so that the damage stays visible.
    pub(crate) corrupt_blocks: BTreeSet<BlockId>,
    /// Records that the pages of their block do not lead to, with a block that must not be erased before they are
    /// moved.
    pub(crate) unlisted_records: BTreeSet<(BlockId, RecordAddress)>,
    /// Pages that cannot be read and that a power cut tore, or whose loss the operator accepted: their blocks may be
    /// erased.
    pub(crate) unreadable_pages: BTreeSet<PageAddress>,
}

impl IncompleteBatches {
    /// Returns true if recovery counts a complete batch by the record at this address.
    pub(super) fn is_counted(&self, address: RecordAddress, sequence: Sequence) -> bool {
        self.complete_batches.get(&sequence) == Some(&address)
    }

    /// Notes that the collector is done with the record at this address: if it had to stay, it has a younger copy or
    /// tombstone now, and a second visit of the address, as of a chained record, must not replace that one.
    pub(super) fn settle(&mut self, address: RecordAddress, sequence: Sequence) {
        if self.is_counted(address, sequence) {
            self.complete_batches.remove(&sequence);
        }
    }

    /// Returns a record of the block that a walk through its pages would miss.
    pub(super) fn unlisted_in(&self, block: BlockId) -> Option<RecordAddress> {
        self.unlisted_records
            .range((block, RecordAddress(0))..)
            .next()
            .filter(|(at, _)| *at == block)
            .map(|(_, at)| *at)
    }
}
