//! Rot: records that were surely durable once and do not carry their checksum any more.
//!
//! In: the damaged records of the scan, and the intact ones. Out: those of the damaged ones whose keys must be answered
//! with the damage, not with an older state. Invariant: a record that a power cut may have torn is never among them; such
//! a write was not acknowledged, and what its key held before still counts.

use super::Recovered;
use super::scan::Line;
use crate::command::Sequence;
use crate::log::blocks::Block;
use crate::log::record::{FLAG_CLEAR, FLAG_TOMBSTONE, RecordAddress};
use crate::media::geometry::BlockId;
use std::collections::{BTreeMap, BTreeSet};

/// Adds the rotten lines that count to those of intact records.
pub(super) fn add_corrupt(
    lines: &mut Vec<Line>,
    mut rotten: Vec<Line>,
    blocks: &[(BlockId, Block)],
    durable: Sequence,
    recovered: &mut Recovered,
) {
    if rotten.is_empty() {
        return;
    }
    let surely = Durable::new(lines, blocks, durable);
    rotten.retain(|line| {
        line.flags & (FLAG_TOMBSTONE | FLAG_CLEAR) == 0
            && line.sequence <= durable
            && surely.holds(line.order, line.address)
    });
    // A copy that was moved has the same sequence; where one is intact, nothing is lost.
    let mut alone: BTreeSet<Sequence> = rotten.iter().map(|line| line.sequence).collect();
    for line in &*lines {
        alone.remove(&line.sequence);
    }
    for line in rotten.into_iter().filter(|line| alone.contains(&line.sequence)) {
        recovered.debris.rotten.insert(line.address.block());
        lines.push(Line { rotten: true, ..line });
    }
}

/// How far the log was durable, in places instead of sequences: a moved record is on the medium long after its sequence.
pub(super) struct Durable {
    /// Every page of the blocks before this one.
    blocks_below: u64,
    /// Every page of these blocks up to the one with this record.
    records: BTreeMap<BlockId, RecordAddress>,
}

impl Durable {
    pub(super) fn new(lines: &[Line], blocks: &[(BlockId, Block)], durable: Sequence) -> Self {
        // A record that was new when it was appended proves with its sequence all that was appended before it.
        let opened: BTreeMap<BlockId, Sequence> =
            blocks.iter().map(|(number, block)| (*number, block.open_sequence)).collect();
        let begun = blocks.iter().filter(|(_, block)| block.open_sequence <= durable);
        let mut records: BTreeMap<BlockId, RecordAddress> = BTreeMap::new();
        for line in lines.iter().filter(|line| line.sequence <= durable) {
            let block = line.address.block();
            if opened.get(&block).is_some_and(|opened| line.sequence >= *opened) {
                let last = records.entry(block).or_insert(line.address);
                *last = line.address.max(*last);
            }
        }
        Self { blocks_below: begun.map(|(_, block)| block.order).max().unwrap_or(0), records }
    }

    /// Whether what lies at an address in a block of this order was durable.
    pub(super) fn holds(&self, order: u64, address: RecordAddress) -> bool {
        let last = self.records.get(&address.block());
        order < self.blocks_below || last.is_some_and(|last| last.page() >= address.page())
    }
}
